"""`kill -9` of a sweep, again and again: it ends with the bytes of an undisturbed one, trains nothing twice, and leaves
no process behind.
"""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import contents, started
from test_sweep_verb import command

KILLS = 10
EPOCHS = 8
ROWS = {"one": {"method": "vanilla", "set": {"batch_size": 2}}, "two": {"set": {"members": 2, "batch_size": 2}}}


def alive(mark: str) -> list[int]:
    """Processes that have the mark in their environment: the sweep and whatever it started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # it is gone, or somebody else's
            continue
    return found


def results(out: Path) -> dict[str, int]:
    """When each run was finished."""
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}


def wait_for_an_epoch(out: Path, process: subprocess.Popen[str]) -> None:
    """Until some run has written down one more epoch."""
    before = {path: path.read_bytes() for path in out.glob("runs/*/metrics.jsonl")}
    while process.poll() is None:
        now = {path: path.read_bytes() for path in out.glob("runs/*/metrics.jsonl")}
        if now != before:
            return
        time.sleep(0.02)


def bytes_of(out: Path) -> dict[str, bytes]:
    """All that runs leave but events, locks and the clock."""
    kept = {n: c for n, c in contents(out / "runs").items() if "/events/" not in n and not n.endswith("lock")}
    for name in [name for name in kept if name.endswith("result.json")]:
        kept[name] = json.dumps({**json.loads(kept[name]), "seconds": 0, "memory_mb": 0}).encode()
    return kept


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_sweep_that_is_killed_again_and_again_ends_as_if_nothing_had_been(small_folder: Path, tmp_path: Path) -> None:
    changes = {"rows": ROWS, "baseline": "one", "seeds": 2, "epochs": EPOCHS}
    began = time.monotonic()
    with started(*command(tmp_path, small_folder, out=tmp_path / "straight", **changes)) as process:
        wait_for_an_epoch(tmp_path / "straight", process)
        startup = time.monotonic() - began
        output, errors = process.communicate()
    seconds = time.monotonic() - began
    assert process.returncode == 0, errors
    run_seconds = (seconds - startup) / 12
    out, rng, mark = tmp_path / "killed", random.Random(0), f"SWEEP_{secrets.token_hex(8)}"
    words, environment = command(tmp_path, small_folder, out=out, **changes), {**os.environ, mark: "1"}
    finished: dict[str, int] = {}
    kills = []
    for attempt in range(KILLS):
        with started(*words, env=environment) as process:
            began = time.monotonic()
            if attempt % 2:  # while it starts; else while it trains
                time.sleep(rng.uniform(0, startup))
            else:
                wait_for_an_epoch(out, process)
                time.sleep(rng.uniform(0, run_seconds))
            num_processes = len(alive(mark))
            assert process.poll() is None, process.communicate()
            process.kill()
            process.wait()
        deadline = time.monotonic() + 30
        while alive(mark):
            assert time.monotonic() < deadline, f"orphans: {alive(mark)}"
            time.sleep(0.02)
        assert results(out).items() >= finished.items()  # nothing is trained again
        finished = results(out)
        kills.append(f"{time.monotonic() - began:.1f} s: {num_processes} processes, {len(finished)} of 12 runs done")
    print(f"\nundisturbed {seconds:.1f} s", *kills, sep="\n")
    with started(*words, env=environment) as process:
        again, errors = process.communicate()
    assert process.returncode == 0, errors
    assert again == output and results(out).items() >= finished.items()
    assert bytes_of(out) == bytes_of(tmp_path / "straight")
    assert not alive(mark)
