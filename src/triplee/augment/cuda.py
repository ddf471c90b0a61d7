"""ESAug on CUDA (§ "ESAug"): gather, crop, flip and one of the 14 ops as Triton kernels, bytes equal to the CPU's.

Comes in: a resident uint8 pool and each view's image, op and numbers, all on the device; goes out: uint8 views.
No size is compiled in: images of one tile (32×32) take one kernel, larger ones two, whatever their size.
Axes: N pool images, V views, C channels (3), H height, W width.
"""

# Kernels are written in Triton's language, which is no Python to a type checker, and Triton is not everywhere.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from triplee.augment.ops import OPS

AUTOCONTRAST = tl.constexpr(OPS.index("autocontrast"))
EQUALIZE = tl.constexpr(OPS.index("equalize"))
ROTATE = tl.constexpr(OPS.index("rotate"))
SOLARIZE = tl.constexpr(OPS.index("solarize"))
COLOR = tl.constexpr(OPS.index("color"))
POSTERIZE = tl.constexpr(OPS.index("posterize"))
CONTRAST = tl.constexpr(OPS.index("contrast"))
BRIGHTNESS = tl.constexpr(OPS.index("brightness"))
SHARPNESS = tl.constexpr(OPS.index("sharpness"))
SHEAR_X = tl.constexpr(OPS.index("shear_x"))
TRANSLATE_Y = tl.constexpr(OPS.index("translate_y"))  # from shear_x to this one, all are warps

# A tile is 32 pixels wide: a row of it is one 32-byte sector of memory, the usual sides (32, 160, 224) are cut without
# waste, and no pixel's place needs a division by a size unknown to the compiler.
TILE_WIDTH = tl.constexpr(32)
TILE_ROWS = 32  # a digit is one tile
STATISTICS_ROWS = 64  # where one program goes through a whole channel: half as many rounds
# Half the threads that a multiprocessor can hold fit its registers then; ptxas by itself takes up to 180.
MAX_REGISTERS = 64


@triton.jit
def _tile(number, width, rows: tl.constexpr):
    """The pixels (x, y) of a tile, row by row; some may lie outside the image."""
    tiles_across = tl.cdiv(width, TILE_WIDTH)
    pixel = tl.arange(0, TILE_WIDTH * rows)
    x = number % tiles_across * TILE_WIDTH + pixel % TILE_WIDTH
    y = number // tiles_across * rows + pixel // TILE_WIDTH
    return x, y


@triton.jit
def _read(plane_ptr, x, y, wanted, height, width, ax, cx, ay, cy, CROP: tl.constexpr):
    """Pixels of one channel after the crop, as int32; 0 where not wanted. Bilinear as in basic.py, in integers."""
    if CROP:
        from_x = tl.minimum(tl.maximum(cx + ax * x, 0), (width - 1) << 16)
        from_y = tl.minimum(tl.maximum(cy + ay * y, 0), (height - 1) << 16)
        left, above = from_x >> 16, from_y >> 16
        right = tl.minimum(left + 1, width - 1)
        above_row, below_row = above * width, tl.minimum(above + 1, height - 1) * width
        share_x, share_y = (from_x & 0xFFFF) >> 5, (from_y & 0xFFFF) >> 5
        p00 = tl.load(plane_ptr + (above_row + left), mask=wanted, other=0).to(tl.int32)
        p01 = tl.load(plane_ptr + (above_row + right), mask=wanted, other=0).to(tl.int32)
        p10 = tl.load(plane_ptr + (below_row + left), mask=wanted, other=0).to(tl.int32)
        p11 = tl.load(plane_ptr + (below_row + right), mask=wanted, other=0).to(tl.int32)
        # p·(2048 − s) + q·s is 2048·p + (q − p)·s: half the products, the same integer.
        upper = p00 * 2048 + (p01 - p00) * share_x
        lower = p10 * 2048 + (p11 - p10) * share_x
        value = (upper * 2048 + (lower - upper) * share_y + (1 << 21)) >> 22
    else:
        value = tl.load(plane_ptr + (y * width + x), mask=wanted, other=0).to(tl.int32)
    return value


@triton.jit
def _grey(red, green, blue):
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16


@triton.jit
def _cut(value):
    """Pillow's way to a byte: clipped, then cut off towards zero."""
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32).to(tl.uint8)


@triton.jit
def _blend(degenerate, value, factor):
    start = degenerate.to(tl.float32)
    return _cut((value.to(tl.float32) - start) * factor + start)


@triton.jit
def _crop(crop_ptr, view, CROP: tl.constexpr):
    ax, cx, ay, cy = 0, 0, 0, 0
    if CROP:
        ax, cx = tl.load(crop_ptr + view * 4), tl.load(crop_ptr + view * 4 + 1)
        ay, cy = tl.load(crop_ptr + view * 4 + 2), tl.load(crop_ptr + view * 4 + 3)
    return ax, cx, ay, cy


@triton.jit
def _write_tables(
    image_ptr,
    table_ptr,
    op,
    argument,
    height,
    width,
    ax,
    cx,
    ay,
    cy,
    CROP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The 256-entry tables of a view that drew a point op; a program makes every num_programs(1)-th channel's."""
    level = tl.arange(0, 256)
    num_pixels = height * width
    num_tiles = tl.cdiv(width, TILE_WIDTH) * tl.cdiv(height, ROWS)
    one_for_all = (op == CONTRAST) | (op == BRIGHTNESS) | (op == SOLARIZE) | (op == POSTERIZE)
    if (op == AUTOCONTRAST) | (op == EQUALIZE):
        for channel in range(tl.program_id(1), 3, tl.num_programs(1)):
            plane_ptr = image_ptr + channel * num_pixels
            if op == AUTOCONTRAST:
                lowest = tl.full((TILE_WIDTH * ROWS,), 255, tl.int32)
                highest = tl.full((TILE_WIDTH * ROWS,), 0, tl.int32)
                for tile in range(num_tiles):
                    x, y = _tile(tile, width, ROWS)
                    inside = (x < width) & (y < height)
                    value = _read(plane_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
                    lowest = tl.minimum(lowest, tl.where(inside, value, 255))
                    highest = tl.maximum(highest, value)
                low, high = tl.min(lowest, 0).to(tl.float64), tl.max(highest, 0).to(tl.float64)
                scale = 255.0 / tl.where(high > low, high - low, 1.0)
                stretched = _cut(level.to(tl.float64) * scale + -low * scale)
                table = tl.where(high > low, stretched, level.to(tl.uint8))
                tl.store(table_ptr + channel * 256 + level, table)
            else:
                histogram = tl.full((256,), 0, tl.int32)
                for tile in range(num_tiles):
                    x, y = _tile(tile, width, ROWS)
                    inside = (x < width) & (y < height)
                    value = _read(plane_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
                    histogram += tl.histogram(value, 256)
                # What lies outside the image was read, and counted, as 0.
                num_outside = num_tiles * (TILE_WIDTH * ROWS) - num_pixels
                histogram -= tl.where(level == 0, num_outside, 0)
                last_filled = tl.max(tl.where(histogram > 0, level, 0), 0)
                step = (num_pixels - tl.sum(tl.where(level == last_filled, histogram, 0), 0)) // 255
                before = tl.cumsum(histogram, 0) - histogram
                spread = tl.minimum((before + step // 2) // tl.maximum(step, 1), 255)
                tl.store(table_ptr + channel * 256 + level, tl.where(step > 0, spread, level).to(tl.uint8))
    elif one_for_all & (tl.program_id(1) == 0):
        if op == CONTRAST:
            total = tl.full((TILE_WIDTH * ROWS,), 0, tl.int32)
            for tile in range(num_tiles):
                x, y = _tile(tile, width, ROWS)
                inside = (x < width) & (y < height)
                red = _read(image_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
                green = _read(image_ptr + num_pixels, x, y, inside, height, width, ax, cx, ay, cy, CROP)
                blue = _read(image_ptr + 2 * num_pixels, x, y, inside, height, width, ax, cx, ay, cy, CROP)
                total += _grey(red, green, blue)
            mean = (2 * tl.sum(total, 0) + num_pixels) // (2 * num_pixels)  # rounded, a half upwards
            table = _blend(mean, level, argument.to(tl.float32))
        elif op == BRIGHTNESS:
            table = _cut(level.to(tl.float32) * argument.to(tl.float32))
        elif op == SOLARIZE:
            table = tl.where(level < argument.to(tl.int32), level, 255 - level).to(tl.uint8)
        else:
            dropped_bits = 8 - argument.to(tl.int32)
            table = ((level >> dropped_bits) << dropped_bits).to(tl.uint8)
        for channel in range(3):
            tl.store(table_ptr + channel * 256 + level, table)


@triton.jit
def _tables_kernel(
    pool_ptr,
    index_ptr,
    op_ptr,
    argument_ptr,
    crop_ptr,
    tables_ptr,
    height,
    width,
    CROP: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The tables of one channel of one view, if it drew a point op."""
    view = tl.program_id(0).to(tl.int64)
    op = tl.load(op_ptr + view).to(tl.int32)
    image_ptr = pool_ptr + tl.load(index_ptr + view) * 3 * height * width
    ax, cx, ay, cy = _crop(crop_ptr, view, CROP)
    argument, table_ptr = tl.load(argument_ptr + view), tables_ptr + view * 768
    _write_tables(image_ptr, table_ptr, op, argument, height, width, ax, cx, ay, cy, CROP, ROWS)


@triton.jit
def _views_kernel(
    pool_ptr,
    index_ptr,
    op_ptr,
    argument_ptr,
    matrix_ptr,
    crop_ptr,
    tables_ptr,
    out_ptr,
    height,
    width,
    CROP: tl.constexpr,
    ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """One tile of one view, or the WHOLE of it and its tables too. All threads of a program take the same branch."""
    num_tiles = tl.cdiv(width, TILE_WIDTH) * tl.cdiv(height, ROWS)
    view = (tl.program_id(0) // num_tiles).to(tl.int64)
    x, y = _tile(tl.program_id(0) % num_tiles, width, ROWS)
    inside = (x < width) & (y < height)
    num_pixels = height * width
    op = tl.load(op_ptr + view).to(tl.int32)
    image_ptr = pool_ptr + tl.load(index_ptr + view) * 3 * num_pixels
    view_ptr = out_ptr + view * 3 * num_pixels
    place = y * width + x
    table_ptr = tables_ptr + view * 768
    argument = tl.load(argument_ptr + view)
    ax, cx, ay, cy = _crop(crop_ptr, view, CROP)
    if WHOLE:
        _write_tables(image_ptr, table_ptr, op, argument, height, width, ax, cx, ay, cy, CROP, ROWS)
        tl.debug_barrier()  # other threads of this program read what one has written

    if (op == ROTATE) | ((op >= SHEAR_X) & (op <= TRANSLATE_Y)):
        row_ptr = matrix_ptr + view * 6
        from_x = (tl.load(row_ptr + 2) + tl.load(row_ptr) * x + tl.load(row_ptr + 1) * y) >> 16
        from_y = (tl.load(row_ptr + 5) + tl.load(row_ptr + 3) * x + tl.load(row_ptr + 4) * y) >> 16
        wanted = inside & (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
        for channel in range(3):
            plane_ptr = image_ptr + channel * num_pixels
            value = _read(plane_ptr, from_x, from_y, wanted, height, width, ax, cx, ay, cy, CROP)
            tl.store(view_ptr + channel * num_pixels + place, value.to(tl.uint8), mask=inside)
    elif op == SHARPNESS:
        factor = argument.to(tl.float32)
        inner = (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
        for channel in range(3):
            plane_ptr = image_ptr + channel * num_pixels
            value = _read(plane_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
            total = 4 * value
            for neighbour in range(9):
                near_x, near_y = x + (neighbour % 3 - 1), y + (neighbour // 3 - 1)
                total += _read(plane_ptr, near_x, near_y, inner, height, width, ax, cx, ay, cy, CROP)
            smooth = tl.where(inner, (2 * total + 13) // 26, value)
            tl.store(view_ptr + channel * num_pixels + place, _blend(smooth, value, factor), mask=inside)
    elif op == COLOR:
        factor = argument.to(tl.float32)
        red = _read(image_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
        green = _read(image_ptr + num_pixels, x, y, inside, height, width, ax, cx, ay, cy, CROP)
        blue = _read(image_ptr + 2 * num_pixels, x, y, inside, height, width, ax, cx, ay, cy, CROP)
        grey = _grey(red, green, blue)
        tl.store(view_ptr + place, _blend(grey, red, factor), mask=inside)
        tl.store(view_ptr + num_pixels + place, _blend(grey, green, factor), mask=inside)
        tl.store(view_ptr + 2 * num_pixels + place, _blend(grey, blue, factor), mask=inside)
    elif (op > 0) & (op < SHEAR_X):  # what is left of these are the point ops
        for channel in tl.static_range(3):
            plane_ptr = image_ptr + channel * num_pixels
            value = _read(plane_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
            changed = tl.load(table_ptr + channel * 256 + value)
            tl.store(view_ptr + channel * num_pixels + place, changed, mask=inside)
    else:
        for channel in tl.static_range(3):
            plane_ptr = image_ptr + channel * num_pixels
            value = _read(plane_ptr, x, y, inside, height, width, ax, cx, ay, cy, CROP)
            tl.store(view_ptr + channel * num_pixels + place, value.to(tl.uint8), mask=inside)


def apply_kernel(
    pool_NCHW: Tensor,
    index_V: Tensor,
    op_V: Tensor,
    argument_V: Tensor,
    matrix_V6: Tensor,
    crop_V4: Tensor | None,
) -> Tensor:
    """Views (V,3,H,W): each the image `index_V` cropped, flipped and changed by its op; ops from 14 on change nothing.

    Contiguous tensors on one device: uint8 pool and ops, int64 index, float64 arguments, int32 `fixed_matrices` and
    `crop_coefficients`. Waits for nothing.
    """
    num_views, (_, num_channels, height, width) = len(index_V), pool_NCHW.shape
    views_VCHW = pool_NCHW.new_empty(num_views, num_channels, height, width)
    tables_VCL = pool_NCHW.new_empty(num_views, num_channels, 256)
    num_tiles = triton.cdiv(width, TILE_WIDTH.value) * triton.cdiv(height, TILE_ROWS)
    crop = crop_V4 is not None
    # Two roundings in a blend, as on the CPU: no multiply-add in one.
    options = {"CROP": crop, "maxnreg": MAX_REGISTERS, "enable_fp_fusion": False}
    if num_views == 0:
        return views_VCHW
    with torch.cuda.device_of(pool_NCHW):
        # An image of one tile has its tables made where they are used: no second launch of mostly idle programs.
        if num_tiles > 1:
            _tables_kernel[num_views, num_channels](
                pool_NCHW,
                index_V,
                op_V,
                argument_V,
                crop_V4,
                tables_VCL,
                height,
                width,
                ROWS=STATISTICS_ROWS,
                num_warps=STATISTICS_ROWS // 4,  # four pixels per thread
                **options,
            )
        _views_kernel[(num_views * num_tiles,)](
            pool_NCHW,
            index_V,
            op_V,
            argument_V,
            matrix_V6,
            crop_V4,
            tables_VCL,
            views_VCHW,
            height,
            width,
            ROWS=TILE_ROWS,
            WHOLE=num_tiles == 1,
            # Eight pixels per thread are one load. A crop loads four bytes for each: half as many fit the registers.
            num_warps=8 if crop else 4,
            **options,
        )
    return views_VCHW
