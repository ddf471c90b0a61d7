"""The ResNets' max pooling (3×3, stride 2, one pixel of padding) as Triton kernels, channels last.

Which pixel of a window was the largest is kept as one byte, and in the backward pass every input pixel looks for itself
in the windows it lies in. torch keeps eight bytes, and both of its passes are far from the speed of memory.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from triplee.nets.fused import WIDTH

HEIGHT = 32  # pixels


@triton.jit
def _pixels(count, height, width, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """View, row and column of a block of pixels, which of them exist, and their channels."""
    pixel = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)
    within = pixel % (height * width)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    return pixel.to(tl.int64), pixel // (height * width), within // width, within % width, pixel < count, channel


@triton.jit
def _forward(x, y, codes, count, h, w, out_h, out_w, C, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    pixel, view, i, j, exists, channel = _pixels(count, out_h, out_w, HEIGHT, WIDTH)
    best = tl.full((HEIGHT, WIDTH), float("-inf"), tl.float32)
    code = tl.zeros((HEIGHT, WIDTH), tl.int32)
    for tap in tl.static_range(9):
        row, column = 2 * i - 1 + tap // 3, 2 * j - 1 + tap % 3
        inside = exists & (row >= 0) & (row < h) & (column >= 0) & (column < w)
        offset = ((view * h + row).to(tl.int64) * w + column)[:, None] * C + channel[None, :]
        value = tl.load(x + offset, mask=inside[:, None], other=float("-inf")).to(tl.float32)
        wins = (value > best) | (value != value)  # a NaN goes through: it must reach the loss, where it is noticed
        best, code = tl.where(wins, value, best), tl.where(wins, tap, code)
    offset = pixel[:, None] * C + channel[None, :]
    tl.store(y + offset, best.to(y.dtype.element_ty), mask=exists[:, None])
    tl.store(codes + offset, code.to(tl.uint8), mask=exists[:, None])


@triton.jit
def _backward(dy, codes, dx, count, h, w, out_h, out_w, C, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    pixel, view, row, column, exists, channel = _pixels(count, h, w, HEIGHT, WIDTH)
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for tap in tl.static_range(9):
        up, left = row + 1 - tap // 3, column + 1 - tap % 3  # twice the window in which this pixel is that tap
        i, j = up // 2, left // 2
        inside = exists & (up >= 0) & (left >= 0) & (up % 2 == 0) & (left % 2 == 0) & (i < out_h) & (j < out_w)
        offset = ((view * out_h + i).to(tl.int64) * out_w + j)[:, None] * C + channel[None, :]
        code = tl.load(codes + offset, mask=inside[:, None], other=9)
        gradient = tl.load(dy + offset, mask=inside[:, None], other=0.0).to(tl.float32)
        total += tl.where(code == tap, gradient, 0.0)
    tl.store(dx + pixel[:, None] * C + channel[None, :], total.to(dx.dtype.element_ty), mask=exists[:, None])


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


class MaxPool(torch.autograd.Function):
    """Images (V,C,h,w) to (V,C,⌈h/2⌉,⌈w/2⌉)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        views, C, h, w = ctx.shape = x.shape
        out_h, out_w = (h + 1) // 2, (w + 1) // 2
        y = _empty((views, C, out_h, out_w), x)
        codes = torch.empty_like(y, dtype=torch.uint8)
        count = views * out_h * out_w
        _forward[(triton.cdiv(count, HEIGHT), C // WIDTH)](
            x, y, codes, count, h, w, out_h, out_w, C, HEIGHT=HEIGHT, WIDTH=WIDTH
        )
        ctx.save_for_backward(codes)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (codes,) = ctx.saved_tensors
        views, C, h, w = ctx.shape
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = _empty(ctx.shape, dy)
        count = views * h * w
        _backward[(triton.cdiv(count, HEIGHT), C // WIDTH)](
            dy, codes, dx, count, h, w, *dy.shape[2:], C, HEIGHT=HEIGHT, WIDTH=WIDTH
        )
        return dx
