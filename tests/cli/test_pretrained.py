"""Pretrained weights from the command line: where the file lies is kept in full, what it holds is watched."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from commands import Call, assert_refused

from triplee.nets.resnet import resnet18

SMALL = ["--recipe", "pacs-resnet18-vanilla"]
SMALL += [word for change in ("image_size=32", "epochs=1", "batch_size=64") for word in ("--set", change)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save({**resnet18().state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, path)
    return path


def test_a_run_knows_its_weights_wherever_they_lie(
    call: Call, small_folder: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    command = ["train", small_folder, "--target", "blue", "--out", out, *SMALL]
    monkeypatch.chdir(weights.parent)
    answer = call(*command, "--set", "weights=resnet18.pth")
    assert answer.returncode == 0, answer.stderr
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["recipe"]["weights"] == str(weights) and len(config["weights_fingerprint"]) == 32
    monkeypatch.chdir(tmp_path / "here")

    moved = shutil.copy(weights, tmp_path / "moved.pth")
    assert call(*command, "--weights", moved, "--resume").returncode == 0  # it is finished, and the same
    tensors = torch.load(weights, weights_only=True)
    tensors["conv1.weight"][0] += 1
    torch.save(tensors, moved)
    assert_refused(call(*command, "--weights", moved, "--resume"), "was started differently", "weights")
    weights.unlink()
    assert call("evaluate", out).returncode == 0  # a trained run needs them no more


def test_a_file_that_is_not_there_is_one_line_and_leaves_nothing(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    command = ["train", small_folder, "--target", "blue", "--out", tmp_path / "run", *SMALL]
    assert_refused(call(*command, "--weights", tmp_path / "gone.pth"), "gone.pth")
    assert not (tmp_path / "run").exists()
