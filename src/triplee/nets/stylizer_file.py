"""Stylizers on disk: our own safetensors files, and the pair of files that AdaIN's users share.

Comes in: a path; goes out: a Stylizer, frozen, and what is said of it. A wrong or damaged file is one line.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from triplee.nets.stylizer import Stylizer, VGGEncoder
from triplee.nets.weights import read_weight_file, state_dict_of
from triplee.runfolder import digest_tensors, read_tensors, write_tensors
from triplee.settings import InputError, user_path

PUBLISHED = ("vgg_normalised.pth", "decoder.pth")


def write_stylizer(path: Path, stylizer: Stylizer, facts: Mapping[str, Any]) -> None:
    """A safetensors file with the encoder's name and `facts`, which may be anything that JSON can say."""
    write_tensors(path, stylizer.state_dict(), {"encoder": stylizer.encoder_name, **facts})


def read_stylizer(path: Path) -> tuple[Stylizer, dict[str, Any]]:
    """A stylizer that was fitted here, or the published pair in a folder; and its facts."""
    if path.is_dir():
        return _read_published(path), {"encoder": "vgg19"}
    if not path.exists():
        raise InputError(f"stylizer {path} does not exist: fit one with `triplee style fit`")
    try:
        tensors, facts = read_tensors(path)
        stylizer = Stylizer(facts["encoder"])
        stylizer.load_state_dict(tensors)
    except (InputError, KeyError, RuntimeError):
        raise InputError(f"{path} is no stylizer, or a damaged one: fit it again with `triplee style fit`") from None
    return freeze(stylizer), facts


def load_stylizer(path: str | Path) -> Stylizer:
    """A stylizer for ESAug: a file of `triplee style fit`, or a folder with vgg_normalised.pth and decoder.pth."""
    return read_stylizer(user_path(path))[0]


def freeze(stylizer: Stylizer) -> Stylizer:
    """For use: it learns no more, and batch norm keeps its statistics."""
    return stylizer.requires_grad_(False).eval().to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def stylizer_fingerprint(stylizer: Stylizer) -> str:
    return digest_tensors({name: tensor.cpu() for name, tensor in stylizer.state_dict().items()}, {})


def load_vgg(encoder: VGGEncoder, path: Path) -> None:
    """Copy VGG-19's published weights, whose names are numbers of layers; those beyond relu4_1 are passed over."""
    layers = nn.Sequential(*encoder.layers)
    tensors = _numbered(path)
    _load(layers, {name: tensors[name] for name in tensors if int(name.partition(".")[0]) < len(layers)}, path)


def _read_published(folder: Path) -> Stylizer:
    vgg, decoder = (folder / name for name in PUBLISHED)
    for path in (vgg, decoder):
        if not path.is_file():
            raise InputError(f"{folder} has no {path.name}: published AdaIN weights are {' and '.join(PUBLISHED)}")
    stylizer = Stylizer("vgg19")
    assert isinstance(stylizer.encoder, VGGEncoder)
    load_vgg(stylizer.encoder, vgg)
    _load(stylizer.decoder, _numbered(decoder), decoder)
    return freeze(stylizer)


def _numbered(path: Path) -> dict[str, Tensor]:
    tensors = state_dict_of(read_weight_file(path), path, ())
    if other := next((name for name in tensors if not name.partition(".")[0].isdecimal()), None):
        raise InputError(f"{path} is not laid out like AdaIN's weights (0.weight, 2.weight, …): {other}")
    return tensors


def _load(layers: nn.Sequential, tensors: Mapping[str, Tensor], path: Path) -> None:
    own = {name: tensor.shape for name, tensor in layers.state_dict().items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if wrong := sorted(name for name in own.keys() | found.keys() if own.get(name) != found.get(name)):
        raise InputError(f"{path} does not fit AdaIN's {path.stem}: {', '.join(wrong[:3])} missing or of another shape")
    layers.load_state_dict(dict(tensors))
