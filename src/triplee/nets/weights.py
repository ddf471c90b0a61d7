"""Pretrained weights of a backbone: fetched through torch's hub cache, or read from the user's file.

Comes in: a recipe's `backbone` and `weights`; goes out: float32 tensors by state-dict name, without the classifier.
Files are read without running code in them. Members share the tensors ("EReplayD"), so they are read once a run.
"""

import functools
import hashlib
import pickle
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from triplee.nets.timm_backbone import TimmBackbone, classifier_names, first_line, make_timm_model
from triplee.runfolder import digest_tensors
from triplee.settings import InputError, Recipe, counted, first_few

# torchvision's IMAGENET1K_V1; the name ends in the first digits of the file's SHA-256.
IMAGENET_ADDRESS = "https://download.pytorch.org/models/"
WITHOUT = "give a file with --weights FILE, or do without (`--set weights=none`; for `style fit`, `--encoder small`)"
IMAGENET_FILES = {
    "resnet18": "resnet18-f37072fd.pth",
    "resnet50": "resnet50-0676ba61.pth",
    "mobilenet-v2": "mobilenet_v2-b0353104.pth",
}
SILENCE_SECONDS = 30  # a firewall that swallows packets would otherwise hold a run for minutes


def load_weights(backbone: nn.Module, recipe: Recipe) -> None:
    """Copy the recipe's pretrained weights into a backbone; weights that do not fit it are one line."""
    model = backbone.model if isinstance(backbone, TimmBackbone) else backbone
    tensors = _read_once(recipe)
    own = model.state_dict()
    # Older files lack this count, which only batch norm without a momentum uses.
    missing = [name for name in own if name not in tensors and not name.endswith(".num_batches_tracked")]
    surplus = [name for name in tensors if name not in own]
    other = [
        f"{name} {_shape(tensors[name])}, not {_shape(own[name])}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    faults = [f"{counted(len(missing), 'key')} missing ({first_few(missing)})"] if missing else []
    faults += [f"{len(surplus)} surplus ({first_few(surplus)})"] if surplus else []
    faults += [f"{len(other)} of another shape ({first_few(other)})"] if other else []
    if faults:
        raise InputError(f"weights {recipe.weights}: {', '.join(faults)}: it is not a {recipe.backbone}")
    model.load_state_dict(tensors, strict=False)


def weights_fingerprint(recipe: Recipe) -> str | None:
    """A hash of the pretrained tensors, which tells one weight file from another; none without weights."""
    if recipe.weights == "none":
        return None
    return digest_tensors(_read_once(recipe), {})


def _read_once(recipe: Recipe) -> dict[str, Tensor]:
    if recipe.weights == "imagenet":
        return _imagenet(recipe.backbone, recipe.image_size if recipe.backbone.startswith("timm:") else 0)
    try:
        path = Path(recipe.weights).expanduser()
        stat = path.stat()
    except OSError as error:
        raise _unreadable(Path(recipe.weights), error) from None
    except (RuntimeError, ValueError) as error:  # ~nobody, or a zero byte
        raise InputError(f"weight file {recipe.weights!r} cannot be found: {first_line(error).lower()}") from None
    if not path.is_file():  # opening a pipe would wait for ever
        raise InputError(f"weight file {path} is a folder or device: name a file")
    return _from_file(recipe.backbone, path, (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=1)
def _from_file(backbone: str, path: Path, _version: tuple[int, int]) -> dict[str, Tensor]:
    return state_dict_of(read_weight_file(path), path, _classifiers(backbone))


@functools.lru_cache(maxsize=1)
def _imagenet(backbone: str, image_size: int) -> dict[str, Tensor]:
    if backbone.startswith("timm:"):
        name = backbone.removeprefix("timm:")
        make_timm_model(name, image_size)  # a bad name or size has a line of its own
        try:
            return dict(make_timm_model(name, image_size, pretrained=True).state_dict())
        except Exception as error:  # whatever its hub raises
            raise InputError(
                f"the imagenet weights of {backbone} cannot be had ({first_line(error)}): go online once, {WITHOUT}"
            ) from None
    file = IMAGENET_FILES[backbone]
    path = Path(torch.hub.get_dir()) / "checkpoints" / file
    digits = re.search(r"-([0-9a-f]+)\.pth$", file).group(1)  # pyright: ignore[reportOptionalMemberAccess]
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _short_silences():
                torch.hub.download_url_to_file(IMAGENET_ADDRESS + file, str(path), digits, sys.stderr.isatty())
    except Exception as error:  # of sockets, certificates, HTTP, the disk and the hash
        raise InputError(
            f"the imagenet weights of {backbone} cannot be fetched ({first_line(error)}): "
            f"put {IMAGENET_ADDRESS}{file} at {path}, {WITHOUT}"
        ) from None
    try:
        with path.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not found.startswith(digits):
        raise InputError(f"{path} is damaged (its SHA-256 begins {found[:8]}): delete it, or use --weights FILE")
    return state_dict_of(read_weight_file(path), path, _classifiers(backbone))


def _classifiers(backbone: str) -> tuple[str, ...]:
    """The layers of a weight file that are left out."""
    if backbone.startswith("timm:"):
        return classifier_names(backbone.removeprefix("timm:"))
    return ("classifier.1",) if backbone == "mobilenet-v2" else ("fc",)


def read_weight_file(path: Path) -> Any:
    """What the file holds, read without running anything in it."""
    try:
        with path.open("rb"):
            pass  # the readers' own words for a lack of permission differ
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise _unreadable(path, error) from None
    except safetensors.SafetensorError as error:
        raise InputError(f"{path} is no whole safetensors file ({first_line(error)}): get it again") from None
    except Exception as error:  # bytes that are no weights end in any of a dozen kinds
        if isinstance(error, pickle.UnpicklingError) and (found := re.search(r"GLOBAL (\S+)", str(error))):
            raise InputError(
                f"{path} holds code or objects beside tensors ({found.group(1)}), which is not loaded: "
                "save its state_dict() alone"
            ) from None
        raise InputError(f"{path} is no PyTorch weight file, or a damaged one: get it again") from None


def state_dict_of(content: Any, path: Path, classifiers: tuple[str, ...]) -> dict[str, Tensor]:
    """The backbone's float32 tensors, out of the wrappings that training scripts put around them."""
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} holds no state dict: save the model's state_dict()")
    tensors = {}
    prefix = "module." if all(str(name).startswith("module.") for name in content) else ""  # of DataParallel
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"{path} holds no state dict ({name!r} is no tensor): save the model's state_dict()")
        name = str(name).removeprefix(prefix)
        if name.rpartition(".")[0] not in classifiers:
            tensors[name] = tensor.float() if tensor.is_floating_point() else tensor
    return tensors


@contextmanager
def _short_silences() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _unreadable(path: Path, error: OSError) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"weight file {path} does not exist: check --weights FILE")
    return InputError(f"weight file {path} cannot be read: {(error.strerror or str(error)).lower()}")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "scalar"
