"""Models of torchvision and timm as oracles of our own, and the names that state dicts share."""

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn


def batch_norm_shapes(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    vectors = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return {**vectors, f"{name}.num_batches_tracked": ()}


def imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a torchvision built for another torch raises RuntimeError
        pytest.skip(f"{name} cannot be imported: {error}")


def set_statistics(model: nn.Module) -> None:
    """Scales and shifts of its own in batch norm, and running statistics that fit its random weights."""
    batch_norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in batch_norms:
        nn.init.uniform_(layer.weight, 0.5, 1.5)
        nn.init.uniform_(layer.bias, -0.2, 0.2)
        layer.momentum = 1.0
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64, dtype=dtype))
    for layer in batch_norms:
        layer.momentum = 0.1


def far(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()


def assert_same_numbers(ours: nn.Module, theirs: nn.Module) -> None:
    """Features, gradients and running statistics, in use and in training."""
    torch.manual_seed(1)
    set_statistics(theirs)
    ours.load_state_dict(theirs.state_dict())
    for size in (160, 224):
        images = torch.randn(2, 3, size, size)
        with torch.no_grad():
            expected = theirs.eval()(images)
            assert expected.std() > 0.01  # not all zero
            assert far(ours.eval()(images), expected) <= 1e-5
        expected, found = theirs.train()(images), ours.train()(images)
        assert far(found, expected) <= 1e-5
        expected.square().mean().backward()
        found.square().mean().backward()
        first, their_first = (next(model.parameters()) for model in (ours, theirs))
        assert first.grad is not None and their_first.grad is not None and their_first.grad.abs().max() > 1e-4
        assert far(first.grad, their_first.grad) <= 1e-5
    for key, tensor in theirs.state_dict().items():
        assert far(ours.state_dict()[key].float(), tensor.float()) <= 1e-5, key
