"""Export and fuse, as commands on a real run: what they write is used like the run itself, or nothing is written."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from commands import Call, TrainedRun, assert_refused, contents

import triplee
from triplee.data.pool import Pool
from triplee.runfolder import RunFolder, read_tensors


@pytest.fixture(scope="module")
def hub(finished: TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from triplee.export.hub import export_hub

    folder = tmp_path_factory.mktemp("hub") / "model"
    export_hub(triplee.load(finished.path, "cpu"), folder)
    return folder


def test_an_onnx_file_of_a_run(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    out = tmp_path / "model.onnx"
    answer = call("export", finished.path, "--format", "onnx", "--out", out)
    line = rf"{re.escape(str(out))}: images uint8 \(N,3,H,W\) → probabilities \(N,3\), within \de-\d\d of PyTorch\n"
    assert re.fullmatch(line, answer.stdout) and (answer.returncode, answer.stderr) == (0, "") and out.is_file()
    assert_refused(call("export", finished.path, "--format", "onnx", "--out", out), f"{out} exists")
    answer = call("export", finished.path, "--format", "onnx", "--out", tmp_path / "x.onnx", "--member", "2")
    assert_refused(answer, "member 2 does not exist: members are counted from 0 to 1")


def test_a_folder_for_the_hub_is_loaded_back_and_used_like_the_run(
    call: Call, finished: TrainedRun, small_folder: Path, small: Pool, hub: Path
) -> None:
    run, again = triplee.load(finished.path, "cpu"), triplee.load(hub, "cpu")
    run.precision = "float32"
    images = small.images_NCHW[:40]
    with torch.inference_mode():
        assert torch.equal(again(images), run(images))
    assert (again.classes, again.epoch, again.temperature) == (run.classes, run.epoch, run.temperature)
    said = json.loads(call("predict", hub, small_folder / "blue", "--format", "json").stdout)
    expected = json.loads(call("predict", finished.path, small_folder / "blue", "--format", "json").stdout)
    assert [(r["image"], r["class"]) for r in said] == [(r["image"], r["class"]) for r in expected]
    _, *rows = call("evaluate", hub, "--data", small_folder).stdout.splitlines()
    assert len(rows) == 3
    assert_refused(call("evaluate", hub), f"does not know where {small_folder.name!r} lies: give it with --data")


def test_the_folder_says_what_it_is_and_nothing_of_this_machine(hub: Path, finished: TrainedRun) -> None:
    files = contents(hub)
    assert files.keys() == {"README.md", "config.json", "model.safetensors", "preprocessor_config.json"}
    result = RunFolder(finished.path).read_result()
    _, header, card = files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "image-classification"
    assert f"| blue, never seen | {result['accuracy']:.2f} % |" in card and "across, down, slanting" in card
    config = json.loads(files["config.json"])
    assert config["id2label"] == {"0": "across", "1": "down", "2": "slanting"}
    assert config["result"]["calibration"] == result["calibration"]
    preprocessing = json.loads(files["preprocessor_config.json"])
    assert preprocessing["size"] == {"height": 16, "width": 16} and preprocessing["image_mean"] == [0.5, 0.5, 0.5]
    assert not [name for name in read_tensors(hub / "model.safetensors")[0] if "head" in name]
    for content in files.values():
        assert b"/tmp" not in content and str(Path.home()).encode() not in content


def test_one_member_for_the_hub(call: Call, finished: TrainedRun, tmp_path: Path, small: Pool) -> None:
    answer = call("export", finished.path, "--format", "hub", "--member", "1", "--out", tmp_path / "one")
    assert answer.returncode == 0 and f"hf upload YOU/run-member-1 {tmp_path / 'one'}" in answer.stdout
    one, run = triplee.load(tmp_path / "one", "cpu"), triplee.load(finished.path, "cpu").member(1)
    run.precision = "float32"
    assert one.num_members == 1 and one.temperature == 1
    with torch.inference_mode():
        assert torch.equal(one(small.images_NCHW[:9]), run(small.images_NCHW[:9]))
    answer = call("export", finished.path, "--format", "hub", "--out", tmp_path / "one")
    assert_refused(answer, "one exists and is not an empty folder: choose another --out")


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_damaged_or_newer_folder_is_named(
    call: Call, hub: Path, small_folder: Path, tmp_path: Path, file: str
) -> None:
    folder = Path(shutil.copytree(hub, tmp_path / "model"))
    image = small_folder / "red" / "down" / "00.png"
    whole = (folder / file).read_bytes()
    (folder / file).write_bytes(whole[: len(whole) // 2])
    assert_refused(call("predict", folder, image), f"{folder / file} is damaged")
    assert_refused(call("export", folder, "--format", "onnx", "--out", tmp_path / "x"), f"{folder / file} is damaged")
    if file == "config.json":
        (folder / file).write_bytes(whole.replace(b'"format": 1', b'"format": 9'))
        assert_refused(call("predict", folder, image), f"{folder} is of format 9", "use that version")
        (folder / file).write_bytes(whole.replace(b'"temperature": ', b'"temperature": -', 1))
        assert_refused(call("predict", folder, image), "config.json is damaged")
    else:
        (folder / file).unlink()
        assert_refused(call("predict", folder, image), "model.safetensors is missing")


def test_what_cannot_be_exported_or_fused_is_one_line(
    call: Call, finished: TrainedRun, small_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for verb in (["export", "--format", "hub"], ["fuse", "--how", "soup"]):
        for folder in (tmp_path / "empty", tmp_path / "nowhere"):
            assert_refused(call(*verb, folder, "--out", tmp_path / "out"), f"{folder} is not a run folder")
    moved = Path(shutil.copytree(finished.path, tmp_path / "moved"))
    config = yaml.safe_load((moved / "config.yaml").read_text())
    (moved / "config.yaml").write_text(yaml.safe_dump({**config, "data": str(tmp_path / "gone")}))
    line = f"the data of {moved} are no longer in {tmp_path / 'gone'}"
    assert_refused(call("fuse", moved, "--how", "soup", "--out", tmp_path / "out"), line)
    assert_refused(call("evaluate", moved), line, "--data")
    fewer = Path(shutil.copytree(small_folder, tmp_path / "gone", ignore=shutil.ignore_patterns("0*.png")))
    answer = call("fuse", moved, "--how", "distill", "--out", tmp_path / "out")
    assert_refused(answer, f"{fewer} has changed since {moved} was trained on it")
    assert call("evaluate", moved, "--data", small_folder).returncode == 0
    assert_refused(call("fuse", finished.path, "--how", "broth"), "'soup', 'distill'")
    assert_refused(call("fuse", finished.path, "--how", "distill", "--set", "epoch=3"), "did you mean 'epochs'?")
    assert not (tmp_path / "out").exists()


def test_a_soup_is_the_average_of_the_members_and_a_run(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    out = tmp_path / "soup"
    answer = call("fuse", finished.path, "--how", "soup", "--out", out)
    assert answer.returncode == 0
    assert answer.stderr.startswith("triplee: warning: the members share no pretrained start")
    header, ensemble, soup, last = answer.stdout.splitlines()
    assert header.split("\t") == ["network", "target blue", "source val", "weights", "images/s"]
    result, own = RunFolder(finished.path).read_result(), RunFolder(out).read_result()
    assert ensemble.split("\t")[:3] == [
        "ensemble of 2",
        f"{result['accuracy']:.2f} %",
        f"{result['val_accuracy']:.2f} %",
    ]
    assert soup.split("\t")[:3] == ["soup", f"{own['accuracy']:.2f} %", f"{own['val_accuracy']:.2f} %"]
    assert last == f"{out}: a run of one member" and own["recipe"] == "digits-triplee-fourier-soup"
    one, two, mean = (
        read_tensors(path)[0]
        for path in (
            *(finished.path / "best" / f"member-{k}.safetensors" for k in (0, 1)),
            out / "best" / "member-0.safetensors",
        )
    )
    assert mean.keys() == {name for name in one if not name.startswith("head.")}
    assert all(torch.allclose(mean[name], (one[name] + two[name]) / 2) for name in mean)
    _, row = call("evaluate", out).stdout.splitlines()
    assert row.split("\t")[3] == f"{own['accuracy']:.2f} %"
    assert_refused(call("fuse", out, "--how", "soup"), f"{out} has one member: there is nothing to fuse")
    assert_refused(call("fuse", finished.path, "--how", "soup", "--out", out), f"{out} holds a finished run")


def test_a_student_learns_from_the_ensemble_resumes_and_is_a_run(
    call: Call, finished: TrainedRun, tmp_path: Path, small_folder: Path
) -> None:
    out = tmp_path / "student"
    command = ["fuse", finished.path, "--how", "distill", "--out", out, "--set", "epochs=2", "--set", "batch_size=4"]
    answer = call(*command)
    assert answer.returncode == 0 and "digits-triplee-fourier → one network  epoch 2/2" in answer.stderr
    own = RunFolder(out).read_result()
    assert answer.stdout.splitlines()[2].split("\t")[:2] == ["distill", f"{own['accuracy']:.2f} %"]
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["teacher"] == str(finished.path) and config["recipe"]["members"] == 1
    assert own["calibration"]["temperature"] > 0 and len(RunFolder(out).read_metrics()) == 2
    again = call(*command, "--resume")
    assert (
        again.returncode == 0 and again.stderr == "" and again.stdout.splitlines()[-1] == answer.stdout.splitlines()[-1]
    )
    assert_refused(call(*command), f"{out} holds a finished run")
    assert_refused(call(*command[:-1], "batch_size=5", "--resume"), "batch_size: 4 → 5")
    assert call("predict", out, small_folder / "red" / "down").returncode == 0
