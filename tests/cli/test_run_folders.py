"""Run folders that are not what they should be: occupied, damaged, of another version, of another run."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import ONE_EPOCH, Call, TrainedRun, assert_refused, contents, copy_of, train_command

from triplee import __version__


def test_an_occupied_folder_is_refused_and_untouched(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    def refused(out: Path, *words: str, extra: tuple[str, ...] = (), **changes: object) -> None:
        before = contents(tmp_path)
        assert_refused(call(*train_command(small_folder, out, **changes), *extra), str(out), *words)
        assert contents(tmp_path) == before

    for name, run in (("old", finished), ("cut", unfinished)):
        shutil.copytree(run.path, tmp_path / name)
    refused(tmp_path / "old", "holds a finished run (digits-triplee-fourier)", "choose another --out")
    refused(tmp_path / "cut", "holds an unfinished run", "add --resume, or choose another --out")
    resume = ("--resume",)
    refused(tmp_path / "cut", "started differently", "lr: 0.01 → 0.5", extra=resume, lr=0.5)
    refused(tmp_path / "cut", "epochs: 4 → 9", extra=resume, epochs=9)
    refused(tmp_path / "old", "members: 2 → 3", extra=resume, members=3)
    refused(tmp_path / "cut", "seed: 0 → 4", extra=(*resume, "--seed", "4"))
    refused(tmp_path / "cut", "target: blue → red", extra=(*resume, "--target", "red"))
    refused(tmp_path / "cut", "recipe_name: digits-triplee-fourier → digits-d", extra=(*resume, "--recipe", "digits-d"))
    for file in ("thesis.tex", ".bashrc", "state/notes.txt"):
        folder = tmp_path / file.replace("/", "-").strip(".")
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("years of work")
        refused(folder, "is not empty and no run folder: choose another --out")
        refused(folder / file, "is a file: choose another --out")
        refused(folder / file / "run", "cannot write")
    refused(tmp_path / "nowhere", "holds no run to resume", "leave out --resume", extra=resume)
    assert not (tmp_path / "nowhere").exists()


def test_other_data_in_the_same_place_are_noticed(
    call: Call, small_folder: Path, unfinished: TrainedRun, tmp_path: Path
) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), copy_of(unfinished, tmp_path)
    (data / "red" / "down" / "00.png").unlink()
    before = contents(out)
    assert_refused(call(*train_command(data, out), "--resume"), "was started differently", "data_fingerprint")
    assert contents(out) == before


def test_a_run_is_the_same_whether_a_bad_image_is_skipped_or_gone(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), tmp_path / "run"
    train = ["train", data, "--target", "blue", "--out", out, *ONE_EPOCH]
    bad, good = data / "red" / "down" / "00.png", data / "red" / "down" / "01.png"
    bad.write_text("no image")
    answer = call(*train, "--skip-bad")
    assert answer.returncode == 0
    bad.unlink()
    assert call(*train, "--resume").stdout == answer.stdout
    assert call("fuse", out, "--how", "soup", "--out", tmp_path / "soup").returncode == 0
    page = call("report", out, "--out", tmp_path / "report.html")
    assert page.returncode == 0 and "has changed since" not in (tmp_path / "report.html").read_text()
    good.unlink()
    assert_refused(call(*train, "--resume"), "was started differently (data_fingerprint: ")


def test_an_unfinished_run_is_used_with_a_word_and_not_passed_on(
    call: Call, small_folder: Path, unfinished: TrainedRun, tmp_path: Path
) -> None:
    run, image = unfinished.path, small_folder / "red" / "down" / "00.png"
    line = f"triplee: %s{run} is not finished, epoch 1 of 4 so far: let it end, or go on with --resume%s\n"
    for command in (["predict", run, image], ["evaluate", run]):
        answer = call(*command)
        assert answer.returncode == 0 and len(answer.stdout.splitlines()) == 2
        assert answer.stderr == line % ("warning: ", "; until then its best epoch, 1, is used, uncalibrated")
    out = tmp_path / "out"
    for verb in ("export --format hub", "export --format onnx --member 0", "fuse --how soup", "fuse --how distill"):
        assert_refused(call(*verb.split(), run, "--out", out), line % ("", ""))
    assert not out.exists()


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    changed = {
        "empty": b"",
        "cut in half": content[: len(content) // 2],
        "one byte short": content[:-1],
        "zeros": bytes(len(content)),
        "words": b"years of work",
    }
    path.write_bytes(changed[kind])


@pytest.mark.parametrize("kind", ["empty", "cut in half", "one byte short", "zeros", "words"])
def test_a_damaged_file_of_a_run_is_named(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path, kind: str
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    out = copy_of(unfinished, tmp_path)
    damage(out / "best" / "member-1.safetensors", kind)
    for command in (["predict", out, image], ["evaluate", out]):
        assert_refused(call(*command), "member-1.safetensors is damaged", "restore it, or train again")
    damage(out / "state" / "last.safetensors", kind)
    before = contents(out)
    assert_refused(call(*train_command(small_folder, out), "--resume"), "last.safetensors is damaged", "train again")
    assert contents(out) == before
    whole = copy_of(finished, tmp_path / "whole")
    if kind != "one byte short":  # the line end of a text file
        damage(whole / "result.json", kind)
        assert_refused(call(*train_command(small_folder, whole), "--resume"), "result.json is damaged", "train again")
        damage(whole / "config.yaml", kind)
        for command in (["predict", whole, image], ["evaluate", whole], train_command(small_folder, whole)):
            assert_refused(call(*command), "config.yaml is damaged", "restore it, or train again")


def test_flipped_bits_never_end_in_a_traceback(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    rng = random.Random(0)
    image = small_folder / "red" / "down" / "00.png"
    cut, whole = copy_of(unfinished, tmp_path), copy_of(finished, tmp_path / "whole")
    resume = [*train_command(small_folder, whole), "--resume"]
    cases: list[tuple[Path, list[Any], set[int]]] = [
        (cut / "state" / "last.safetensors", [*train_command(small_folder, cut), "--resume"], {2}),
        (cut / "best" / "member-0.safetensors", ["predict", cut, image], {2}),
        (whole / "config.yaml", ["predict", whole, image], {0, 2}),  # the name of a class may become another
        (whole / "config.yaml", resume, {0, 2}),
        (whole / "result.json", resume, {0, 2}),
    ]
    for file, command, codes in cases:
        content = file.read_bytes()
        end = len(content)
        if file.suffix == ".safetensors":
            end = 2 * int.from_bytes(content[:8], "little")  # half of the flips in the header
        for _ in range(25):
            position = rng.randrange(end)
            flipped = content[position] ^ 1 << rng.randrange(8)
            file.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
            answer = call(*command)
            assert answer.returncode in codes, (file, position, flipped)
            if answer.returncode == 2:
                assert_refused(answer)
        file.write_bytes(content)


def test_checkpoints_of_another_version_and_of_other_runs_are_named(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    out = copy_of(unfinished, tmp_path)
    resume, predict = [*train_command(small_folder, out), "--resume"], ["predict", out, image]
    state, best, config = out / "state" / "last.safetensors", out / "best" / "member-0.safetensors", out / "config.yaml"
    whole = {path: path.read_bytes() for path in (state, best, config, out / "metrics.jsonl")}

    def refused(command: list[Any], *words: str) -> None:
        before = contents(out)
        assert_refused(call(*command), *words)
        assert contents(out) == before
        for path, content in whole.items():
            path.write_bytes(content)

    for path, command in ((state, resume), (best, predict)):
        path.write_bytes(whole[path].replace(b'\\"format\\": 1', b'\\"format\\": 2', 1))
        refused(command, f"{path} is of format 2, this version reads 1: train again")
    for command in (resume, predict):
        config.write_text(config.read_text().replace("format: 1", "format: 7"))
        refused(command, f"{out} is of format 7 (triplee {__version__}), this version reads 1")
    state.write_bytes(whole[best])
    refused(resume, f"{state} belongs to another run")
    best.write_bytes((finished.path / "best" / "member-0.safetensors").read_bytes())
    refused(predict, "was cut off while saving its best epoch", "--resume")
    config.write_text(config.read_text().replace("- down\n", ""))
    refused(predict, f"{best} does not fit the run's recipe")
    config.write_text(config.read_text().replace("members: 2", "members: 3"))
    refused(predict, "member-2.safetensors is missing")
    config.write_text(config.read_text().replace("members: 2", "members: none"))
    refused(predict, f"{config} is damaged (recipe key 'members'")
    for content in (b"", whole[out / "metrics.jsonl"].replace(b"val_accuracy", b"val_accuracz")):
        (out / "metrics.jsonl").write_bytes(content)
        refused(resume, "metrics.jsonl has lost lines: restore it, or train again")
    best.unlink()
    refused(predict, f"{best} is missing: the run has not got that far")
