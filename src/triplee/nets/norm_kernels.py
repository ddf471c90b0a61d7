"""Batch norm in training together with what follows it, as Triton kernels: two passes forward, two backward.

The sum with a shortcut and the ReLU cost no pass of their own. What is added up is added in parts of the rows, and the
parts by a small kernel, once: no atomics, so the same input gives the same bits. Adding them in every program that uses
the sum would take as much reading as the activations do. Everything is channels last.
Axes: R rows (the pixels of all views), C channels, P parts.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportOptionalOperand=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from triplee.nets.fused import WIDTH

TALL = 64  # rows of a tile, where there are many
MOST_PARTS = 64
MOST_PROGRAMS = 256  # along the rows, where nothing is added up
# How many rows there are is not specialised: a network's layers would have the kernels compiled many times over.


@triton.jit
def _columns(WIDTH: tl.constexpr):
    return tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)


@triton.jit
def _tile(start, last, C, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of a tile, and which of its rows exist."""
    row = start + tl.arange(0, HEIGHT)
    return row.to(tl.int64)[:, None] * C + _columns(WIDTH)[None, :], (row < last)[:, None]


@triton.jit
def _parts(parts, P, which, C, MOST: tl.constexpr, WIDTH: tl.constexpr):
    """One of the two results of every part, zero past the last: (MOST, WIDTH)."""
    part = tl.arange(0, MOST)
    offset = (part * 2 + which)[:, None] * C + _columns(WIDTH)[None, :]
    return tl.load(parts + offset, mask=(part < P)[:, None], other=0.0)


@triton.jit
def _store_parts(parts, C, first, second, WIDTH: tl.constexpr):
    row = parts + tl.program_id(0) * 2 * C + _columns(WIDTH)
    tl.store(row, first)
    tl.store(row + C, second)


@triton.jit
def add_distances(tile, exists, about, off, squares):
    """To the distances of rows from `about`, somewhere among them: sums of the rows themselves would cancel."""
    apart = tl.where(exists, tile - about[None, :], 0.0)
    return off + apart, squares + apart * apart


@triton.jit
def store_statistics(parts, C, about, off, squares, rows, WIDTH: tl.constexpr):
    """A part's mean, and its sum of squared distances from it."""
    total, count = tl.sum(off, 0), rows.to(tl.float32)
    _store_parts(parts, C, about + total / count, tl.sum(squares, 0) - total * total / count, WIDTH)


@triton.jit(do_not_specialize=["R", "rows_each"])
def _statistics(x, parts, R, rows_each, C, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Of every part of the rows: the mean, and the sum of squared distances from it."""
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, R)
    offset, exists = _tile(first, last, C, HEIGHT, WIDTH)
    about = tl.sum(tl.load(x + offset, mask=exists, other=0.0).to(tl.float32), 0) / tl.minimum(last - first, HEIGHT)
    off, squares = tl.zeros((HEIGHT, WIDTH), tl.float32), tl.zeros((HEIGHT, WIDTH), tl.float32)
    for start in range(first, last, HEIGHT):
        offset, exists = _tile(start, last, C, HEIGHT, WIDTH)
        tile = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        off, squares = add_distances(tile, exists, about, off, squares)
    store_statistics(parts, C, about, off, squares, last - first, WIDTH)


@triton.jit(do_not_specialize=["R", "rows_of_part", "P"])
def _finish_statistics(
    parts,
    kept,
    running_mean,
    running_var,
    batches,
    R,
    rows_of_part,
    P,
    C,
    momentum,
    eps,
    MOST: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Mean and 1/deviation of all rows, and the running statistics."""
    column, part = _columns(WIDTH), tl.arange(0, MOST)
    size = tl.minimum(tl.maximum(R - part * rows_of_part, 0), rows_of_part).to(tl.float32)[:, None]
    means, squares = _parts(parts, P, 0, C, MOST, WIDTH), _parts(parts, P, 1, C, MOST, WIDTH)
    mean = tl.sum(means * size, 0) / R
    off = means - mean[None, :]
    variance = (tl.sum(squares, 0) + tl.sum(off * off * size, 0)) / R
    tl.store(kept + column, mean)
    tl.store(kept + C + column, 1.0 / tl.sqrt(variance + eps))
    old_mean, old_var = tl.load(running_mean + column), tl.load(running_var + column)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean))
    tl.store(running_var + column, old_var + momentum * (variance * (R / (R - 1.0)) - old_var))
    if tl.program_id(1) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["R", "rows_each"])
def _normalise(
    x,
    shortcut,
    y,
    kept,
    weight,
    bias,
    R,
    rows_each,
    C,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    column = _columns(WIDTH)
    mean, scale = tl.load(kept + column), tl.load(weight + column) * tl.load(kept + C + column)
    shift = tl.load(bias + column)
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, R)
    for start in range(first, last, HEIGHT):
        offset, exists = _tile(start, last, C, HEIGHT, WIDTH)
        tile = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        out = (tile - mean[None, :]) * scale[None, :] + shift[None, :]
        if SHORTCUT:
            out += tl.load(shortcut + offset, mask=exists, other=0.0).to(tl.float32)
        if RELU:
            out = tl.where(out < 0, 0.0, out)  # a NaN goes through: it must reach the loss, where it is noticed
        tl.store(y + offset, out.to(y.dtype.element_ty), mask=exists)


@triton.jit
def _passes(tile, mean, scale, shift):
    """Where the ReLU let an output through that had no shortcut added: cheaper to compute again than to read."""
    return (tile - mean[None, :]) * scale[None, :] + shift[None, :] > 0


@triton.jit(do_not_specialize=["R", "rows_each"])
def _gradient_sums(
    dy,
    y,
    x,
    kept,
    weight,
    bias,
    parts,
    d_shortcut,
    R,
    rows_each,
    C,
    SHORTCUT: tl.constexpr,
    RELU: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Of every part of the rows: the gradients of bias and weight. That of the shortcut is done here."""
    column = _columns(WIDTH)
    mean, inverse = tl.load(kept + column), tl.load(kept + C + column)
    scale, shift = tl.load(weight + column) * inverse, tl.load(bias + column)
    of_bias, of_weight = tl.zeros((HEIGHT, WIDTH), tl.float32), tl.zeros((HEIGHT, WIDTH), tl.float32)
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, R)
    for start in range(first, last, HEIGHT):
        offset, exists = _tile(start, last, C, HEIGHT, WIDTH)
        gradient = tl.load(dy + offset, mask=exists, other=0.0).to(tl.float32)
        tile = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        if SHORTCUT:
            if RELU:
                gradient = tl.where(tl.load(y + offset, mask=exists, other=0.0).to(tl.float32) > 0, gradient, 0.0)
            tl.store(d_shortcut + offset, gradient.to(d_shortcut.dtype.element_ty), mask=exists)
        elif RELU:
            gradient = tl.where(_passes(tile, mean, scale, shift), gradient, 0.0)
        of_bias += gradient
        of_weight += gradient * (tile - mean[None, :])
    _store_parts(parts, C, tl.sum(of_bias, 0), tl.sum(of_weight, 0) * inverse, WIDTH)


@triton.jit(do_not_specialize=["P"])
def _finish_gradient_sums(parts, d_weight, d_bias, P, C, MOST: tl.constexpr, WIDTH: tl.constexpr):
    """The gradients of bias and weight."""
    column = _columns(WIDTH)
    tl.store(d_bias + column, tl.sum(_parts(parts, P, 0, C, MOST, WIDTH), 0))
    tl.store(d_weight + column, tl.sum(_parts(parts, P, 1, C, MOST, WIDTH), 0))


@triton.jit(do_not_specialize=["R", "rows_each"])
def _gradients(
    dy,
    x,
    kept,
    d_weight,
    d_bias,
    weight,
    bias,
    dx,
    R,
    rows_each,
    C,
    RELU: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """The gradient of the input."""
    column = _columns(WIDTH)
    mean, inverse = tl.load(kept + column), tl.load(kept + C + column)
    scale, shift = tl.load(weight + column) * inverse, tl.load(bias + column)
    along, constant = tl.load(d_weight + column) * inverse / R, tl.load(d_bias + column) / R
    first = tl.program_id(0) * rows_each
    last = tl.minimum(first + rows_each, R)
    for start in range(first, last, HEIGHT):
        offset, exists = _tile(start, last, C, HEIGHT, WIDTH)
        gradient = tl.load(dy + offset, mask=exists, other=0.0).to(tl.float32)
        tile = tl.load(x + offset, mask=exists, other=0.0).to(tl.float32)
        if RELU:
            gradient = tl.where(_passes(tile, mean, scale, shift), gradient, 0.0)
        gradient -= constant[None, :] + (tile - mean[None, :]) * along[None, :]
        tl.store(dx + offset, (gradient * scale[None, :]).to(dx.dtype.element_ty), mask=exists)


def share(count: int, tile: int, most: int) -> tuple[int, int]:
    """How many of `count` a program does, in whole tiles, and how many programs that makes."""
    each = triton.cdiv(triton.cdiv(count, most), tile) * tile
    return each, triton.cdiv(count, each)


class _Cut:
    """How rows and channels are shared among programs."""

    def __init__(self, x: Tensor) -> None:
        self.C = x.shape[1]
        self.R = x.numel() // self.C
        self.height = TALL if self.R >= TALL * MOST_PARTS else 32
        self.rows_of_part, self.P = share(self.R, self.height, MOST_PARTS)
        self.rows_each, programs = share(self.R, self.height, MOST_PROGRAMS)
        self.by_part, self.by_program = (self.P, self.C // WIDTH), (programs, self.C // WIDTH)
        self.options = {"HEIGHT": self.height, "WIDTH": WIDTH, "num_warps": 8 if self.height == TALL else 4}

    def parts(self, x: Tensor) -> Tensor:
        return torch.empty(self.P, 2, self.C, device=x.device)


def finish_statistics(parts: Tensor, rows_of_part: int, R: int, norm: nn.BatchNorm2d) -> Tensor:
    """Mean and 1/deviation (2, C) of R rows from those of parts (P, 2, C); the norm's running statistics move on."""
    P, _, C = parts.shape
    kept = torch.empty(2, C, device=parts.device)
    _finish_statistics[(1, C // WIDTH)](
        *(parts, kept, norm.running_mean, norm.running_var, norm.num_batches_tracked),
        *(R, rows_of_part, P, C, norm.momentum, norm.eps),
        MOST=triton.next_power_of_2(P),
        WIDTH=WIDTH,
    )
    return kept


def norm_gradients(
    dy: Tensor,
    y: Tensor,
    x: Tensor,
    kept: Tensor,
    weight: Tensor,
    bias: Tensor,
    d_shortcut: Tensor | None = None,
    relu: bool = True,
) -> tuple[Tensor, Tensor]:
    """Those of weight and bias, for y = relu(norm(x) + shortcut), channels last; writes that of the shortcut."""
    cut = _Cut(x)
    parts, d_weight, d_bias = cut.parts(x), torch.empty_like(weight), torch.empty_like(bias)
    _gradient_sums[cut.by_part](
        *(dy, y, x, kept, weight, bias, parts, x if d_shortcut is None else d_shortcut),
        *(cut.R, cut.rows_of_part, cut.C),
        SHORTCUT=d_shortcut is not None,
        RELU=relu,
        **cut.options,
    )
    _finish_gradient_sums[(1, cut.C // WIDTH)](
        parts, d_weight, d_bias, cut.P, cut.C, MOST=triton.next_power_of_2(cut.P), WIDTH=WIDTH
    )
    return d_weight, d_bias


def normalise(
    x: Tensor, shortcut: Tensor | None, kept: Tensor, weight: Tensor, bias: Tensor, relu: bool, cut: _Cut | None = None
) -> Tensor:
    """relu((x − mean) / deviation · weight + bias + shortcut), channels last; `kept` (2, C): mean and 1/deviation."""
    cut, y = cut or _Cut(x), torch.empty_like(x)
    _normalise[cut.by_program](
        *(x, x if shortcut is None else shortcut, y, kept, weight, bias, cut.R, cut.rows_each, cut.C),
        SHORTCUT=shortcut is not None,
        RELU=relu,
        **cut.options,
    )
    return y


def batch_norm_in_use(norm: nn.BatchNorm2d, x: Tensor, shortcut: Tensor | None, relu: bool) -> Tensor:
    """relu(norm(x) + shortcut) by the norm's own statistics, without gradients."""
    x, shortcut = _channels_last(x, shortcut)
    kept = torch.stack([norm.running_mean, (norm.running_var + norm.eps).rsqrt()])
    return normalise(x, shortcut, kept, norm.weight, norm.bias, relu)


def _channels_last(x: Tensor, shortcut: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both in this layout and of one type."""
    x = x.contiguous(memory_format=torch.channels_last)
    return x, None if shortcut is None else shortcut.to(x.dtype).contiguous(memory_format=torch.channels_last)


class BatchNorm(torch.autograd.Function):
    """relu(norm(x) + shortcut), either of which may be left out; as nn.BatchNorm2d in training, statistics and all."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, relu: bool
    ) -> Tensor:
        x, shortcut = _channels_last(x, shortcut)
        cut = _Cut(x)
        parts = cut.parts(x)
        _statistics[cut.by_part](x, parts, cut.R, cut.rows_of_part, cut.C, **cut.options)
        kept = finish_statistics(parts, cut.rows_of_part, cut.R, norm)
        y = normalise(x, shortcut, kept, weight, bias, relu, cut)
        ctx.save_for_backward(x, y if relu and shortcut is not None else x, kept, weight, bias)
        ctx.has_shortcut, ctx.relu = shortcut is not None, relu
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, kept, weight, bias = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        cut, dx = _Cut(x), torch.empty_like(x)
        d_shortcut = torch.empty_like(x) if ctx.has_shortcut else None
        d_weight, d_bias = norm_gradients(dy, y, x, kept, weight, bias, d_shortcut, ctx.relu)
        # Past the ReLU already where there is a shortcut.
        gradient, relu = (dy, ctx.relu) if d_shortcut is None else (d_shortcut, False)
        _gradients[cut.by_program](
            *(gradient, x, kept, d_weight, d_bias, weight, bias, dx, cut.R, cut.rows_each, cut.C),
            RELU=relu,
            **cut.options,
        )
        return dx, d_shortcut, d_weight, d_bias, None, None
