"""Runs that are stopped, cannot save or diverge: the last good state stays, and going on gives the same bytes."""

import json
import os
import re
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import (
    Answer,
    Call,
    TrainedRun,
    assert_refused,
    assert_same_run,
    contents,
    copy_of,
    first_line,
    started,
    train_command,
)

from triplee.data.pool import Pool
from triplee.runfolder import RunFolder, read_tensors


def test_ctrl_c_saves_says_how_to_go_on_and_resuming_gives_the_same_bytes(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    answer = unfinished.answer
    assert answer.returncode == 130 and answer.stdout == ""
    *epochs, last = answer.stderr.splitlines()
    assert all("  epoch " in line for line in epochs)
    assert last == f"triplee: stopped and saved; go on with the same command and --out {unfinished.path} --resume"
    _, metadata = read_tensors(unfinished.path / "state" / "last.safetensors")
    assert metadata["epoch"] >= 1 and sum(metadata["progress"]["steps"]) > 0  # in the middle of an epoch
    out = copy_of(unfinished, tmp_path)
    answer = call(*train_command(small_folder, out), "--resume")
    assert answer.returncode == 0 and "epoch 4/4" in answer.stderr and "epoch 1/4" not in answer.stderr
    assert_same_run(out, finished)
    assert contents(out).keys() >= {"config.yaml", "metrics.jsonl", "best/member-0.safetensors", "state/lock"}


def test_a_live_process_keeps_its_folder_and_a_polite_kill_saves(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    command = train_command(small_folder, tmp_path / "run")
    with started(*command) as process:
        assert "epoch 1/4" in first_line(process)
        process.send_signal(signal.SIGSTOP)
        before = contents(tmp_path / "run")
        for extra in ([], ["--resume"]):
            assert_refused(call(*command, *extra), f"{tmp_path / 'run'} is in use by another process", "--out")
        assert contents(tmp_path / "run") == before
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 130 and "stopped and saved" in errors.splitlines()[-1]
    assert call(*command, "--resume").returncode == 0
    assert_same_run(tmp_path / "run", finished)


def test_a_reader_of_the_progress_that_went_away_costs_no_state(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    command = train_command(small_folder, tmp_path / "run")
    with started(*command) as process:
        assert "epoch 1/4" in first_line(process) and process.stderr
        process.stderr.close()
        assert process.wait() == 141
    assert call(*command, "--resume").returncode == 0
    assert_same_run(tmp_path / "run", finished)


def test_the_demo_stops_on_ctrl_c_and_says_how_to_go_on(tmp_path: Path, digits: Pool) -> None:
    out = tmp_path / "demo"
    with started("demo", "--epochs", "2", "--out", out) as process:
        while not list(out.glob("*/events/*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "triplee: stopped and saved; go on with the same command"


def test_resuming_a_finished_run_tells_its_result(call: Call, small_folder: Path, finished: TrainedRun) -> None:
    before = contents(finished.path)
    answer = call(*train_command(small_folder, finished.path), "--resume")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, finished.answer.stdout, "")
    assert contents(finished.path) == before


def test_a_run_killed_when_it_had_just_finished_is_tidied(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    out = copy_of(finished, tmp_path)
    shutil.copy(unfinished.path / "state" / "last.safetensors", out / "state")
    assert call(*train_command(small_folder, out), "--resume").stderr == ""
    assert_same_run(out, finished)


def test_the_data_may_have_moved(call: Call, small_folder: Path, unfinished: TrainedRun, tmp_path: Path) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "moved")), copy_of(unfinished, tmp_path)
    assert call(*train_command(data, out), "--resume").returncode == 0


def test_a_save_that_fails_keeps_the_last_good_state(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    """A limit on the size of files that the weights pass and the state does not."""
    out = copy_of(unfinished, tmp_path)
    before = contents(out)
    size = len(before["best/member-0.safetensors"])
    command = [*train_command(small_folder, out), "--resume"]
    limit = (size + 1000, size + 1000)
    with started(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)) as process:
        output, errors = process.communicate()
    answer = Answer(command, process.returncode, output, errors)
    assert_refused(answer, f"cannot write {out}/state/last.safetensors: file too large", "saved before is untouched")
    after = contents(out)
    assert after["state/last.safetensors"] == before["state/last.safetensors"]
    assert not [name for name in after if "unfinished" in name]
    assert call(*command).returncode == 0
    assert_same_run(out, finished)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1000))


def test_a_full_disk_keeps_the_last_good_state(
    triplee: Call, call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, small_disk: Path
) -> None:
    out = copy_of(unfinished, small_disk)
    before = contents(out)
    fill(small_disk)
    command = [*train_command(small_folder, out), "--resume"]
    assert_refused(triplee(*command), "cannot write", "the disk is full, make room", "saved before is untouched")
    after = contents(out)
    assert {name: after[name] for name in before} == before  # only an empty file of events is new
    assert not [name for name in after if "unfinished" in name]
    assert_refused(call(*train_command(small_folder, small_disk / "new")), "cannot write", "the disk is full")
    (small_disk / "filling").unlink()
    assert call(*command).returncode == 0
    assert_same_run(out, finished)
    assert call(*train_command(small_folder, small_disk / "new", epochs=1)).returncode == 0


def test_a_disk_that_fills_up_while_saving_keeps_the_last_good_state(
    triplee: Call, call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, small_disk: Path
) -> None:
    out = copy_of(unfinished, small_disk)
    state = (out / "state" / "last.safetensors").read_bytes()
    fill(small_disk)
    room = 3 * (out / "best" / "member-0.safetensors").stat().st_size  # for the weights, not for the state as well
    os.truncate(small_disk / "filling", (small_disk / "filling").stat().st_size - room)
    command = [*train_command(small_folder, out), "--resume"]
    assert_refused(triplee(*command), f"cannot write {out}/state/last.safetensors: the disk is full")
    assert (out / "state" / "last.safetensors").read_bytes() == state
    (small_disk / "filling").unlink()
    assert call(*command).returncode == 0
    assert_same_run(out, finished)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_what_was_good(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    for name, lr in (("late", 10), ("early", 1e9)):
        out = tmp_path / name
        answer = call(*train_command(small_folder, out, lr=lr, members=1, batch_size=500, epochs=30))
        assert answer.returncode == 2 and "Traceback" not in answer.stderr
        *epochs, last = answer.stderr.splitlines()
        place = "the loss became NaN or infinite at epoch (.+), step 1, member 1: train anew with a lower lr"
        kept = rf"; the state after epoch (\d+) is kept in {re.escape(str(out))}" if name == "late" else ""
        match = re.fullmatch(f"triplee: {place}{kept}", last)
        assert match and int(match[1]) == len(epochs) + 1 == len(RunFolder(out).read_metrics()) + 1
        assert not (out / "result.json").exists() and (len(epochs) > 0) == (name == "late")
        if name == "late":
            saved = read_tensors(out / "state" / "last.safetensors")[1]["epoch"]
            assert 1 <= saved == int(match[2]) <= len(epochs)
            assert 0 < json.loads(call("predict", out, image, "--format", "json").stdout)[0]["confidence"] <= 1
        else:
            assert_refused(call("predict", out, image), "member-0.safetensors is missing")
