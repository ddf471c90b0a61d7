"""A ResNet's stem in training as Triton kernels: uint8 views through 7×7 convolution, norm, ReLU and pooling.

Views are normalised into padded images of four channels, the last empty, where the window of an output is seven runs
of 32 numbers, which load as they lie. The convolution adds up its outputs' statistics on the way; in the backward pass
the gradient of its outputs is made tile by tile where that of the weights takes it, and never written.
Axes: V views, R outputs of the convolution (pixels of all views), K numbers of a window, P parts of the rows.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from triplee.nets.norm_kernels import add_distances, finish_statistics, norm_gradients, share, store_statistics

CHANNELS: tl.constexpr = tl.constexpr(64)
SIDE: tl.constexpr = tl.constexpr(7)
RUN: tl.constexpr = tl.constexpr(32)  # eight pixels of four channels, of which seven of three count
K: tl.constexpr = tl.constexpr(256)  # seven runs, filled up to a power of two
EDGE: tl.constexpr = tl.constexpr(3)  # pixels of padding
NONE: tl.constexpr = tl.constexpr(9)  # in place of the largest of nine where the ReLU gave zero

PIXELS = 256  # of the padded images, by a program
POOLED = 16  # pixels, by a program
CONVOLVE = {"OUTPUTS": 64, "num_warps": 4, "num_stages": 2}  # outputs in a tile
GRADIENTS = {"CELLS": 16, "num_warps": 4, "num_stages": 2}  # two by two outputs
MOST_CONVOLVING, MOST_ADDING = 256, 256  # programs
# Numbers that may or may not be multiples of 16, by the views of a step, are not specialised: each kind would be
# compiled anew.


@triton.jit(do_not_specialize=["count"])
def _pad(views, padded, scale, shift, count, h, w, H: tl.constexpr, W: tl.constexpr, PIXELS: tl.constexpr):
    """uint8 (V,3,h,w) to normalised (V,H,W,4), zero around the image and in the last channel."""
    pixel, channel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS), tl.arange(0, 4)
    row, column, view = (pixel // W) % H - EDGE, pixel % W - EDGE, (pixel // (H * W)).to(tl.int64)
    exists = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    inside = exists[:, None] & (channel < 3)[None, :]
    offset = (view * 3 * h * w + row * w + column)[:, None] + channel[None, :] * (h * w)
    value = tl.load(views + offset, mask=inside & (pixel < count)[:, None], other=0).to(tl.float32)
    value = value * tl.load(scale + channel, mask=channel < 3)[None, :]
    value = tl.where(inside, value + tl.load(shift + channel, mask=channel < 3)[None, :], 0.0)
    place = pixel.to(tl.int64)[:, None] * 4 + channel[None, :]
    tl.store(padded + place, value.to(padded.dtype.element_ty), mask=(pixel < count)[:, None])


@triton.jit
def _windows(padded, output, exists, h: tl.constexpr, w: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """What outputs of the convolution see, zero for those that do not exist: (len(output), K)."""
    k, row, view = tl.arange(0, K), 2 * ((output // w) % h), output // (w * h)
    start = padded + ((view.to(tl.int64) * H + row) * W + 2 * (output % w)) * 4
    within = (k // RUN) * (W * 4) + k % RUN
    return tl.load(start[:, None] + within[None, :], mask=exists[:, None] & (k < SIDE * RUN)[None, :], other=0.0)


@triton.jit
def _weight_offsets(k, by_colour, by_row, by_column):
    """Where the weights of a window's numbers lie, and which numbers have one."""
    channel, column, row = k % 4, (k % RUN) // 4, k // RUN
    return channel * by_colour + row * by_row + column * by_column, (channel < 3) & (column < SIDE) & (row < SIDE)


@triton.jit
def _convolve(
    padded,
    weight,
    x,
    parts,
    R,
    rows_each,
    by_output,
    by_colour,
    by_row,
    by_column,
    h: tl.constexpr,
    w: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Outputs, and of every part of them the mean and the sum of squared distances from it."""
    channel = tl.arange(0, CHANNELS)
    offset, exists = _weight_offsets(tl.arange(0, K), by_colour, by_row, by_column)
    weights = weight + channel[:, None] * by_output + offset[None, :]
    weights_KC = tl.trans(tl.load(weights, mask=exists[None, :], other=0.0))
    about = tl.zeros((CHANNELS,), tl.float32)
    off, squares = tl.zeros((OUTPUTS, CHANNELS), tl.float32), tl.zeros((OUTPUTS, CHANNELS), tl.float32)
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, R)
    for start in range(first, last, OUTPUTS):
        output = start + tl.arange(0, OUTPUTS)
        here = (output < last)[:, None]
        windows = _windows(padded, output, output < last, h, w, H, W)
        tile = tl.dot(windows, weights_KC, input_precision="ieee").to(x.dtype.element_ty)
        tl.store(x + output.to(tl.int64)[:, None] * CHANNELS + channel[None, :], tile, mask=here)
        tile = tile.to(tl.float32)
        if start == first:
            about = tl.sum(tl.where(here, tile, 0.0), 0) / tl.minimum(last - first, OUTPUTS).to(tl.float32)
        off, squares = add_distances(tile, here, about, off, squares)
    store_statistics(parts, CHANNELS, about, off, squares, last - first, CHANNELS)


@triton.jit(do_not_specialize=["count"])
def _pool(x, kept, weight, bias, y, largest, codes, count, h, w, out_h, out_w, POOLED: tl.constexpr):
    """relu(norm(x)) of 3×3 pixels: the largest, what it was before the norm, and which of the nine has the gradient."""
    pixel, channel = tl.program_id(0) * POOLED + tl.arange(0, POOLED), tl.arange(0, CHANNELS)
    view, i, j, exists = pixel // (out_h * out_w), (pixel // out_w) % out_h, pixel % out_w, pixel < count
    scale = tl.load(weight + channel) * tl.load(kept + CHANNELS + channel)
    sign = tl.where(scale < 0, -1.0, 1.0)[None, :]  # the norm keeps the order of its inputs, or turns it round
    best = tl.full((POOLED, CHANNELS), float("-inf"), tl.float32)
    code = tl.zeros((POOLED, CHANNELS), tl.int32)
    for tap in tl.static_range(9):
        row, column = 2 * i - 1 + tap // 3, 2 * j - 1 + tap % 3
        inside = (exists & (row >= 0) & (row < h) & (column >= 0) & (column < w))[:, None]
        offset = ((view * h + row).to(tl.int64) * w + column)[:, None] * CHANNELS + channel[None, :]
        value = tl.where(inside, tl.load(x + offset, mask=inside, other=0.0).to(tl.float32) * sign, float("-inf"))
        code = tl.where(value > best, tap, code)
        # A NaN goes through: it must reach the loss, where it is noticed.
        best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    best *= sign
    out = (best - tl.load(kept + channel)[None, :]) * scale[None, :] + tl.load(bias + channel)[None, :]
    place = pixel.to(tl.int64)[:, None] * CHANNELS + channel[None, :]
    tl.store(y + place, tl.where(out < 0, 0.0, out).to(y.dtype.element_ty), mask=exists[:, None])
    tl.store(largest + place, best.to(largest.dtype.element_ty), mask=exists[:, None])
    tl.store(codes + place, tl.where(out > 0, code, NONE).to(tl.uint8), mask=exists[:, None])


@triton.jit
def _pooled(dy, codes, view, i, j, exists, out_h, out_w):
    """Gradients of pooled pixels, and which of the nine each goes to."""
    inside = (exists & (i < out_h) & (j < out_w))[:, None]
    offset = ((view * out_h + i).to(tl.int64) * out_w + j)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return tl.load(dy + offset, mask=inside, other=0.0).to(tl.float32), tl.load(codes + offset, mask=inside, other=NONE)


@triton.jit
def _add_windows(
    padded,
    x,
    gradient,
    total,
    slope,
    level,
    scale,
    view,
    row,
    column,
    exists,
    h: tl.constexpr,
    w: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
):
    """Adds what pixels contribute to the weights' gradient, by that of what the norm made of them."""
    exists = exists & (row < h) & (column < w)
    output = (view * h + row) * w + column
    windows = _windows(padded, output, exists, h, w, H, W)
    offset = output.to(tl.int64)[:, None] * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    tile = tl.load(x + offset, mask=exists[:, None], other=0.0).to(tl.float32)
    gradient = gradient * scale[None, :] + (tile * slope[None, :] + level[None, :])
    gradient = tl.where(exists[:, None], gradient, 0.0).to(windows.dtype)
    return tl.dot(tl.trans(gradient), windows, total, input_precision="ieee")


@triton.jit(do_not_specialize=["cells", "cells_each"])
def _convolution_gradients(
    padded,
    x,
    dy,
    codes,
    kept,
    d_weight,
    d_bias,
    weight,
    parts,
    R,
    cells,
    cells_each,
    out_h,
    out_w,
    h: tl.constexpr,
    w: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CELLS: tl.constexpr,
):
    """Of every part of the outputs the gradient of the convolution's weights."""
    channel = tl.arange(0, CHANNELS)
    mean, inverse = tl.load(kept + channel), tl.load(kept + CHANNELS + channel)
    scale = tl.load(weight + channel) * inverse
    slope = -tl.load(d_weight + channel) * inverse / R * scale
    level = -tl.load(d_bias + channel) / R * scale - mean * slope
    total = tl.zeros((CHANNELS, K), tl.float32)
    first = tl.program_id(0) * cells_each
    last = tl.minimum(first + cells_each, cells)
    for start in range(first, last, CELLS):
        # Two by two pixels: the first is the middle of a pooled pixel's window, the others lie in its neighbours' too.
        cell = start + tl.arange(0, CELLS)
        here, view, i, j = cell < last, cell // (out_h * out_w), (cell // out_w) % out_h, cell % out_w
        own, own_code = _pooled(dy, codes, view, i, j, here, out_h, out_w)
        right, right_code = _pooled(dy, codes, view, i, j + 1, here, out_h, out_w)
        below, below_code = _pooled(dy, codes, view, i + 1, j, here, out_h, out_w)
        across, across_code = _pooled(dy, codes, view, i + 1, j + 1, here, out_h, out_w)
        for down in tl.static_range(2):
            for along in tl.static_range(2):
                gradient = tl.where(own_code == 4 + 3 * down + along, own, 0.0)
                if along:
                    gradient += tl.where(right_code == 3 + 3 * down, right, 0.0)
                if down:
                    gradient += tl.where(below_code == 1 + along, below, 0.0)
                    if along:
                        gradient += tl.where(across_code == 0, across, 0.0)
                row, column = 2 * i + down, 2 * j + along
                total = _add_windows(
                    padded, x, gradient, total, slope, level, scale, view, row, column, here, h, w, H, W
                )
    place = (tl.program_id(0) * CHANNELS + channel)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(parts + place, total)


@triton.jit(do_not_specialize=["P"])
def _add_parts(parts, gradient, P, by_output, by_colour, by_row, by_column):
    """The gradient of two runs of one output channel's weights."""
    k, total = tl.program_id(1) * 2 * RUN + tl.arange(0, 2 * RUN), tl.zeros((2 * RUN,), tl.float32)
    for start in range(0, P, 32):
        part = start + tl.arange(0, 32)
        place = ((part * CHANNELS + tl.program_id(0)) * K)[:, None] + k[None, :]
        total += tl.sum(tl.load(parts + place, mask=(part < P)[:, None], other=0.0), 0)
    offset, exists = _weight_offsets(k, by_colour, by_row, by_column)
    offset += tl.program_id(0) * by_output
    tl.store(gradient + offset, total.to(gradient.dtype.element_ty), mask=exists)


def _half(size: int) -> int:
    return (size + 1) // 2


@dataclass(frozen=True)
class _Sizes:
    """Of views, padded images, the convolution's outputs and the pooled ones."""

    views: int
    view: tuple[int, int]

    @property
    def outputs(self) -> tuple[int, int]:
        return _half(self.view[0]), _half(self.view[1])

    @property
    def padded(self) -> tuple[int, int]:
        """What the windows reach; each begins at a multiple of eight numbers, so that they load by 16 bytes."""
        h, w = self.outputs
        return 2 * (h - 1) + SIDE.value, 2 * (w - 1) + RUN.value // 4

    @property
    def pooled(self) -> tuple[int, int]:
        h, w = self.outputs
        return _half(h), _half(w)

    @property
    def R(self) -> int:
        h, w = self.outputs
        return self.views * h * w

    @property
    def constants(self) -> dict[str, int]:
        (h, w), (H, W) = self.outputs, self.padded
        return {"h": h, "w": w, "H": H, "W": W}


class Stem(torch.autograd.Function):
    """max_pool(relu(norm(conv(views · scale + shift)))); the norm as in training, statistics and all."""

    @staticmethod
    def forward(
        ctx: Any,
        views_u8: Tensor,
        scale: Tensor,
        shift: Tensor,
        kernel: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
    ) -> Tensor:
        ctx.sizes = sizes = _Sizes(len(views_u8), tuple(views_u8.shape[2:]))
        views, device, channels = sizes.views, views_u8.device, CHANNELS.value
        floats, rounded = {"device": device}, {"device": device, "dtype": kernel.dtype}
        padded = torch.empty(views, *sizes.padded, 4, **rounded)
        H, W = sizes.padded
        count = views * H * W
        _pad[(triton.cdiv(count, PIXELS),)](
            views_u8.contiguous(), padded, scale, shift, count, *sizes.view, H=H, W=W, PIXELS=PIXELS
        )
        rows_each, P = share(sizes.R, CONVOLVE["OUTPUTS"], MOST_CONVOLVING)
        x, parts = torch.empty(sizes.R, channels, **rounded), torch.empty(P, 2, channels, **floats)
        _convolve[(P,)](
            *(padded, kernel, x, parts, sizes.R, rows_each, *kernel.stride()),
            **sizes.constants,
            **CONVOLVE,
        )
        kept = finish_statistics(parts, rows_each, sizes.R, norm)
        shape = (views, channels, *sizes.pooled)
        y, largest = (torch.empty(shape, memory_format=torch.channels_last, **rounded) for _ in range(2))
        codes = torch.empty_like(y, dtype=torch.uint8)
        count = y.numel() // channels
        _pool[(triton.cdiv(count, POOLED),)](
            x, kept, weight, bias, y, largest, codes, count, *sizes.outputs, *sizes.pooled, POOLED=POOLED
        )
        ctx.save_for_backward(padded, x, largest, codes, kept, kernel, weight, bias)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        padded, x, largest, codes, kept, kernel, weight, bias = ctx.saved_tensors
        sizes: _Sizes = ctx.sizes
        dy = dy.contiguous(memory_format=torch.channels_last)
        d_weight, d_bias = norm_gradients(dy, largest, largest, kept, weight, bias)
        d_kernel = torch.empty_like(kernel)
        cells = dy.numel() // CHANNELS.value
        cells_each, P = share(cells, GRADIENTS["CELLS"], MOST_ADDING)
        parts = torch.empty(P, CHANNELS.value, K.value, device=dy.device)
        _convolution_gradients[(P,)](
            *(padded, x, dy, codes, kept, d_weight, d_bias, weight, parts),
            *(sizes.R, cells, cells_each, *sizes.pooled),
            **sizes.constants,
            **GRADIENTS,
        )
        _add_parts[(CHANNELS.value, K.value // (2 * RUN.value))](parts, d_kernel, P, *kernel.stride())
        return None, None, None, d_kernel, d_weight, d_bias, None
