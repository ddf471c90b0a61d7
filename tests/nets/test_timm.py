"""timm's models as backbones; those tests that need timm are skipped where it does not import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from triplee.nets.network import Network, build_network
from triplee.nets.weights import weights_fingerprint
from triplee.settings import InputError, Recipe, make_recipe

try:
    import timm
except Exception:  # a torchvision built for another torch raises RuntimeError
    timm = None
needs_timm = pytest.mark.skipif(timm is None, reason="timm cannot be imported")


def timm_recipe(name: str, **values: object) -> Recipe:
    return make_recipe({"backbone": f"timm:{name}", "image_size": 64, **values})


def refused(recipe: Recipe) -> str:
    with pytest.raises(InputError) as caught:
        build_network(recipe, 3, 0, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def images(num_views: int = 4, size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (num_views, 3, size, size), dtype=torch.uint8)


def test_without_timm_the_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    line = refused(timm_recipe("resnet18"))
    assert line.startswith("timm:resnet18 needs timm (") and line.endswith("pip install 'triplee[timm]'")


def test_a_timm_that_does_not_import_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("raise RuntimeError('operator x does not exist\\nmore')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    assert refused(timm_recipe("resnet18")) == (
        "timm:resnet18 needs timm, which cannot be imported (RuntimeError: operator x does not exist): "
        "pip install 'triplee[timm]' and a torchvision that fits this torch"
    )


# A plain network, one whose `num_features` (576) is not its pooled width (1024), and two of fixed input size.
@needs_timm
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("resnet18", 512),
        ("mobilenetv3_small_100", 1024),
        ("vit_tiny_patch16_224", 192),
        ("swin_tiny_patch4_window7_224", 768),
    ],
)
def test_models_train(name: str, width: int) -> None:
    network = build_network(timm_recipe(name), 3, 0, 0)
    assert network.backbone.num_features == width
    assert network.train().backbone.model.training
    logits, projection = network.forward_train(images())
    assert logits.shape == (4, 3) and projection is not None and projection.shape == (4, 128)
    (logits.sum() + projection.sum()).backward()
    assert next(network.backbone.parameters()).grad is not None


@needs_timm
def test_normalisation_is_the_models_own() -> None:
    network = Network(timm_recipe("vit_tiny_patch16_224.augreg_in21k_ft_in1k"), 3)
    assert network.backbone.mean == (0.5, 0.5, 0.5)
    assert Network(timm_recipe("resnet18"), 3).backbone.mean == (0.485, 0.456, 0.406)


@needs_timm
@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "ghostnet_100"])
def test_nothing_is_drawn_inside_a_step(name: str) -> None:
    """Both drop by default: paths, and features before the classifier."""
    network = build_network(timm_recipe(name), 3, 0, 0).train()
    views = images()
    with torch.no_grad():
        assert torch.equal(network.features(views), network.features(views))


@needs_timm
def test_members_and_seeds() -> None:
    one, again, other = (build_network(timm_recipe("resnet18"), 3, 0, k).state_dict() for k in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["backbone.model.conv1.weight"], other["backbone.model.conv1.weight"])


@needs_timm
def test_unknown_names_and_tags_are_one_line() -> None:
    assert refused(timm_recipe("resnet81")) == "unknown timm model 'resnet81': did you mean 'resnet18'?"
    assert refused(timm_recipe("hf-hub:someone/model")).startswith("unknown timm model 'hf-hub:someone/model': ")
    line = refused(timm_recipe("resnet18.tv_in1kk"))
    assert line == "unknown weights 'tv_in1kk' of timm model 'resnet18': did you mean 'tv_in1k'?"


@needs_timm
def test_a_size_that_does_not_fit_is_one_line() -> None:
    line = refused(timm_recipe("vit_tiny_patch16_224", image_size=15))
    assert line.startswith("image_size 15 does not fit timm:vit_tiny_patch16_224 (")


@needs_timm
@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "deit_tiny_distilled_patch16_224"])
def test_a_file_of_timms_loads_without_its_classifier(tmp_path: Path, name: str) -> None:
    """Classifiers have many names: fc, head.fc, head and head_dist."""
    path = tmp_path / "model.pth"
    stored = timm.create_model(name, pretrained=False, **({"img_size": 64} if "deit" in name else {})).state_dict()
    torch.save(stored, path)
    network = build_network(timm_recipe(name, weights=str(path)), 3, 0, 0)
    assert all(torch.equal(tensor, stored[key]) for key, tensor in network.backbone.model.state_dict().items())
    assert weights_fingerprint(timm_recipe(name, weights=str(path))) is not None
    torch.save({key: tensor for key, tensor in stored.items() if key != next(iter(stored))}, path)
    assert refused(timm_recipe(name, weights=str(path))).endswith(
        f"1 key missing ({next(iter(stored))}): it is not a timm:{name}"
    )


@needs_timm
def test_frozen_batch_norm(tmp_path: Path) -> None:
    path = tmp_path / "model.pth"
    torch.save(timm.create_model("efficientnet_b0", pretrained=False).state_dict(), path)
    network = build_network(timm_recipe("efficientnet_b0", weights=str(path), batch_norm="frozen"), 3, 0, 0)
    views = images()
    with torch.no_grad():
        assert torch.equal(network.train().features(views), network.eval().features(views))
    assert len(network.frozen) > 40 and not network.backbone.model.bn1.weight.requires_grad


@needs_timm
def test_offline_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: the hub reads its switches when it is imported."""
    code = (
        "from triplee.nets.network import build_network\n"
        "from triplee.settings import InputError, make_recipe\n"
        "try:\n"
        "    build_network(make_recipe({'backbone': 'timm:resnet18', 'weights': 'imagenet'}), 3, 0, 0)\n"
        "except InputError as error:\n"
        "    print(error)\n"
    )
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the imagenet weights of timm:resnet18 cannot be had (")
    assert done.stdout.count("\n") == 1 and "--weights FILE" in done.stdout
