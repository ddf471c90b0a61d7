"""The small layers of the digit stack as Triton kernels: linear layers, the head's norm, losses, the SGD update.

Forward and backward, a launch for all members; `active` says which member a program is for, so that any of them can
rest. Views beyond a step's count are not there for any of these kernels. Implements Eq. 1 and 2 (`losses`).
Axes: M members, V views, S steps of a table.
"""

# Kernels are written in Triton's language, which is no Python to a type checker.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false, reportArgumentType=false

import triton
import triton.language as tl


@triton.jit
def linear_forward(
    active, inputs, weights, outputs, views, size_in, size_out, offset, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """outputs (M, V, out), float32 = inputs (M, V, in) · weights (out, in)ᵀ + bias, which lies behind the weights."""
    slot = tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    view, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    own = weights + member * stride + offset
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, size_in, DEPTH):
        k = start + tl.arange(0, DEPTH)
        x = tl.load(inputs + (slot * views + view)[:, None] * size_in + k[None, :],
                    mask=(view < views)[:, None] & (k < size_in)[None, :], other=0.0)  # fmt: skip
        kernel = tl.load(own + column[None, :] * size_in + k[:, None],
                         mask=(column < size_out)[None, :] & (k < size_in)[:, None], other=0.0)  # fmt: skip
        total = tl.dot(x.to(kernel.dtype), kernel, total, input_precision="ieee")
    bias = tl.load(own + size_out * size_in + column, mask=column < size_out, other=0.0).to(tl.float32)
    tl.store(outputs + (slot * views + view)[:, None] * size_out + column[None, :], total + bias[None, :],
             mask=(view < views)[:, None] & (column < size_out)[None, :])  # fmt: skip


@triton.jit
def linear_inputs(
    active, gradients, weights, outputs, views, size_in, size_out, offset, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """outputs (M, V, in) = gradients (M, V, out) · weights (out, in), added to what is there where ADD."""
    slot = tl.program_id(1).to(tl.int64)
    member = tl.load(active + slot)
    view, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    own = weights + member * stride + offset
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, size_out, DEPTH):
        k = start + tl.arange(0, DEPTH)
        g = tl.load(gradients + (slot * views + view)[:, None] * size_out + k[None, :],
                    mask=(view < views)[:, None] & (k < size_out)[None, :], other=0.0)  # fmt: skip
        kernel = tl.load(own + k[:, None] * size_in + column[None, :],
                         mask=(column < size_in)[None, :] & (k < size_out)[:, None], other=0.0)  # fmt: skip
        total = tl.dot(g.to(kernel.dtype), kernel, total, input_precision="ieee")
    place = outputs + (slot * views + view)[:, None] * size_in + column[None, :]
    mask = (view < views)[:, None] & (column < size_in)[None, :]
    if ADD:
        total += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, total.to(outputs.dtype.element_ty), mask=mask)


@triton.jit
def linear_weights(
    active, inputs, gradients, outputs, views, size_in, size_out, offset, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """outputs (out, in), float32 = gradients (M, V, out)ᵀ · inputs (M, V, in), and the bias's gradient behind it."""
    slot = tl.program_id(2).to(tl.int64)
    member = tl.load(active + slot)
    view = tl.arange(0, DEPTH)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    x = tl.load(inputs + (slot * views + view)[:, None] * size_in + column[None, :],
                mask=(view < views)[:, None] & (column < size_in)[None, :], other=0.0)  # fmt: skip
    g = tl.load(gradients + (slot * views + view)[:, None] * size_out + row[None, :],
                mask=(view < views)[:, None] & (row < size_out)[None, :], other=0.0)  # fmt: skip
    own = outputs + member * stride + offset
    total = tl.dot(tl.trans(g.to(x.dtype)), x, input_precision="ieee")
    tl.store(own + row[:, None] * size_in + column[None, :], total,
             mask=(row < size_out)[:, None] & (column < size_in)[None, :])  # fmt: skip
    if tl.program_id(0) == 0:
        tl.store(own + size_out * size_in + row, tl.sum(g.to(tl.float32), 0), mask=row < size_out)


@triton.jit
def _features(count, views, size, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A block of one member's features: which are there, which valid, their columns, and where they lie."""
    slot = tl.program_id(1).to(tl.int64)
    view, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = column < size
    there = (view < views)[:, None] & exists[None, :]
    place = (slot * views + view)[:, None] * size + column[None, :]
    return there, there & (view < count)[:, None], column, exists, place


@triton.jit
def norm_forward(
    active, inputs, weights, outputs, running, counts, step, members, views, size, offset, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Batch norm over a member's valid views, then ReLU; keeps the running statistics (M, 2, size)."""
    member = tl.load(active + tl.program_id(1))
    count = tl.load(counts + tl.load(step) * members + member).to(tl.float32)
    there, valid, column, exists, place = _features(count, views, size, ROWS, COLUMNS)
    x = tl.load(inputs + place, mask=valid, other=0.0)
    mean = tl.sum(x, 0) / count
    centred = tl.where(valid, x - mean[None, :], 0.0)
    variance = tl.sum(centred * centred, 0) / count
    own = weights + member * stride + offset
    gain = tl.load(own + column, mask=exists, other=0.0)
    bias = tl.load(own + size + column, mask=exists, other=0.0)
    y = centred * (1 / tl.sqrt(variance + 1e-5))[None, :] * gain[None, :] + bias[None, :]
    y = tl.where(valid, tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0)
    tl.store(outputs + place, y.to(outputs.dtype.element_ty), mask=there)
    kept = running + member * 2 * size + column
    tl.store(kept, 0.9 * tl.load(kept, mask=exists) + 0.1 * mean, mask=exists)
    unbiased = variance * count / tl.maximum(count - 1, 1)
    tl.store(kept + size, 0.9 * tl.load(kept + size, mask=exists) + 0.1 * unbiased, mask=exists)


@triton.jit
def norm_backward(
    active, inputs, outputs, gradients, weights, input_gradients, weight_gradients, counts, step, members, views, size,
    offset, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Backward of `norm_forward`: gradients of its input (float32) and of gain and bias."""
    member = tl.load(active + tl.program_id(1))
    count = tl.load(counts + tl.load(step) * members + member).to(tl.float32)
    there, valid, column, exists, place = _features(count, views, size, ROWS, COLUMNS)
    x = tl.load(inputs + place, mask=valid, other=0.0)
    mean = tl.sum(x, 0) / count
    centred = tl.where(valid, x - mean[None, :], 0.0)
    variance = tl.sum(centred * centred, 0) / count
    inverse = 1 / tl.sqrt(variance + 1e-5)
    normal = centred * inverse[None, :]
    y = tl.load(outputs + place, mask=valid, other=0.0).to(tl.float32)
    g = tl.load(gradients + place, mask=valid, other=0.0).to(tl.float32)
    g = tl.where(y > 0, g, 0.0)
    gain_gradient, bias_gradient = tl.sum(g * normal, 0), tl.sum(g, 0)
    gain = tl.load(weights + member * stride + offset + column, mask=exists, other=0.0)
    back = (g - (bias_gradient[None, :] + normal * gain_gradient[None, :]) / count) * (gain * inverse)[None, :]
    tl.store(input_gradients + place, tl.where(valid, back, 0.0), mask=there)
    own = weight_gradients + member * stride + offset
    tl.store(own + column, gain_gradient, mask=exists)
    tl.store(own + size + column, bias_gradient, mask=exists)


@triton.jit
def losses(
    active, logits, projections, labels, counts, step, rates, sums, logit_gradients, projection_gradients, members,
    views, classes, ROWS: tl.constexpr, CLASSES: tl.constexpr, SIZE: tl.constexpr, DEPTH: tl.constexpr,
    CONTRAST: tl.constexpr,
):  # fmt: skip
    """Eq. 1 and 2 with their gradients, a program per member; the two losses go to `sums` (S, M, 2).

    `rates` (M, 5): learning rate, momentum, weight decay, weight of the contrast, 1 / temperature. Projections are read
    twice, DEPTH of their SIZE numbers at a time: whole they would not fit shared memory.
    """
    slot = tl.program_id(0).to(tl.int64)
    member = tl.load(active + slot)
    moment = tl.load(step) * members + member
    count = tl.load(counts + moment)
    view = tl.arange(0, ROWS)
    valid = view < count
    label = tl.load(labels + moment * views + view, mask=valid, other=-1)

    c = tl.arange(0, CLASSES)
    place = (slot * views + view)[:, None] * classes + c[None, :]
    there = (view < views)[:, None] & (c < classes)[None, :]
    z = tl.load(logits + place, mask=there, other=float("-inf"))
    z = tl.where((c < classes)[None, :], tl.where(valid[:, None], z, 0.0), float("-inf"))
    z -= tl.max(z, 1)[:, None]
    exponential = tl.exp(z)
    total = tl.sum(exponential, 1)
    own_class = c[None, :] == label[:, None]
    log_probability = tl.sum(tl.where(own_class, z, 0.0), 1) - tl.log(total)
    cross_entropy = -tl.sum(tl.where(valid, log_probability, 0.0), 0) / count
    gradient = (exponential / total[:, None] - tl.where(own_class, 1.0, 0.0)) / count
    tl.store(logit_gradients + place, tl.where(valid[:, None], gradient, 0.0), mask=there)
    tl.store(sums + moment * 2, cross_entropy)

    if CONTRAST:
        weight, sharpness = tl.load(rates + member * 5 + 3), tl.load(rates + member * 5 + 4)
        place = (slot * views + view)[:, None] * SIZE + tl.arange(0, DEPTH)[None, :]
        squares = tl.zeros([ROWS], tl.float32)
        products = tl.zeros([ROWS, ROWS], tl.float32)
        for start in range(0, SIZE, DEPTH):
            p = tl.load(projections + place + start, mask=valid[:, None], other=0.0)
            squares += tl.sum(p * p, 1)
            products = tl.dot(p, tl.trans(p), products, input_precision="tf32x3")
        length = tl.maximum(tl.sqrt(squares), 1e-12)
        other = valid[:, None] & valid[None, :] & (view[:, None] != view[None, :])
        positive = other & (label[:, None] == label[None, :])
        similarity = tl.where(other, products / (length[:, None] * length[None, :]) * sharpness, -1e30)
        largest = tl.max(similarity, 1)
        total = tl.sum(tl.exp(similarity - largest[:, None]), 1)
        positives = tl.sum(tl.where(positive, 1.0, 0.0), 1)
        each = 1 / tl.maximum(positives, 1.0)
        alike = tl.sum(tl.where(positive, similarity - largest[:, None], 0.0), 1) - positives * tl.log(total)
        contrast = -tl.sum(tl.where(valid, alike * each, 0.0), 0) / count
        tl.store(sums + moment * 2 + 1, contrast)
        # A similarity counts for both of its views; it is symmetric, so nothing has to be transposed.
        share = positives * each / total
        push = tl.exp(similarity - largest[:, None]) * share[:, None]
        push += tl.exp(similarity - largest[None, :]) * share[None, :]
        g = push - tl.where(positive, each[:, None] + each[None, :], 0.0)
        along = tl.sum(g * similarity, 1)  # of the gradient below, along u: a change of length changes nothing
        scale = weight / count / length
        for start in range(0, SIZE, DEPTH):
            u = tl.load(projections + place + start, mask=valid[:, None], other=0.0) / length[:, None]
            turned = tl.dot(g, u, input_precision="tf32x3") * sharpness - u * along[:, None]
            turned = tl.where(valid[:, None], turned * scale[:, None], 0.0)
            tl.store(projection_gradients + place + start, turned, mask=(view < views)[:, None])
    else:
        tl.store(sums + moment * 2 + 1, 0.0)
