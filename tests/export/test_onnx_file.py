"""An exported file in onnxruntime: the same probabilities as PyTorch, without this package."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import triplee
from triplee.data.pool import Pool
from triplee.engine.classifier import Classifier
from triplee.export import onnx_file
from triplee.export.onnx_file import export_onnx
from triplee.nets.network import Network
from triplee.settings import InputError, make_recipe

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CONFIG = {"classes": list("0123456789"), "target": "street", "version": "0"}


@torch.no_grad()
def make_classifier(images: torch.Tensor, backbone: str = "digit-cnn", members: int = 2) -> Classifier:
    """Members that tell images apart: with their first weights all classes of all images are alike."""
    recipe = make_recipe({"backbone": backbone, "image_size": 32, "members": members, "supcon_weight": 0.0})
    torch.manual_seed(0)
    networks = [Network(recipe, 10).eval() for _ in range(members)]
    for network in networks:
        features = network.features(images)
        weight = torch.randn(10, features.shape[1])
        logits = features @ weight.T
        network.classifier.weight.copy_(2 * weight / logits.std(0)[:, None])
        network.classifier.bias.copy_(-2 * logits.mean(0) / logits.std(0))
    return Classifier(networks, recipe, CONFIG, epoch=1, temperature=1.4)


@pytest.fixture(scope="module")
def images(digits: Pool) -> torch.Tensor:
    """100 of all domains."""
    return digits.images_NCHW[torch.arange(0, len(digits), len(digits) // 100)[:100]]


@pytest.fixture(scope="module")
def ensemble(images: torch.Tensor) -> Classifier:
    return make_classifier(images)


@pytest.fixture(scope="module")
def file(ensemble: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    difference = export_onnx(ensemble, path)
    assert difference is not None and difference <= 1e-4
    return path


def run(path: Path, images: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {"images": images.numpy()})[0]


@torch.no_grad()
def assert_equal(path: Path, classifier: Classifier, images: torch.Tensor) -> None:
    expected = classifier(images).numpy()
    assert len(images) == 1 or expected.std(0).mean() > 0.05
    assert np.abs(run(path, images) - expected).max() <= 1e-4


def test_the_ensemble_gives_the_same_on_real_images_in_any_batch(
    ensemble: Classifier, file: Path, images: torch.Tensor
) -> None:
    for batch in (images[:1], images[:64], images):
        assert_equal(file, ensemble, batch)


def test_images_of_another_size_are_resized_inside(ensemble: Classifier, file: Path, images: torch.Tensor) -> None:
    larger = images[::9].repeat_interleave(3, 2).repeat_interleave(2, 3)
    assert_equal(file, ensemble, larger)
    assert_equal(file, ensemble, images[::9, :, :20, :9])


def test_one_member_by_itself_and_bfloat16_as_float32(
    ensemble: Classifier, images: torch.Tensor, tmp_path: Path
) -> None:
    member, path = ensemble.member(1), tmp_path / "member.onnx"
    member.precision = "bfloat16"  # as trained on a GPU
    export_onnx(member, path)
    assert_equal(path, ensemble.member(1), images[:64])
    with torch.no_grad():
        assert np.abs(run(path, images) - ensemble(images).numpy()).max() > 0.1


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet-v2"])
def test_backbones_with_batch_norm(backbone: str, images: torch.Tensor, tmp_path: Path) -> None:
    member = make_classifier(images, backbone, members=1)
    export_onnx(member, tmp_path / "member.onnx")
    assert_equal(tmp_path / "member.onnx", member, images[:64])


def test_the_file_needs_neither_this_package_nor_torch(file: Path) -> None:
    code = f"""
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession({str(file)!r}, providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
(outputs,) = session.run(None, {{"images": numpy.zeros((5, 3, 40, 30), numpy.uint8)}})
assert "triplee" not in sys.modules and "torch" not in sys.modules
print(outputs.shape, facts["classes"], facts["image_size"], facts["members"], facts["temperature"])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == f"(5, 10) {json.dumps(CONFIG['classes'])} 32 2 1.4\n"


def test_no_path_of_this_machine_is_in_the_file(file: Path) -> None:
    content = file.read_bytes()
    for module in (triplee, torch):
        package = Path(module.__file__).parent
        assert str(package.parent).encode() not in content and f"{package.name}/".encode() not in content


def test_nothing_is_overwritten_and_nothing_wrong_is_written(
    ensemble: Classifier, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"model\.onnx exists: choose another --out"):
        export_onnx(ensemble, file)
    monkeypatch.setattr(onnx_file, "TOLERANCE", -1.0)
    with pytest.raises(InputError, match=r"off PyTorch's probabilities: nothing was written"):
        export_onnx(ensemble, tmp_path / "wrong.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_one_line(
    ensemble: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert export_onnx(ensemble, tmp_path / "unchecked.onnx") is None
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"needs onnx and onnxscript .* pip install 'triplee\[onnx\]'"):
        export_onnx(ensemble, tmp_path / "model.onnx")
