"""What a ResNet does between its convolutions, in fewer passes over memory where it trains on a GPU.

There torch takes half of a ResNet-18 step for batch norm, ReLU, sums and pooling; elsewhere torch does them here too.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from triplee.augment.available import find_kernels

WIDTH = 64  # channels that a program of the kernels works on: a line of memory in bfloat16


def _fits(x: Tensor) -> bool:
    return x.is_cuda and x.shape[1] % WIDTH == 0 and find_kernels("cuda") is not None


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
