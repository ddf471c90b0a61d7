"""`triplee style fit` and `show`, and training with the style op, from the command line."""

from pathlib import Path

import numpy as np
import pytest
from commands import Call, assert_refused
from PIL import Image

from triplee.engine import style_fit

TRAIN = ["--recipe", "digits-triplee-style", "--set", "image_size=16", "--set", "epochs=1", "--set", "members=2"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def fitted(call: Call, small_folder: Path, tmp_path: Path) -> Path:
    out = tmp_path / "own.safetensors"
    options = ["--target", "blue", "--encoder", "small", "--size", 16, "--steps", 3, "--out", out]
    answer = call("style", "fit", small_folder, *options)
    assert answer.returncode == 0 and f"{out}: fitted on green, red" in answer.stdout, answer
    assert "dB" in answer.stdout and f"--set stylizer={out}" in answer.stdout
    again = call("style", "fit", small_folder, *options)
    assert "was fitted before" in again.stdout
    return out


def test_fit_then_train_then_show(call: Call, small_folder: Path, tmp_path: Path, fitted: Path) -> None:
    run = tmp_path / "run"
    train = ["train", small_folder, "--target", "blue", *TRAIN, "--set", f"stylizer={fitted}", "--out", run]
    answer = call(*train)
    assert answer.returncode == 0 and "fitting" not in answer.stderr, answer
    for what in (fitted, run):
        picture = tmp_path / f"{what.stem}.png"
        answer = call("style", "show", what, "--data", small_folder, "--out", picture)
        assert answer.returncode == 0 and f"{picture}: 4 contents in 4 styles" in answer.stdout, answer
        with Image.open(picture) as opened:
            colours = np.unique(np.asarray(opened.convert("RGB")).reshape(-1, 3), axis=0)
            assert opened.width > 300 and len(colours) > 100
    answer = call("style", "show", fitted, "--content", "red", "--style", "green,blue", "--out", tmp_path / "c.png")
    assert f"{tmp_path / 'c.png'}: 2 contents in 4 styles" in answer.stdout


def test_a_recipe_with_style_fits_one_and_says_so(
    call: Call, small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(style_fit, "STEPS", 2)
    run = tmp_path / "run"
    answer = call("train", small_folder, "--target", "blue", *TRAIN, "--out", run)
    assert answer.returncode == 0 and "fitting a stylizer on green, red (small encoder)" in answer.stderr, answer
    assert call("style", "show", run, "--out", tmp_path / "own.png").returncode == 0


def test_bad_input_is_one_line(call: Call, small_folder: Path, tmp_path: Path, fitted: Path) -> None:
    fit = ["style", "fit", small_folder, "--size", 16, "--steps", 1]
    assert_refused(call(*fit, "--encoder", "smal"), "unknown encoder 'smal'", "small")
    assert_refused(call(*fit, "--encoder", "vgg19"), "vgg_normalised.pth")
    assert_refused(call(*fit, "--encoder", "vgg19", "--weights", tmp_path / "none.pth"), "none.pth", "does not exist")
    assert_refused(call(*fit, "--encoder", "small", "--target", "blu"), "unknown target 'blu'", "'blue'")
    assert_refused(call(*fit, "--encoder", "small", "--weights", tmp_path / "none.pth"), "--weights", "small")
    assert_refused(call("style", "fit", "digits", "--weights", tmp_path / "none.pth"), "--weights", "--encoder")
    assert_refused(call("style", "fit", tmp_path / "nowhere"), "nowhere", "neither a known name nor an existing folder")
    assert_refused(call("style", "show", tmp_path / "none.safetensors"), "does not exist")
    large = ["--data", "digits", "--size", 1024, "--out", tmp_path / "large.png"]
    assert_refused(call("style", "show", fitted, *large), "the embedded digits have 32 px", "at most 256")
    assert_refused(call("style", "show", fitted, "--out", tmp_path / "grid.jpg"), "grid.jpg", ".png")
    assert_refused(call("style", "show", fitted, "--content", "purple"), "unknown domain 'purple'")
    fitted.write_bytes(fitted.read_bytes()[:500])
    train = ["train", small_folder, "--target", "blue", *TRAIN, "--out", tmp_path / "run"]
    assert_refused(call(*train, "--set", f"stylizer={fitted}"), str(fitted), "damaged")
    assert not (tmp_path / "run").exists()
    assert_refused(call("train", small_folder, "--target", "blue", "--set", "ops=styles"), "recipe key 'ops'")


def test_a_run_without_style_has_none_to_show(call: Call, small_folder: Path, tmp_path: Path) -> None:
    options = ["--set", "image_size=16", "--set", "epochs=1", "--recipe", "digits-vanilla", "--out", tmp_path / "run"]
    assert call("train", small_folder, "--target", "blue", *options).returncode == 0
    assert_refused(call("style", "show", tmp_path / "run"), "without the style op")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("ops: fourier", "ops: furier"))
    assert_refused(call("style", "show", tmp_path / "run"), str(tmp_path / "run"), "recipe key 'ops'")
