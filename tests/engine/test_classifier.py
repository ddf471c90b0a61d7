"""A loaded run as a module: its preprocessing is that of files, its numbers are those of the members."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from observing import Silent
from PIL import Image

import triplee
from triplee.data.decode import BadImage, decode_image
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.calibration import calibration_error, temper
from triplee.engine.classifier import Classifier
from triplee.engine.train import train_run
from triplee.settings import InputError, make_recipe

RECIPE = make_recipe({"image_size": 16, "epochs": 2, "members": 2, "batch_size": 8, "replay": 2, "lr": 0.01})


@pytest.fixture(scope="module")
def run(small: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    train_run(small, split_pool(small, "blue", 0), RECIPE, out=out, observer=Silent(), device=torch.device("cpu"))
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> Classifier:
    return triplee.load(str(run), "cpu")


@pytest.fixture
def pictures(tmp_path: Path) -> Iterator[list[Path]]:
    """Smooth photographs of three shapes, none of the network's."""
    y, x = np.mgrid[:60, :80]
    photo = np.stack([128 + 100 * np.sin(x / 9 + k) * np.cos(y / (7 + k)) for k in range(3)], 2).astype(np.uint8)
    paths = []
    for name, shape in (("wide.png", (40, 80)), ("tall.bmp", (60, 20)), ("small.png", (9, 11))):
        paths.append(tmp_path / name)
        Image.fromarray(photo[: shape[0], : shape[1]]).save(paths[-1])
    yield paths


def test_outputs_are_the_calibrated_mean_of_the_members(model: Classifier, run: Path, small: Pool) -> None:
    result = json.loads((run / "result.json").read_text())
    assert model.classes == ["across", "down", "slanting"] and not model.training and model.num_members == 2
    assert model.temperature == result["calibration"]["temperature"] != 1
    images = small.images_NCHW[:70]
    members = model.probabilities(images, np.arange(70))
    with torch.inference_mode():
        probabilities = model(images)
    assert torch.allclose(probabilities, temper(members.mean(0), model.temperature), atol=1e-5)
    predictions = model.predict(images)  # more than a batch
    assert len(predictions) == 70
    for k, prediction in enumerate(predictions):
        assert prediction.label == model.classes[int(members[:, k].mean(0).argmax())]
        votes = [model.classes[c] != prediction.label for c in members[:, k].argmax(1).tolist()]
        assert prediction.disagreement == sum(votes) / 2
        assert prediction.confidence == pytest.approx(float(probabilities[k].max()), abs=1e-5)


def test_the_result_says_how_far_confidence_is_off(model: Classifier, run: Path, small: Pool) -> None:
    calibration = json.loads((run / "result.json").read_text())["calibration"]
    target_N = split_pool(small, "blue", 0).target_N
    labels = torch.from_numpy(small.labels_N[target_N])
    before = model.probabilities(small.images_NCHW, target_N).mean(0)
    assert calibration["target_error_before"] == pytest.approx(calibration_error(before, labels), abs=1e-3)
    after = temper(before, model.temperature)
    assert calibration["target_error"] == pytest.approx(calibration_error(after, labels), abs=1e-3)


def test_files_pillow_images_and_tensors_are_seen_alike(model: Classifier, pictures: list[Path]) -> None:
    opened = [Image.open(path) for path in pictures]
    tensors = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in opened]
    for path, tensor in zip(pictures, tensors, strict=True):
        by_pillow = decode_image(path, 16).astype(int)
        resized = model.resize(tensor[None])[0]
        assert np.abs(resized.numpy() - by_pillow).max() <= 1
    files = model.predict(pictures)
    assert model.predict(opened) == files
    for one, other in zip([model.predict(str(path))[0] for path in pictures], files, strict=True):
        # Another number of images is added up in another order on some chips.
        assert (one.label, one.disagreement) == (other.label, other.disagreement)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-6)
    for given in (tensors, [pictures[0], opened[1], tensors[2]]):
        for one, other in zip(model.predict(given), files, strict=True):
            assert one.label == other.label and one.confidence == pytest.approx(other.confidence, abs=0.02)
    assert model.predict(tensors[0]) == model.predict(tensors[:1]) and model.predict([]) == []
    assert model(tensors[0][None].expand(3, -1, -1, -1)).shape == (3, 3)


def test_what_is_no_image_is_refused(model: Classifier, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("no image")
    with pytest.raises(BadImage, match=r"cannot read image .*x\.png: not an image"):
        model.predict(tmp_path / "x.png")
    with pytest.raises(BadImage, match=r"in memory: 20000 × 20000 is over 100 megapixels"):
        model.predict(Image.new("1", (20_000, 20_000)))
    grey = torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    for wrong in (torch.zeros(3, 16, 16), grey[0], np.zeros((16, 16, 3), np.uint8)):
        with pytest.raises(InputError, match="images are uint8 tensors of shape"):
            model.predict(wrong)  # type: ignore[arg-type]
    for wrong in (torch.rand(2, 3, 16, 16), grey, grey.expand(2, 3, 16, 16)[0], np.zeros((2, 3, 16, 16), np.uint8)):
        with pytest.raises(InputError, match=r"takes images as a uint8 tensor of shape \(N,3,H,W\), not "):
            model(wrong)


def test_pieces_that_cannot_work_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="precision is float32 or bfloat16, not 'flaot32'"):
        triplee.load(run, "cpu").precision = "flaot32"
    with pytest.raises(InputError, match="an ensemble has at least one model"):
        triplee.Ensemble([])
    for temperature in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="the temperature is above 0, not"):
            triplee.SupConLoss(temperature)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="no CUDA device is available"):
        triplee.load(run, "cuda")


def test_a_run_without_calibration_predicts_as_it_is(run: Path, tmp_path: Path, small: Pool) -> None:
    old = tmp_path / "old"
    (old / "best").mkdir(parents=True)
    for name in ("config.yaml", "best/member-0.safetensors", "best/member-1.safetensors"):
        (old / name).write_bytes((run / name).read_bytes())
    with pytest.warns(UserWarning, match=r"old is not finished, .*; until then its best epoch, \d, is used"):
        model = triplee.load(old, "cpu")
    images = small.images_NCHW[:5]
    assert model.temperature == 1
    assert torch.allclose(model(images), model.probabilities(images, np.arange(5)).mean(0), atol=1e-5)
