"""Batch norm and what follows it in a ResNet – the sum with a shortcut, the ReLU – as one operation where that pays."""

from functools import lru_cache
from importlib.util import find_spec

import torch.nn.functional as F
from torch import Tensor, nn


@lru_cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def batch_norm(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + shortcut). Training on a GPU, torch takes a third of a ResNet step for its passes over memory."""
    if norm.training and x.is_cuda and x.shape[1] % 64 == 0 and _has_triton():
        from triplee.nets.norm_kernels import BatchNorm

        return BatchNorm.apply(x, shortcut, norm.weight, norm.bias, norm, relu)
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    return F.relu(x, inplace=True) if relu else x
