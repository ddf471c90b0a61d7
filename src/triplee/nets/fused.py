"""A ResNet's stem, and what it does between its convolutions, in fewer passes over memory on a GPU.

There a quarter of a ResNet-18 step goes into the stem and more than that into batch norm, ReLU and sums as torch does
them; elsewhere torch does all of it.
"""

import torch
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
    if not norm.training and not torch.is_grad_enabled() and _fits(x):
        from triplee.nets.norm_kernels import batch_norm_in_use

        return batch_norm_in_use(norm, x, shortcut, relu)
    x = norm(x)
    if shortcut is not None:
        x = x + shortcut
    return F.relu(x, inplace=True) if relu else x


def fits_stem(conv: nn.Conv2d, norm: nn.BatchNorm2d, images_u8: Tensor) -> bool:
    """Whether there is a fused stem for these: in training, with weights rounded for the matrix units."""
    rounded = conv.weight.dtype == torch.bfloat16
    return norm.training and rounded and images_u8.is_cuda and find_kernels("cuda") is not None


def fused_stem(conv: nn.Conv2d, norm: nn.BatchNorm2d, images_u8: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """max_pool(relu(norm(conv(images_u8 · scale + shift)))): views (V,3,H,W) to (V,64,⌈H/4⌉,⌈W/4⌉)."""
    from triplee.nets.stem_kernels import Stem

    return Stem.apply(images_u8, scale, shift, conv.weight, norm.weight, norm.bias, norm)  # pyright: ignore[reportReturnType]
