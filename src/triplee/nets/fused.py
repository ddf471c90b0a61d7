"""What a ResNet does between its convolutions, in fewer passes over memory where it trains on a GPU.

There torch takes half of a ResNet-18 step for batch norm, ReLU, sums and pooling; elsewhere torch does them here too.
"""

from functools import lru_cache
from importlib.util import find_spec

import torch.nn.functional as F
from torch import Tensor, nn


@lru_cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _fits(x: Tensor) -> bool:
    return x.is_cuda and x.shape[1] % 64 == 0 and _has_triton()


def batch_norm(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + shortcut)."""
    if norm.training and _fits(x):
        from triplee.nets.norm_kernels import BatchNorm

        return BatchNorm.apply(x, shortcut, norm.weight, norm.bias, norm, relu)  # pyright: ignore[reportReturnType]
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    return F.relu(x, inplace=True) if relu else x


def max_pool(x: Tensor) -> Tensor:
    """The largest of 3×3 pixels, every second pixel each way."""
    if _fits(x) and x.requires_grad:
        from triplee.nets.pool_kernels import MaxPool

        return MaxPool.apply(x)  # pyright: ignore[reportReturnType]
    return F.max_pool2d(x, 3, stride=2, padding=1)
