"""The 14 ops, crop, flip and gather (§ "ESAug") compiled for the CPU, byte for byte as in ops.py and basic.py.

Comes in: a pool of uint8 images (N,3,H,W) and, per view, image number, crop, op and argument. P: H·W pixels.
Goes out: uint8 views (V,3,H,W). Importing this module imports Numba and compiles, or loads what was compiled before.
Numba widens every integer result to 64 bits: the casts inside loops keep them narrow, so that loops become SIMD.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from numba import njit

i32, f32 = np.int32, np.float32
NOT_CROPPED = np.empty((3, 0), np.uint8)

# Kernels build on no file but these, so that compiled code is used again only while they are what they were:
# the numbers of the ops stand here once more, and the bits of a crop's weights (tests hold them to basic.py's results).
_BUILT_UPON = ("compiled_ops.py", "lanes.py")
IDENTITY, AUTOCONTRAST, EQUALIZE, ROTATE, SOLARIZE, COLOR, POSTERIZE, CONTRAST, BRIGHTNESS, SHARPNESS = range(10)
SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, NUM_OPS = range(10, 15)


# No kernel allocates, so none has to count references: less code to compile. All must agree on it.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def compile_ahead(signature: str) -> Callable[[Any], Any]:
    """Compile on import for one signature, and keep the result on disk where there is a place to keep it."""
    # Numba looks for changes in a kernel's own file alone: what it builds on goes into the name that is kept.
    sources = b"".join(files("triplee.augment").joinpath(name).read_bytes() for name in _BUILT_UPON)
    stamp = hashlib.blake2b(sources, digest_size=8).hexdigest()

    def compiled(function: Any) -> Any:
        function.__qualname__ += f"_{stamp}"
        try:
            return njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError:  # no folder that can be written to
            return njit(signature, **_OPTIONS)(function)

    return compiled


# Called by kernels alone: what Python would need to call them is not compiled.
inner_function = partial(njit, **_OPTIONS, no_cpython_wrapper=True, no_cfunc_wrapper=True)
_inner = inner_function()
_part_of_kernel = inner_function(inline="always")  # a level less: every caller optimises all it calls once more


@_inner
def _cut(value: np.float32) -> np.uint8:
    return np.uint8(i32(min(max(value, f32(0)), f32(255))))


@_inner
def _look_up(table: np.ndarray, source: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(source)):
        out[i] = np.uint8(table[source[i]])


@_inner
def _autocontrast(source: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    low, high = np.uint8(255), np.uint8(0)
    for i in range(len(source)):
        low, high = min(low, source[i]), max(high, source[i])
    scale = 255.0 / (np.float64(high) - np.float64(low)) if high > low else 1.0
    offset = -np.float64(low) * scale if high > low else 0.0
    for value in range(256):
        table[value] = i32(min(max(value * scale + offset, 0.0), 255.0))
    _look_up(table, source, out)


@_inner
def _equalize(source: np.ndarray, counts: np.ndarray, table: np.ndarray, out: np.ndarray) -> None:
    # Four counts, as an increment has to wait for the last one of the same cell.
    total, second, third, fourth = counts[:256], counts[256:512], counts[512:768], counts[768:1024]
    for i in range(1024):
        counts[i] = 0
    quarters = len(source) // 4
    for i in range(quarters):
        total[source[4 * i]] += 1
        second[source[4 * i + 1]] += 1
        third[source[4 * i + 2]] += 1
        fourth[source[4 * i + 3]] += 1
    for i in range(4 * quarters, len(source)):
        total[source[i]] += 1
    for value in range(256):
        total[value] = i32(total[value] + second[value] + third[value] + fourth[value])
    last = 255
    while total[last] == 0:
        last -= 1
    step = (len(source) - total[last]) // 255
    before, below = second, i32(step // 2)
    for value in range(256):
        before[value] = below
        below = i32(below + total[value])
    divisor = np.float64(step)
    for value in range(256):  # a whole division: exact in double precision, and there it is SIMD
        table[value] = i32(min(np.float64(before[value]) / divisor, 255.0)) if step else i32(value)
    _look_up(table, source, out)


@_inner
def _grey(red: np.uint8, green: np.uint8, blue: np.uint8) -> np.int32:
    return i32(i32(19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)


@_inner
def _color(source: np.ndarray, factor: np.float32, out: np.ndarray) -> None:
    red, green, blue = source[0], source[1], source[2]
    out_red, out_green, out_blue = out[0], out[1], out[2]
    for i in range(len(red)):
        grey = f32(_grey(red[i], green[i], blue[i]))
        out_red[i] = _cut((f32(red[i]) - grey) * factor + grey)
        out_green[i] = _cut((f32(green[i]) - grey) * factor + grey)
        out_blue[i] = _cut((f32(blue[i]) - grey) * factor + grey)


@_inner
def _contrast(source: np.ndarray, factor: np.float32, out: np.ndarray) -> None:
    red, green, blue = source[0], source[1], source[2]
    total = 0
    for i in range(len(red)):
        total += np.int64(_grey(red[i], green[i], blue[i]))
    mean = f32(np.floor(total / len(red) + 0.5))
    for c in range(3):
        plane, out_plane = source[c], out[c]
        for i in range(len(plane)):
            out_plane[i] = _cut((f32(plane[i]) - mean) * factor + mean)


@_inner
def _sharpness(source: np.ndarray, width: int, factor: np.float32, out: np.ndarray) -> None:
    """Blend with the 3×3 smoothing (1 1 1; 1 5 1; 1 1 1)/13, rounded as (2·total + 13) // 26; borders stay."""
    height = len(source) // width
    # Over all rows but the first and last in one loop, as if there were no left and right border; these come after.
    inner = max((height - 2) * width - 2, 0)
    upper, middle, lower = source[: inner + 2], source[width : width + inner + 2], source[2 * width :]
    changed = out[width + 1 :]
    for i in range(inner):
        total = 5 * middle[i + 1] + middle[i] + middle[i + 2] + upper[i] + upper[i + 1] + upper[i + 2]
        total = total + lower[i] + lower[i + 1] + lower[i + 2]
        # (2·total + 13) // 26, as a product and a shift that are exact up to 18723.
        smooth = f32(i32(i32((2 * total + 13) * 10083) >> 18))
        changed[i] = _cut((f32(middle[i + 1]) - smooth) * factor + smooth)
    for x in range(width):
        out[x] = source[x]
        out[len(out) - width + x] = source[len(out) - width + x]
    for y in range(height):
        for i in (y * width, (y + 1) * width - 1):
            out[i] = source[i]


@_inner
def _fixed_matrix(
    kind: int, argument: float, height: int, width: int
) -> tuple[np.int32, np.int32, np.int32, np.int32, np.int32, np.int32]:
    """ops.py's `fixed_matrices` for one view."""
    a, b, c, d, e, f = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    if kind == ROTATE:
        angle = -math.radians(argument % 360.0)
        cos, sin = np.rint(math.cos(angle) * 1e15) / 1e15, np.rint(math.sin(angle) * 1e15) / 1e15
        center_x, center_y = width / 2, height / 2
        a, b, c = cos, sin, cos * -center_x + sin * -center_y + center_x
        d, e, f = -sin, cos, -sin * -center_x + cos * -center_y + center_y
    elif kind == SHEAR_X:
        b = argument
    elif kind == SHEAR_Y:
        d = argument
    elif kind == TRANSLATE_X:
        c = min(max(argument, -np.float64(width)), np.float64(width))
    else:
        f = min(max(argument, -np.float64(height)), np.float64(height))
    c, f = c + a * 0.5 + b * 0.5, f + d * 0.5 + e * 0.5
    return _fixed(a), _fixed(b), _fixed(c), _fixed(d), _fixed(e), _fixed(f)


@_inner
def _fixed(value: float) -> np.int32:
    return i32(math.floor(value * 65536.0 + 0.5))


@_inner
def _shift_rows(source: np.ndarray, width: int, b: np.int32, c: np.int32, f: np.int32, out: np.ndarray) -> None:
    """A warp that moves whole rows (a = e = 1, d = 0). Rows in turn that move alike are one piece of memory."""
    num_pixels = source.shape[1]
    height = num_pixels // width
    down = f >> 16
    y = 0
    while y < height:
        first, shift = y, (c + b * y) >> 16
        while y < height and (c + b * y) >> 16 == shift:
            y += 1
        offset = down * width + shift
        start, stop = max(first * width, -offset), min(y * width, num_pixels - offset)
        left, right = i32(min(max(-shift, 0), width)), i32(max(min(width - shift, width), 0))
        for channel in range(3):
            plane, rows = source[channel], out[channel, first * width : y * width]
            if start < stop:
                piece, inside = plane[start + offset : stop + offset], rows[start - first * width :]
                for i in range(len(piece)):
                    inside[i] = piece[i]
            # Black where nothing came from, and where pixels came in over a border, out of the row next to theirs.
            for row in range(y - first):
                line = rows[row * width : (row + 1) * width]
                if not 0 <= first + row + down < height:
                    for x in range(width):
                        line[x] = 0
                elif left or right < width:
                    for x in range(width):
                        line[x] = line[x] if (i32(x) >= left) & (i32(x) < right) else np.uint8(0)


@_inner
def _warp(
    source: np.ndarray,
    width: int,
    matrix: tuple[np.int32, np.int32, np.int32, np.int32, np.int32, np.int32],
    places: np.ndarray,
    out: np.ndarray,
) -> None:
    height = source.shape[1] // width
    a, b, c, d, e, f = matrix
    for y in range(height):
        start_x, start_y, row = i32(c + b * y), i32(f + e * y), y * width
        for x in range(width):
            from_x, from_y = i32(i32(start_x + a * x) >> 16), i32(i32(start_y + d * x) >> 16)
            inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
            places[x] = i32(from_y * width + from_x) if inside else i32(-1)
        for channel in range(3):
            for x in range(width):
                place = places[x]
                out[channel, row + x] = source[channel, np.uint32(place)] if place >= 0 else np.uint8(0)


@_part_of_kernel
def _apply_op(
    kind: int,
    argument: float,
    source: np.ndarray,
    width: int,
    numbers: np.ndarray,
    out: np.ndarray,
) -> None:
    """One op on one view, (3,H·W) to (3,H·W)."""
    factor, table, counts = f32(argument), numbers[:256], numbers[256:]
    if kind == COLOR:
        _color(source, factor, out)
    elif kind == CONTRAST:
        _contrast(source, factor, out)
    elif kind == ROTATE or kind >= SHEAR_X:
        matrix = _fixed_matrix(kind, argument, source.shape[1] // width, width)
        if matrix[0] == 65536 and matrix[3] == 0:
            _shift_rows(source, width, matrix[1], matrix[2], matrix[5], out)
        else:
            _warp(source, width, matrix, numbers, out)
    else:
        for c in range(3):
            plane, out_plane = source[c], out[c]
            if kind == AUTOCONTRAST:
                _autocontrast(plane, table, out_plane)
            elif kind == EQUALIZE:
                _equalize(plane, counts, table, out_plane)
            elif kind == SOLARIZE:
                threshold = np.int16(argument)
                for i in range(len(plane)):
                    out_plane[i] = np.uint8(255 - plane[i]) if np.int16(plane[i]) >= threshold else plane[i]
            elif kind == POSTERIZE:
                mask = np.uint8(256 - (1 << (8 - np.int64(argument))))
                for i in range(len(plane)):
                    out_plane[i] = plane[i] & mask
            elif kind == BRIGHTNESS:
                for i in range(len(plane)):
                    out_plane[i] = _cut(f32(plane[i]) * factor)
            elif kind == SHARPNESS:
                _sharpness(plane, width, factor, out_plane)
            else:
                for i in range(len(plane)):
                    out_plane[i] = plane[i]


@_inner
def _mix_columns(
    plane: np.ndarray, row: int, left: np.ndarray, right: np.ndarray, weight: np.ndarray, out: np.ndarray
) -> None:
    for x in range(len(left)):
        out[x] = i32(
            plane[np.uint64(row + left[x])] * (2048 - weight[x]) + plane[np.uint64(row + right[x])] * weight[x]
        )


@_inner
def _crop(source: np.ndarray, width: int, crop: np.ndarray, numbers: np.ndarray, out: np.ndarray) -> None:
    """Bilinear in integers: rows are mixed along x once, kept, and mixed along y."""
    height = source.shape[1] // width
    left, right, weight = numbers[:width], numbers[width : 2 * width], numbers[2 * width : 3 * width]
    kept = numbers[3 * width : 5 * width]
    for x in range(width):
        place = min(max(crop[1] + crop[0] * x, 0), (width - 1) << 16)
        left[x], weight[x] = i32(place >> 16), i32((place & 0xFFFF) >> 5)
        right[x] = i32(min((place >> 16) + 1, width - 1))
    for c in range(3):
        kept_row_0, kept_row_1 = -1, -1  # which input rows the two kept ones are: even rows in 0, odd ones in 1
        plane, out_plane = source[c], out[c]
        for y in range(height):
            place = min(max(crop[3] + crop[2] * y, 0), (height - 1) << 16)
            upper, weight_y = place >> 16, i32((place & 0xFFFF) >> 5)
            lower = min(upper + 1, height - 1)
            for from_y in (upper, lower):
                if from_y % 2 == 0 and kept_row_0 != from_y:
                    _mix_columns(plane, from_y * width, left, right, weight, kept[:width])
                    kept_row_0 = from_y
                elif from_y % 2 == 1 and kept_row_1 != from_y:
                    _mix_columns(plane, from_y * width, left, right, weight, kept[width:])
                    kept_row_1 = from_y
            near, far, row = upper % 2 * width, lower % 2 * width, y * width
            for x in range(width):
                out_plane[row + x] = np.uint8(
                    i32(kept[near + x] * (2048 - weight_y) + kept[far + x] * weight_y + (1 << 21)) >> 22
                )


@compile_ahead("b1(u1[:,:,:,::1], i8[:], i4[:,::1], i8[:], f8[:], u1[:,:,:,::1], i4[::1], u1[:,::1], i8, i8)")
def apply_views(
    pool_NCHW: np.ndarray,
    index_V: np.ndarray,
    crop_V4: np.ndarray,
    op_V: np.ndarray,
    argument_V: np.ndarray,
    out_VCHW: np.ndarray,
    numbers: np.ndarray,
    cropped: np.ndarray,
    first: int,
    last: int,
) -> bool:
    """Views `first` to `last` of the pool's images `index_V`: cropped if crops are given, then one op.

    False: an index is out of range, and nothing more was done. `room_for_ops` gives what to write in between.
    """
    height, width = pool_NCHW.shape[2:]
    pool_NCP = pool_NCHW.reshape((len(pool_NCHW), 3, height * width))
    out_VCP = out_VCHW.reshape((len(out_VCHW), 3, height * width))
    for v in range(first, last):
        if not 0 <= index_V[v] < len(pool_NCP):
            return False
        source = pool_NCP[index_V[v]]
        if len(crop_V4):
            _crop(source, width, crop_V4[v], numbers, cropped)
            source = cropped
        kind = op_V[v] if op_V[v] < NUM_OPS else IDENTITY
        _apply_op(kind, argument_V[v], source, width, numbers, out_VCP[v])
    return True


def room_for_ops(height: int, width: int, crops: bool) -> tuple[np.ndarray, np.ndarray]:
    """`numbers` and `cropped` for one thread: no kernel allocates."""
    cropped = np.empty((3, height * width), np.uint8) if crops else NOT_CROPPED
    return np.empty(max(5 * 256, 5 * width), np.int32), cropped
