"""The digit network's convolutions for many members at once, as Triton kernels: a launch does one layer of all.

A convolution, its bias, the pooling and the ReLU are one kernel; nothing between them touches memory. Weights of all
members lie in one flat tensor (M, P), activations are channels-last; `active` says which member a program is for.
Axes: M members, V views, h height, w width of a layer's input; 64 channels; pooled pixels are h//2 × w//2.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false

import triton
import triton.language as tl

CHANNELS: tl.constexpr = tl.constexpr(64)
TAPS: tl.constexpr = tl.constexpr(9)
COLOUR_TAPS: tl.constexpr = tl.constexpr(32)  # 3 channels × 9 taps, filled up to what a matrix unit takes
DEAD: tl.constexpr = tl.constexpr(4)  # in place of the winner's position where the ReLU gave zero


@triton.jit
def _larger(a, b):
    """A NaN goes through: it must reach the loss, where it is noticed."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _pooled_pixels(block, views, h: tl.constexpr, w: tl.constexpr, BLOCK: tl.constexpr):
    """View, row and column of a block of pooled pixels, and which of them exist."""
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    per_view = (h // 2) * (w // 2)
    view = pixel // per_view
    within = pixel % per_view
    return pixel, view, within // (w // 2), within % (w // 2), view < views


@triton.jit
def _colour_patch(images, number, y, x, exists, h, w, scale, shift):
    """The 3 × 3 × 3 surroundings of pixels of uint8 images (planar), normalised, zero outside: (BLOCK, 32)."""
    k = tl.arange(0, COLOUR_TAPS)
    channel, tap = k // TAPS, k % TAPS
    row = y[:, None] + (tap // 3)[None, :] - 1
    column = x[:, None] + (tap % 3)[None, :] - 1
    inside = exists[:, None] & (k < 27)[None, :] & (row >= 0) & (row < h) & (column >= 0) & (column < w)
    offset = number[:, None] * (3 * h * w) + (channel[None, :] * h + row) * w + column
    value = tl.load(images + offset, mask=inside, other=0).to(tl.float32) * scale + shift
    return tl.where(inside, value, 0.0)


@triton.jit
def _patch(inputs, slot, view, y, x, exists, views, h, w):
    """Pixels of channels-last activations, zero outside: (BLOCK, 64)."""
    inside = exists & (y >= 0) & (y < h) & (x >= 0) & (x < w)
    offset = ((slot * views + view) * h + y) * w + x
    channel = tl.arange(0, CHANNELS)
    return tl.load(inputs + offset[:, None] * CHANNELS + channel[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _store_winner(a, b, c, d, bias, outputs, codes, slot, pixel, exists, views, per_view, PLANAR: tl.constexpr):
    """Of the four pixels of a pool the largest plus bias, cut at zero, and which one it was."""
    best = _larger(_larger(a, b), _larger(c, d))
    code = tl.where(a == best, 0, tl.where(b == best, 1, tl.where(c == best, 2, 3)))
    best += bias[None, :]
    code = tl.where(best > 0, code, DEAD)
    channel = tl.arange(0, CHANNELS)
    offset = _output_offset(slot, pixel, views, per_view, PLANAR)
    tl.store(outputs + offset, _larger(best, 0.0).to(outputs.dtype.element_ty), mask=exists[:, None])
    flat = (slot * views * per_view + pixel)[:, None] * CHANNELS + channel[None, :]
    tl.store(codes + flat, code.to(tl.uint8), mask=exists[:, None])


@triton.jit
def _output_offset(slot, pixel, views, per_view, PLANAR: tl.constexpr):
    """Where a pooled pixel's channels lie: channels last, or planar as the classifier wants the last layer."""
    channel = tl.arange(0, CHANNELS)
    if PLANAR:
        view, within = pixel // per_view, pixel % per_view
        return ((slot * views + view)[:, None] * CHANNELS + channel[None, :]) * per_view + within[:, None]
    return (slot * views * per_view + pixel)[:, None] * CHANNELS + channel[None, :]


@triton.jit
def _won(gradients, codes, slot, pixel, exists, views, per_view, PLANAR: tl.constexpr):
    """Gradients of pooled pixels, and the code of who won them."""
    channel = tl.arange(0, CHANNELS)
    flat = (slot * views * per_view + pixel)[:, None] * CHANNELS + channel[None, :]
    code = tl.load(codes + flat, mask=exists[:, None], other=4)
    offset = _output_offset(slot, pixel, views, per_view, PLANAR)
    return tl.load(gradients + offset, mask=exists[:, None], other=0.0), code


@triton.jit
def first_forward(
    active, images, index, index_stride, step, weights, outputs, codes, members, views,
    h: tl.constexpr, w: tl.constexpr, scale, shift, offset, stride, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first convolution, from the uint8 images that `index` (S, M, V) names for this step."""
    block, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    pixel, view, y, x, exists = _pooled_pixels(block, views, h, w, BLOCK)
    row = tl.load(step) * members * views + member * index_stride
    number = tl.load(index + row + view, mask=exists, other=0)
    own = weights + member * stride + offset
    k, channel = tl.arange(0, COLOUR_TAPS), tl.arange(0, CHANNELS)
    kernel = tl.load(own + k[:, None] * CHANNELS + channel[None, :])
    dtype: tl.constexpr = weights.dtype.element_ty
    a = tl.dot(_colour_patch(images, number, 2 * y, 2 * x, exists, h, w, scale, shift).to(dtype), kernel,
               input_precision="ieee")  # fmt: skip
    b = tl.dot(_colour_patch(images, number, 2 * y, 2 * x + 1, exists, h, w, scale, shift).to(dtype), kernel,
               input_precision="ieee")  # fmt: skip
    c = tl.dot(_colour_patch(images, number, 2 * y + 1, 2 * x, exists, h, w, scale, shift).to(dtype), kernel,
               input_precision="ieee")  # fmt: skip
    d = tl.dot(_colour_patch(images, number, 2 * y + 1, 2 * x + 1, exists, h, w, scale, shift).to(dtype), kernel,
               input_precision="ieee")  # fmt: skip
    bias = tl.load(own + COLOUR_TAPS * CHANNELS + channel).to(tl.float32)
    _store_winner(a, b, c, d, bias, outputs, codes, slot, pixel, exists, views, (h // 2) * (w // 2), False)


@triton.jit
def first_weights(
    active, images, index, index_stride, step, gradients, codes, partial, members, views,
    h: tl.constexpr, w: tl.constexpr, scale, shift, views_at_once, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the first convolution's weights and bias over some views: `partial` (M, parts, 33, 64)."""
    part, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    row = tl.load(step) * members * views + member * index_stride
    per_view = (h // 2) * (w // 2)
    channel = tl.arange(0, CHANNELS)
    total = tl.zeros([COLOUR_TAPS, CHANNELS], tl.float32)
    bias = tl.zeros([CHANNELS], tl.float32)
    dtype: tl.constexpr = gradients.dtype.element_ty
    for start in range(0, views_at_once * per_view, BLOCK):
        pixel = part * views_at_once * per_view + start + tl.arange(0, BLOCK)
        view, within = pixel // per_view, pixel % per_view
        y, x = within // (w // 2), within % (w // 2)
        exists = (view < views) & (start + tl.arange(0, BLOCK) < views_at_once * per_view)
        number = tl.load(index + row + view, mask=exists, other=0)
        gradient, code = _won(gradients, codes, slot, pixel, exists, views, per_view, False)
        bias += tl.sum(tl.where(code < DEAD, gradient, 0.0).to(tl.float32), 0)
        for position in tl.static_range(4):
            patch = _colour_patch(
                images, number, 2 * y + position // 2, 2 * x + position % 2, exists, h, w, scale, shift
            )
            mine = tl.where(code == position, gradient, 0.0).to(dtype)
            total = tl.dot(tl.trans(patch.to(dtype)), mine, total, input_precision="ieee")
    own = partial + (member * tl.num_programs(0) + part) * ((COLOUR_TAPS + 1) * CHANNELS)
    k = tl.arange(0, COLOUR_TAPS)
    tl.store(own + k[:, None] * CHANNELS + channel[None, :], total)
    tl.store(own + COLOUR_TAPS * CHANNELS + channel, bias)


@triton.jit
def forward(
    active, inputs, weights, outputs, codes, views, h: tl.constexpr, w: tl.constexpr, offset, stride,
    BLOCK: tl.constexpr, PLANAR: tl.constexpr,
):  # fmt: skip
    """A later convolution: the 4 × 4 pixels around a pool are read once and feed its four positions."""
    block, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    pixel, view, py, px, exists = _pooled_pixels(block, views, h, w, BLOCK)
    own = weights + member * stride + offset
    row, channel = tl.arange(0, CHANNELS), tl.arange(0, CHANNELS)
    square = row[:, None] * CHANNELS + channel[None, :]
    a = tl.zeros([BLOCK, CHANNELS], tl.float32)
    b = tl.zeros([BLOCK, CHANNELS], tl.float32)
    c = tl.zeros([BLOCK, CHANNELS], tl.float32)
    d = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for i in tl.static_range(4):
        for j in tl.static_range(4):
            patch = _patch(inputs, slot, view, 2 * py + i - 1, 2 * px + j - 1, exists, views, h, w)
            if i < 3 and j < 3:
                kernel = tl.load(own + (i * 3 + j) * CHANNELS * CHANNELS + square)
                a = tl.dot(patch, kernel, a, input_precision="ieee")
            if i < 3 and j > 0:
                kernel = tl.load(own + (i * 3 + j - 1) * CHANNELS * CHANNELS + square)
                b = tl.dot(patch, kernel, b, input_precision="ieee")
            if i > 0 and j < 3:
                kernel = tl.load(own + ((i - 1) * 3 + j) * CHANNELS * CHANNELS + square)
                c = tl.dot(patch, kernel, c, input_precision="ieee")
            if i > 0 and j > 0:
                kernel = tl.load(own + ((i - 1) * 3 + j - 1) * CHANNELS * CHANNELS + square)
                d = tl.dot(patch, kernel, d, input_precision="ieee")
    bias = tl.load(own + TAPS * CHANNELS * CHANNELS + channel).to(tl.float32)
    _store_winner(a, b, c, d, bias, outputs, codes, slot, pixel, exists, views, (h // 2) * (w // 2), PLANAR)


@triton.jit
def backward_inputs(
    active, gradients, codes, weights, outputs, views, h: tl.constexpr, w: tl.constexpr, offset, stride,
    BLOCK: tl.constexpr, PLANAR: tl.constexpr,
):  # fmt: skip
    """Gradients with respect to a later convolution's input, channels-last."""
    block, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    pixel = block * BLOCK + tl.arange(0, BLOCK)
    view, within = pixel // (h * w), pixel % (h * w)
    y, x = within // w, within % w
    per_view = (h // 2) * (w // 2)
    own = weights + member * stride + offset
    row, channel = tl.arange(0, CHANNELS), tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    dtype: tl.constexpr = weights.dtype.element_ty
    for tap in tl.static_range(9):
        oy, ox = y + 1 - tap // 3, x + 1 - tap % 3  # the output pixel that this tap carried the input to
        exists = (view < views) & (oy >= 0) & (oy < h // 2 * 2) & (ox >= 0) & (ox < w // 2 * 2)
        pooled = view * per_view + (oy // 2) * (w // 2) + ox // 2
        gradient, code = _won(gradients, codes, slot, pooled, exists, views, per_view, PLANAR)
        position = (oy % 2) * 2 + ox % 2
        mine = tl.where(code == position[:, None], gradient, 0.0).to(dtype)
        # Read transposed: what went from input channel to output channel comes back.
        kernel = tl.load(own + tap * CHANNELS * CHANNELS + channel[None, :] * CHANNELS + row[:, None])
        total = tl.dot(mine, kernel, total, input_precision="ieee")
    flat = ((slot * views * h * w) + pixel)[:, None] * CHANNELS + channel[None, :]
    tl.store(outputs + flat, total.to(outputs.dtype.element_ty), mask=(view < views)[:, None])


@triton.jit
def backward_weights(
    active, inputs, gradients, codes, outputs, views, h: tl.constexpr, w: tl.constexpr, offset, stride,
    BLOCK: tl.constexpr, PLANAR: tl.constexpr,
):  # fmt: skip
    """Gradients of one tap of a later convolution's weights (and, beside the first tap, of its bias), float32."""
    tap, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    per_view = (h // 2) * (w // 2)
    row, channel = tl.arange(0, CHANNELS), tl.arange(0, CHANNELS)
    total = tl.zeros([CHANNELS, CHANNELS], tl.float32)
    bias = tl.zeros([CHANNELS], tl.float32)
    dtype: tl.constexpr = gradients.dtype.element_ty
    for start in range(0, views * per_view, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        view, within = pixel // per_view, pixel % per_view
        exists = view < views
        py, px = within // (w // 2), within % (w // 2)
        gradient, code = _won(gradients, codes, slot, pixel, exists, views, per_view, PLANAR)
        bias += tl.sum(tl.where(code < DEAD, gradient, 0.0).to(tl.float32), 0)
        for position in tl.static_range(4):
            y = 2 * py + position // 2 + tap // 3 - 1
            x = 2 * px + position % 2 + tap % 3 - 1
            patch = _patch(inputs, slot, view, y, x, exists, views, h, w)
            mine = tl.where(code == position, gradient, 0.0).to(dtype)
            total = tl.dot(tl.trans(patch), mine, total, input_precision="ieee")
    own = outputs + member * stride + offset
    tl.store(own + (tap * CHANNELS + row[:, None]) * CHANNELS + channel[None, :], total)
    if tap == 0:
        tl.store(own + TAPS * CHANNELS * CHANNELS + channel, bias)
