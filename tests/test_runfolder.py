"""The run folder by itself: whole files or none, digests, the lock, what counts as the same run, damaged files."""

import errno
import json
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

from triplee.runfolder import (
    CALIBRATION_CHECKS,
    CONFIG_CHECKS,
    FORMAT,
    RESULT_CHECKS,
    UNFINISHED,
    RunFolder,
    changed_keys,
    check_writable,
    read_config,
    read_tensors,
    unwritable,
    write_atomically,
    write_tensors,
)
from triplee.settings import InputError, Recipe

CONFIG: dict[str, Any] = {
    "format": FORMAT,
    "version": "0.1.0",
    "data": "photos",
    "data_fingerprint": "abc",
    "skipped_images": 0,
    "domains": ["a", "b"],
    "classes": ["x", "ÿ"],
    "target": "b",
    "seed": 0,
    "recipe_name": "mine",
    "recipe": {"lr": 0.01, "epochs": 3},
    "precision": "float32",
}
ROW: dict[str, Any] = {
    "epoch": 1,
    **dict.fromkeys(("lr", "val_accuracy", "target_accuracy"), 1.5),
    **{key: [1.5, 2] for key in ("cross_entropy", "contrast", "val_members", "target_members")},
}
# Holds the lock of a run folder until its input ends, without waiting for torch.
HOLD = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print('held'); sys.stdin.read()"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# Atomic writing


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "file"
    for content in (b"first", b"", b"third" * 100_000):
        write_atomically(path, content)
        assert path.read_bytes() == content and names(tmp_path) == ["file"]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    contents = {letter * 300_000 for letter in (b"a", b"b")}
    path = tmp_path / "file"
    write_atomically(path, b"a" * 300_000)
    stop = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        for content in contents:
            write_atomically(path, content)
    stop.set()
    reader.join()
    assert len(seen) > 10 and set(seen) <= contents


@pytest.mark.parametrize("obstacle", ["folder in its place", "file in its parent's place", "name too long"])
def test_a_failed_write_is_one_line_and_leaves_what_was_there(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "there" / "file"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old").write_text("old")
    if obstacle == "folder in its place":
        path.mkdir()
    elif obstacle == "file in its parent's place":
        path = tmp_path / "there" / "old" / "file"
    else:
        path = path.with_name(255 * "n")
    for attempt in (check_writable, lambda path: write_atomically(path, b"new")):
        with pytest.raises(InputError, match=r"cannot write .*; what was saved before is untouched") as error:
            attempt(path)
        assert "\n" not in str(error.value) and names(tmp_path) == ["old"]
    assert (tmp_path / "there" / "old").read_text() == "old"


def test_looking_whether_a_file_can_be_written_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "deep" / "down" / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_called_so(number: int) -> None:
    assert "the disk is full, make room" in str(unwritable(Path("x"), OSError(number, "some words")))


# Tensors and their digest


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 2, 2, 2, generator=generator).to(memory_format=torch.channels_last)
    return {"w": image, "half": image[0, 0].bfloat16(), "count": torch.tensor(3), "none": torch.empty(0)}


def save_plainly(path: Path, metadata: dict[str, str] | None = None) -> None:
    safetensors.torch.save_file({"x": torch.zeros(3)}, path, metadata)


def test_tensors_come_back_as_they_were_and_equal_ones_make_equal_bytes(tmp_path: Path) -> None:
    metadata = {"epoch": 3, "progress": {"loss": [0.1, 1e-300]}, "name": "ÿ"}
    for name in ("one", "two"):
        write_tensors(tmp_path / name, tensors(), metadata)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    read, read_metadata = read_tensors(tmp_path / "one")
    assert read_metadata == metadata and read.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype
    assert safetensors.torch.load_file(tmp_path / "one").keys() == tensors().keys()  # a plain safetensors file


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, tensors(), {"epoch": 3})
    whole = path.read_bytes()
    assert len(whole) < 1000
    with path.open("r+b", buffering=0) as file:  # in place: quicker than 7,000 new files
        for position, byte in enumerate(whole):
            for changed in (*(byte ^ 1 << bit for bit in range(8)), byte):
                file.seek(position)
                file.write(bytes([changed]))
                if changed != byte:
                    with pytest.raises(InputError, match=r"is damaged|is of format"):
                        read_tensors(path)
        for length in reversed(range(len(whole))):
            file.truncate(length)
            with pytest.raises(InputError, match=r"is damaged|is of format"):
                read_tensors(path)
    path.write_bytes(whole.replace(b'"F32"', b'"I32"'))
    with pytest.raises(InputError, match="its digest does not match"):
        read_tensors(path)
    path.write_bytes(whole)
    read_tensors(path)


def test_other_files_in_the_place_of_tensors_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(InputError, match="is missing"):
        read_tensors(path)
    save_plainly(path)
    with pytest.raises(InputError, match="is of format None, this version reads 1: train again"):
        read_tensors(path)
    save_plainly(path, {"triplee": '{"format": 2}'})
    with pytest.raises(InputError, match="is of format 2"):
        read_tensors(path)
    save_plainly(path, {"triplee": "no JSON"})
    with pytest.raises(InputError, match="is damaged"):
        read_tensors(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="is damaged"):
        read_tensors(path)


# Claim and lock


def test_a_folder_is_one_process_s_at_a_time(tmp_path: Path) -> None:
    run = tmp_path / "run"
    first, second = RunFolder(run), RunFolder(run)
    assert first.claim(CONFIG, resume=False) == CONFIG
    for resume in (True, False):
        with pytest.raises(InputError, match="in use by another process"):
            second.claim(CONFIG, resume)
    first.release()
    assert second.claim(CONFIG, resume=True) == CONFIG
    second.release()


def test_a_live_process_holds_its_folder_and_a_killed_one_does_not(tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = RunFolder(run)
    folder.claim(CONFIG, resume=False)
    folder.release()
    command = [sys.executable, "-u", "-c", HOLD, str(run / "state" / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="in use by another process: wait for it, or choose another --out"):
            folder.claim(CONFIG, resume=True)
        process.kill()
    folder.claim(CONFIG, resume=True)
    folder.release()


def test_a_refused_claim_gives_the_folder_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(CONFIG, resume=False)
    folder.release()
    refused = [RunFolder(tmp_path), RunFolder(tmp_path)]  # kept: a lock that is forgotten is also released
    with pytest.raises(InputError, match="holds an unfinished run"):
        refused[0].claim(CONFIG, resume=False)
    with pytest.raises(InputError, match="was started differently"):
        refused[1].claim({**CONFIG, "seed": 1}, resume=True)
    folder.claim(CONFIG, resume=True)
    folder.release()


@pytest.mark.parametrize("file", ["thesis.tex", ".bashrc", ".git/config", "state/notes.txt", "state/lock/x", "best/x"])
def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("years of work")
    before = sorted(tmp_path.rglob("*"))
    for resume in (False, True):
        with pytest.raises(InputError, match="is not empty and no run folder: choose another --out"):
            RunFolder(tmp_path).claim(CONFIG, resume)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / file).read_text() == "years of work"


def test_what_a_crash_left_unfinished_is_cleared_and_other_hidden_files_stay(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.claim(CONFIG, resume=False)
    folder.release()
    crashed = [tmp_path / place / f".x.json.77{UNFINISHED}" for place in (".", "best", "state")]
    for path in [*crashed, tmp_path / ".gitignore", tmp_path / "state" / ".keep"]:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    folder.claim(CONFIG, resume=True)
    folder.release()
    assert names(tmp_path) == [".gitignore", ".keep", "config.yaml", "lock"]


def test_a_start_that_was_cut_off_before_its_config_can_start_again(tmp_path: Path) -> None:
    for resume in (False, True):
        run = tmp_path / f"resume {resume}"
        (run / "state").mkdir(parents=True)
        (run / "state" / "lock").touch()
        (run / f".config.yaml.77{UNFINISHED}").write_text("form")
        folder = RunFolder(run)
        folder.claim(CONFIG, resume)
        folder.release()
        assert names(run) == ["config.yaml", "lock"] and read_config(run) == CONFIG


def test_resuming_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run to resume"):
        RunFolder(tmp_path / "run").claim(CONFIG, resume=True)
    assert not (tmp_path / "run").exists()


# Config, metrics, result


def test_only_what_was_asked_for_counts_as_a_change() -> None:
    by_itself = {"version": "9", "precision": "bfloat16", "data": "/mnt/photos", "skipped_images": 2}
    assert changed_keys(CONFIG, {**CONFIG, **by_itself}) == []
    changed = {**CONFIG, "seed": 1, "classes": ["x"], "recipe": {"lr": 0.5, "epochs": 3, "flip": True}}
    expected = ["classes: ['x', 'ÿ'] → ['x']", "seed: 0 → 1", "lr: 0.01 → 0.5", "flip: False → True"]
    assert changed_keys(CONFIG, changed) == expected
    assert changed_keys(CONFIG, {**CONFIG, "data_fingerprint": "other"}) == ["data_fingerprint: abc → other"]


def test_a_recipe_key_that_was_not_there_yet_had_its_default() -> None:
    recipe = {key: value for key, value in Recipe().model_dump().items() if key != "average_share"}
    before = {**CONFIG, "recipe": recipe}
    assert changed_keys(before, {**CONFIG, "recipe": Recipe().model_dump()}) == []
    asked = {**CONFIG, "recipe": Recipe(average_share=0.5).model_dump()}
    assert changed_keys(before, asked) == ["average_share: 0.0 → 0.5"]


def test_a_config_that_lacks_or_changed_anything_is_damaged(tmp_path: Path) -> None:
    def write(content: object) -> None:
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))

    with pytest.raises(InputError, match=r"is not a run folder: it has no config\.yaml"):
        read_config(tmp_path)
    write(CONFIG)
    assert read_config(tmp_path) == CONFIG
    wrong = [{**CONFIG, key: value} for key in CONFIG for value in (None, 7.5)]
    lacking = [{k: v for k, v in CONFIG.items() if k != key} for key in CONFIG]
    odd = {"domains": ["a"], "classes": [], "recipe": {5: 1}, "target": "west", "seed": True}
    wrong += [{**CONFIG, key: value} for key, value in odd.items()]
    wrong += [{**CONFIG, key: 5.5} for key in CONFIG_CHECKS.keys() - CONFIG.keys()]  # those that need not be there
    for content in [*wrong, *lacking, None, [], "words", {}]:
        write(content)
        with pytest.raises(InputError, match=r"config\.yaml is damaged: restore it, or train again"):
            read_config(tmp_path)
    for raw in (b"\xff\xfe\x00", b"a: [", b"\0", b"!!python/object:os.system {}", b"a: 2020-99-99"):
        (tmp_path / "config.yaml").write_bytes(raw)
        with pytest.raises(InputError, match="is damaged"):
            read_config(tmp_path)
    write({"format": 99, "version": "7.1"})
    with pytest.raises(InputError, match=r"is of format 99 \(triplee 7\.1\), this version reads 1"):
        read_config(tmp_path)


def test_metrics_end_before_the_line_that_was_cut_off(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.read_metrics() == []
    rows = [{**ROW, "epoch": epoch} for epoch in (1, 2, 3)]
    folder.write_metrics(rows)
    whole = folder.metrics_path.read_bytes()
    ends = [0, *(k for k, byte in enumerate(whole) if byte == ord("\n"))]
    for length in range(len(whole)):
        folder.metrics_path.write_bytes(whole[:length])
        assert folder.read_metrics() == rows[: sum(length >= end for end in ends) - 1]


ODD_VALUES = ({"val_accuracy": "x"}, {"contrast": None}, {"contrast": [None]}, {"target_accuracy": None}, {"lr": True})
ODD_LINES = [json.dumps({**ROW, "epoch": 2, **values}).encode() for values in ODD_VALUES]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"null", b"[2]", b"2", b'{"epoch": 2}', b'{"lr": 3}', b"", *ODD_LINES])
def test_metrics_end_before_a_damaged_line(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.write_metrics([ROW, ROW, {**ROW, "epoch": 3}])
    lines = folder.metrics_path.read_bytes().splitlines()
    folder.metrics_path.write_bytes(b"\n".join([lines[0], line, lines[2]]))
    assert folder.read_metrics() == [ROW]


def test_a_result_is_whole_or_one_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match="has no result yet"):
        folder.read_result()
    words = {"recipe": "mine", "version": "1", "selection": "oracle", "target": "ÿ", "members": [1.5]}
    words |= {"came_apart": "after epoch 2", "calibration": None, "data": os.fsdecode(b"/not/unicode\xff")}
    calibration = {**dict.fromkeys(CALIBRATION_CHECKS, 0.0), "temperature": 1.5}
    result: dict[str, Any] = {**dict.fromkeys(RESULT_CHECKS, 1), **words}
    folder.write_result(result)
    assert folder.read_result() == result  # of a version that did not calibrate
    result["calibration"] = calibration
    folder.write_result(result)
    assert folder.read_result() == result
    whole = folder.result_path.read_bytes()
    damaged = [whole[: len(whole) // 2], b"", b"null", b"[]", b"{}", b"\xff"]
    damaged += [whole.replace(word, word[:-2] + b'x"') for word in (b'"epoch"', b'"oracle"', b'"temperature"')]
    damaged += [json.dumps({**result, "calibration": {**calibration, "temperature": t}}).encode() for t in (0, "1")]
    odd = {"members": [], "train_images": "x", "memory_mb": "x", "accuracy": math.nan, "seconds": 10**400, "epoch": 1.5}
    odd["came_apart"] = 2
    damaged += [json.dumps({**result, key: value}).encode() for key, value in [*odd.items(), ("members", ["a"])]]
    for content in [*damaged, json.dumps({**result, "epoch": 1})[:-1].encode()]:
        folder.result_path.write_bytes(content)
        with pytest.raises(InputError, match=r"result\.json is damaged: restore it, or train again"):
            folder.read_result()


@pytest.mark.parametrize("name", ["metrics.jsonl", "result.json"])
def test_a_folder_in_place_of_a_file_is_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match=f"{name} is damaged: restore it, or train again"):
        folder.read_metrics() if name == "metrics.jsonl" else folder.read_result()


def test_a_folder_that_weight_files_could_not_be_read_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose another --out"):
        RunFolder(tmp_path / os.fsdecode(b"\xff")).claim({}, resume=False)
    assert list(tmp_path.iterdir()) == []
