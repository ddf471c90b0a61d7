"""Weight files of every kind, good and hostile, and torch's hub cache against a real server."""

import errno
import functools
import hashlib
import http.server
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from triplee.nets import weights
from triplee.nets.network import build_network, make_backbone
from triplee.nets.resnet import resnet18
from triplee.nets.weights import load_weights, weights_fingerprint
from triplee.settings import InputError, Recipe, make_recipe


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """A ResNet-18 with a classifier, as torchvision stores it; its values survive fp16."""
    torch.manual_seed(1)
    network = {
        name: tensor.half().float() if tensor.is_floating_point() else tensor + 7
        for name, tensor in resnet18().state_dict().items()
    }
    return {**network, "fc.weight": torch.randn(1000, 512), "fc.bias": torch.randn(1000)}


def recipe_for(path: Path, **values: object) -> Recipe:
    return make_recipe({"backbone": "resnet18", "weights": str(path), **values})


def loaded(path: Path) -> dict[str, Tensor]:
    backbone = resnet18()
    load_weights(backbone, recipe_for(path))
    return backbone.state_dict()


def refused(path: Path, **values: object) -> str:
    with pytest.raises(InputError) as caught:
        build_network(recipe_for(path, **values), 3, 0, 0)
    line = str(caught.value)
    assert "\n" not in line
    return line


Tensors = dict[str, Tensor]
WRAPPINGS: dict[str, Callable[[Tensors], object]] = {
    "plain": lambda t: t,
    "state_dict": lambda t: {"state_dict": t, "epoch": 90, "arch": "resnet18"},
    "model": lambda t: {"model": t, "optimizer": {"lr": 0.1}},
    "module.": lambda t: {"state_dict": {f"module.{name}": tensor for name, tensor in t.items()}},
    "no fc": lambda t: {name: tensor for name, tensor in t.items() if not name.startswith("fc.")},
    "fp16": lambda t: {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in t.items()},
    "parameters": lambda t: {name: nn.Parameter(t[name], requires_grad=t[name].is_floating_point()) for name in t},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_pytorch_files_load(tmp_path: Path, tensors: Tensors, wrapping: str) -> None:
    path = tmp_path / ("file.pt" if wrapping == "model" else "file.pth")
    torch.save(WRAPPINGS[wrapping](tensors), path)
    for name, tensor in loaded(path).items():
        assert torch.equal(tensor, tensors[name]) and tensor.dtype == tensors[name].dtype, name


@pytest.mark.parametrize("wrapping", ["plain", "no fc", "fp16"])
def test_safetensors_load(tmp_path: Path, tensors: Tensors, wrapping: str) -> None:
    path = tmp_path / "file.safetensors"
    safetensors.torch.save_file(WRAPPINGS[wrapping](tensors), path)  # type: ignore[arg-type]
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in loaded(path).items())


def test_old_files_load(tmp_path: Path, tensors: Tensors) -> None:
    """From before zip archives and before batch norm counted batches."""
    path = tmp_path / "old.pth"
    old = {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}
    torch.save(old, path, _use_new_zipfile_serialization=False)
    found = loaded(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in old.items() if not name.startswith("fc."))
    assert found["bn1.num_batches_tracked"] == 0


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "file.pth"
    torch.save(tensors, path)
    assert torch.equal(loaded(path)["conv1.weight"], tensors["conv1.weight"])
    torch.save({**tensors, "conv1.weight": tensors["conv1.weight"] + 1}, path)
    os.utime(path, ns=(1, 1))
    assert torch.equal(loaded(path)["conv1.weight"], tensors["conv1.weight"] + 1)


def test_missing_and_surplus_keys_are_named_and_counted(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "file.pth"
    renamed = {name.replace("layer4.1.bn2.", "layer4.1.norm."): tensor for name, tensor in tensors.items()}
    del renamed["conv1.weight"]
    torch.save(renamed, path)
    assert refused(path) == (
        f"weights {path}: 5 keys missing (conv1.weight, layer4.1.bn2.weight, layer4.1.bn2.bias, …), "
        "5 surplus (layer4.1.norm.weight, layer4.1.norm.bias, layer4.1.norm.running_mean, …): it is not a resnet18"
    )


def test_another_shape_is_named(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "grey.pth"
    torch.save({**tensors, "conv1.weight": torch.zeros(64, 1, 7, 7)}, path)
    assert refused(path) == (
        f"weights {path}: 1 of another shape (conv1.weight 64×1×7×7, not 64×3×7×7): it is not a resnet18"
    )


def test_another_network_is_refused(tmp_path: Path, tensors: Tensors) -> None:
    path = tmp_path / "resnet18.pth"
    torch.save(tensors, path)
    assert refused(path, backbone="resnet50").endswith("it is not a resnet50")
    assert refused(path, backbone="digit-cnn").endswith("it is not a digit-cnn")


def torchvisions(backbone: str) -> tuple[dict[str, Tensor], str]:
    """All that torchvision stores of such a network, and the layer that is left out."""
    own = make_backbone(make_recipe({"backbone": backbone, "image_size": 32}))
    layer = {"resnet50": "fc", "mobilenet-v2": "classifier.1"}[backbone]
    classifier = {f"{layer}.weight": torch.zeros(1000, own.num_features), f"{layer}.bias": torch.zeros(1000)}
    return {**own.state_dict(), **classifier}, layer


@pytest.mark.parametrize("backbone", ["resnet50", "mobilenet-v2"])
def test_the_classifier_is_left_out_whatever_its_name(tmp_path: Path, backbone: str) -> None:
    whole, layer = torchvisions(backbone)
    torch.save(whole, tmp_path / "whole.pth")
    network = build_network(recipe_for(tmp_path / "whole.pth", backbone=backbone), 3, 0, 0)
    found = network.backbone.state_dict()
    assert whole.keys() - found.keys() == {f"{layer}.weight", f"{layer}.bias"}
    assert all(torch.equal(found[name], whole[name]) for name in found)
    assert "it is not a resnet18" in refused(tmp_path / "whole.pth")


class Runs:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("as_torch_file", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, as_torch_file: bool) -> None:
    path, trace = tmp_path / "code.pth", tmp_path / "trace"
    if as_torch_file:
        torch.save({"conv1.weight": Runs(trace)}, path)
    else:
        path.write_bytes(pickle.dumps({"conv1.weight": Runs(trace)}, protocol=2))
    line = refused(path)
    assert not trace.exists()
    assert line == (
        f"{path} holds code or objects beside tensors ({os.mkdir.__module__}.mkdir), which is not loaded: "
        "save its state_dict() alone"
    )


def test_a_whole_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(resnet18(), path)
    assert "triplee.nets.resnet.ResNet" in refused(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text.pth", b"hello\n"),
        ("empty.pth", b""),
        ("zip.pt", b"PK\x03\x04" + bytes(100)),
        ("noise.pt", bytes(range(256))),
    ],
)
def test_files_that_hold_no_weights(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert refused(path) == f"{path} is no PyTorch weight file, or a damaged one: get it again"


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_truncated_files(tmp_path: Path, tensors: Tensors, share: float) -> None:
    path, safe = tmp_path / "file.pth", tmp_path / "file.safetensors"
    torch.save(tensors, path)
    safetensors.torch.save_file(tensors, safe)
    for file in (path, safe):
        os.truncate(file, int(file.stat().st_size * share))
    assert refused(path) == f"{path} is no PyTorch weight file, or a damaged one: get it again"
    assert refused(safe).startswith(f"{safe} is no whole safetensors file (")


@pytest.mark.parametrize("content", [[1, 2], {}, {"state_dict": {}}, torch.zeros(3), {"epoch": 3, "conv1.weight": "x"}])
def test_pytorch_files_without_a_state_dict(tmp_path: Path, content: object) -> None:
    path = tmp_path / "file.pth"
    torch.save(content, path)
    assert refused(path).startswith(f"{path} holds no state dict")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    missing, folder, locked = tmp_path / "missing.pth", tmp_path / "folder.pth", tmp_path / "locked.safetensors"
    pipe = tmp_path / "pipe.pt"
    folder.mkdir()
    os.mkfifo(pipe)
    locked.touch()
    locked.chmod(0)
    assert refused(missing) == f"weight file {missing} does not exist: check --weights FILE"
    assert refused(folder) == f"weight file {folder} is a folder or device: name a file"
    assert refused(pipe) == f"weight file {pipe} is a folder or device: name a file"
    assert refused(Path("~nobody-here/file.pth")).startswith("weight file '~nobody-here/file.pth' cannot be found: ")
    assert refused(Path("zero\0byte.pth")).endswith("cannot be found: embedded null byte")
    if os.geteuid() != 0:  # root reads everything
        assert refused(locked) == f"weight file {locked} cannot be read: permission denied"


def test_fingerprint_follows_the_tensors_loaded(tmp_path: Path, tensors: Tensors) -> None:
    assert weights_fingerprint(make_recipe({"backbone": "resnet18"})) is None
    prints = {}
    for wrapping, wrap in WRAPPINGS.items():
        torch.save(wrap(tensors), tmp_path / f"{wrapping}.pth")
        prints[wrapping] = weights_fingerprint(recipe_for(tmp_path / f"{wrapping}.pth"))
    assert len(set(prints.values())) == 1, prints
    changed = tensors["layer4.1.conv2.weight"].clone()
    changed[0, 0, 0, 0] += 1e-3
    torch.save({**tensors, "layer4.1.conv2.weight": changed}, tmp_path / "changed.pth")
    assert weights_fingerprint(recipe_for(tmp_path / "changed.pth")) not in {None, prints["plain"]}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty hub cache; gives where torch keeps files in it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    weights._imagenet.cache_clear()
    yield tmp_path / "torch" / "hub" / "checkpoints"
    weights._imagenet.cache_clear()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A real server in the place of PyTorch's; gives the folder it serves."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setattr(weights, "IMAGENET_ADDRESS", f"http://127.0.0.1:{running.server_port}/")
        yield folder
        running.shutdown()
        thread.join()


IMAGENET = make_recipe({"backbone": "resnet18", "weights": "imagenet"})


def refused_imagenet() -> str:
    with pytest.raises(InputError) as caught:
        build_network(IMAGENET, 3, 0, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_imagenet_weights_are_fetched_once(
    hub: Path, server: Path, tensors: Tensors, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(tensors, server / "new.pth")
    digest = hashlib.sha256((server / "new.pth").read_bytes()).hexdigest()
    name = f"resnet18-{digest[:8]}.pth"
    monkeypatch.setitem(weights.IMAGENET_FILES, "resnet18", name)
    (server / "new.pth").rename(server / name)
    network = build_network(IMAGENET, 3, 0, 0)
    assert torch.equal(network.backbone.conv1.weight, tensors["conv1.weight"])
    assert capsys.readouterr().out == ""
    (server / name).unlink()
    weights._imagenet.cache_clear()
    network = build_network(IMAGENET, 3, 0, 1)  # from the hub cache
    assert torch.equal(network.backbone.conv1.weight, tensors["conv1.weight"])
    assert list(hub.iterdir()) == [hub / name]
    os.truncate(hub / name, 1000)
    weights._imagenet.cache_clear()
    assert refused_imagenet().startswith(f"{hub / name} is damaged (its SHA-256 begins ")


def test_wrong_bytes_from_the_server_are_not_kept(hub: Path, server: Path, tensors: Tensors) -> None:
    torch.save(tensors, server / "resnet18-f37072fd.pth")
    line = refused_imagenet()
    assert 'cannot be fetched (invalid hash value (expected "f37072fd"' in line
    assert str(hub / "resnet18-f37072fd.pth") in line and line.endswith("for `style fit`, `--encoder small`)")
    assert not list(hub.iterdir())


def test_a_file_the_server_lacks(hub: Path, server: Path) -> None:
    assert not list(server.iterdir())
    assert "cannot be fetched (HTTP Error 404: File not found)" in refused_imagenet()


def test_offline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "IMAGENET_ADDRESS", "http://127.0.0.1:9/")  # nobody listens there
    assert refused_imagenet() == (
        "the imagenet weights of resnet18 cannot be fetched "
        f"(<urlopen error [Errno {errno.ECONNREFUSED}] Connection refused>): "
        f"put http://127.0.0.1:9/resnet18-f37072fd.pth at {hub / 'resnet18-f37072fd.pth'}, "
        "give a file with --weights FILE, or do without (`--set weights=none`; for `style fit`, `--encoder small`)"
    )


def test_a_hub_cache_that_cannot_be_made(tmp_path: Path, hub: Path) -> None:
    (tmp_path / "torch").write_text("a file where the cache should be")
    assert f"cannot be fetched ([Errno {errno.ENOTDIR}] Not a directory" in refused_imagenet()
