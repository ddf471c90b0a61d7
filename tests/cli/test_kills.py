"""Twenty times `kill -9`: two runs, each killed ten times and resumed, end with the bytes of an undisturbed one."""

import os
import random
import subprocess
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import Answer, TrainedRun, assert_same_run, contents, started, train_command

from triplee.runfolder import UNFINISHED, RunFolder

NUM_RUNS, KILLS_PER_RUN = 2, 10
EARLY = (0, 3, 6, 9)  # the kills that come while the process starts
# Those that wait until a certain file is being written. All others come anywhere in an epoch.
AIMED = {2: "state/last.safetensors", 5: "metrics.jsonl", 8: "state/best-*-1.safetensors"}
# Epochs of two steps per member, so that most of them end without being saved.
EPOCHS = 60
CHANGES = {"epochs": EPOCHS, "batch_size": 32, "replay": 1}


def two_threads() -> dict[str, str]:
    """As on a user's machine: two members train side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "2"}


@dataclass(frozen=True)
class Kill:
    """Where a kill hit: seconds after the start, epochs on disk then, and how the folder looked."""

    run: int
    seconds: float
    epochs: int
    phase: str
    file: str  # that was being written, if any

    def __str__(self) -> str:
        where = f"{self.phase}, {self.epochs} epochs done"
        return f"run {self.run}: after {self.seconds:.2f} s, {where}{f', writing {self.file}' if self.file else ''}"


@pytest.fixture(scope="module")
def straight(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainedRun, float, float]:
    """The undisturbed run, the seconds that it took to start, and those of an epoch."""
    path = tmp_path_factory.mktemp("straight") / "run"
    began = time.monotonic()
    with started(*train_command(small_folder, path, **CHANGES), env=two_threads()) as process:
        assert process.stderr and "epoch 1/" in process.stderr.readline()
        trained_one = time.monotonic()
        output, errors = process.communicate()
    seconds = time.monotonic() - trained_one
    answer = Answer(process.args, process.returncode, output, errors)
    return TrainedRun(path, answer), trained_one - began, seconds / (EPOCHS - 1)


@pytest.mark.slow
def test_killed_runs_that_are_resumed_end_with_the_same_bytes(
    small_folder: Path, tmp_path: Path, straight: tuple[TrainedRun, float, float]
) -> None:
    reference, startup, epoch = straight
    assert reference.answer.returncode == 0, reference.answer

    def kill_and_resume(number: int) -> list[Kill]:
        rng = random.Random(number)
        out = tmp_path / str(number)
        kills = []
        for attempt in range(KILLS_PER_RUN + 1):
            command = train_command(small_folder, out, **CHANGES)
            with started(*command, *(["--resume"] if out.exists() else []), env=two_threads()) as process:
                if attempt == KILLS_PER_RUN:
                    _, errors = process.communicate()
                    assert process.returncode == 0, errors
                    break
                began = time.monotonic()
                if attempt in EARLY:
                    time.sleep(rng.uniform(0, startup))
                elif attempt in AIMED:  # at the end of the first epoch, which is always saved
                    wait_for_writing(out, AIMED[attempt], process)
                else:
                    wait_for_epochs(process, 1 + rng.randrange(12))
                    time.sleep(rng.uniform(0, epoch))
                process.kill()
                assert process.wait() == -9, process.communicate()
            seconds, phase = time.monotonic() - began, "starting" if attempt in EARLY else "training"
            kills.append(look(number, out, seconds, phase, unfinished_files(out, process.pid)))
        return kills

    with ThreadPoolExecutor(NUM_RUNS) as threads:
        kills = [kill for run in threads.map(kill_and_resume, range(NUM_RUNS)) for kill in run]
    print(f"\nstart-up {startup:.1f} s, an epoch {epoch:.3f} s", *kills, sep="\n")
    phases = Counter(kill.phase for kill in kills)
    assert len(kills) == 20 and phases["training"] + phases["saving"] >= 10 and phases["saving"] > 0, phases
    assert 1 < max(kill.epochs for kill in kills) < EPOCHS
    for number in range(NUM_RUNS):
        assert_same_run(tmp_path / str(number), reference)
        assert not [name for name in contents(tmp_path / str(number)) if UNFINISHED in name]


def wait_for_epochs(process: subprocess.Popen[str], count: int) -> None:
    assert process.stderr
    for _ in range(count):
        assert " epoch " in process.stderr.readline()


def wait_for_writing(out: Path, name: str, process: subprocess.Popen[str]) -> None:
    """Until the process writes that file; on a busy machine it may be done before anybody looks."""
    file, state = out / name, RunFolder(out).state_path
    before = state.stat().st_mtime_ns if state.exists() else None
    while process.poll() is None and not any(file.parent.glob(f".{file.name}.{process.pid}{UNFINISHED}")):
        if state.exists() and state.stat().st_mtime_ns != before:
            break
        time.sleep(1e-4)  # so that the other run's thread gets its turn


def unfinished_files(out: Path, process_id: int) -> list[str]:
    """What this process was writing: an earlier one may have left a file as well."""
    return [path.name for path in out.rglob(f".*.{process_id}{UNFINISHED}")]


def look(run: int, out: Path, seconds: float, phase: str, unfinished: list[str]) -> Kill:
    if not (out / "config.yaml").exists():
        phase = "before there was a run"
    elif unfinished:
        phase = "saving"
    epochs = len(RunFolder(out).read_metrics())
    return Kill(run, seconds, epochs, phase, unfinished[0] if unfinished else "")
