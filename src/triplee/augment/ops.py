"""The image operations of ESAug (§ "ESAug") on uint8 tensors, each equal to Pillow's result to the pixel.

Every op takes images_VCHW (uint8) and one argument per view and gives new images; which argument a strength 0..30
stands for is in the table at the end. Ops are pure functions: nothing here is random.
Axes: V views, C channels, H height, W width.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

Arguments = np.ndarray  # float64, one per view, known on the host
MAX_STRENGTH = 30


def _per_view(argument_V: Arguments, like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(argument_V).to(like.device, dtype, non_blocking=True)[:, None, None, None]


def identity(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return images_VCHW.clone()


def autocontrast(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    low = images_VCHW.amin((2, 3), keepdim=True).double()
    high = images_VCHW.amax((2, 3), keepdim=True).double()
    flat = high <= low
    # A true division: torch computes `255.0 / x` as a reciprocal times 255, which rounds twice.
    scale = torch.full_like(low, 255.0).div_((high - low).masked_fill_(flat, 1.0))
    stretched = images_VCHW.double().mul_(scale).add_(-low * scale).clamp_(0, 255).to(torch.uint8)
    return torch.where(flat, images_VCHW, stretched)


def equalize(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    num_views, num_channels, height, width = images_VCHW.shape
    planes = images_VCHW.reshape(num_views * num_channels, height * width).long()
    offsets = torch.arange(len(planes), device=planes.device)[:, None] * 256
    histogram = torch.zeros(len(planes) * 256, dtype=torch.long, device=planes.device)
    histogram.scatter_add_(0, (planes + offsets).flatten(), torch.ones_like(planes).flatten())
    histogram = histogram.view(-1, 256)
    last_filled = planes.amax(1, keepdim=True)
    step = (height * width - histogram.gather(1, last_filled)) // 255
    before = histogram.cumsum(1) - histogram
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=planes.device))
    return table.to(torch.uint8).gather(1, planes).view_as(images_VCHW)


def solarize(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    # At threshold 256 no pixel is inverted; 255 with "greater" says the same within uint8.
    keep_up_to = _per_view(argument_V - 1, images_VCHW, torch.int16)
    return torch.where(images_VCHW > keep_up_to, 255 - images_VCHW, images_VCHW)


def posterize(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return images_VCHW & _per_view(256 - 2.0 ** (8 - argument_V), images_VCHW, torch.uint8)


def _blend(degenerate: Tensor, images_VCHW: Tensor, factor_V: Arguments) -> Tensor:
    """Pillow's Image.blend: float32, multiplied and added in two roundings, cut off towards zero."""
    factor = _per_view(factor_V, images_VCHW, torch.float32)
    degenerate = degenerate.float()
    return images_VCHW.float().sub_(degenerate).mul_(factor).add_(degenerate).clamp_(0, 255).to(torch.uint8)


def _grey(images_VCHW: Tensor) -> Tensor:
    red, green, blue = images_VCHW.to(torch.int32).unbind(1)
    return (red * 19595 + green * 38470 + blue * 7471 + 0x8000).bitwise_right_shift_(16)[:, None]


def color(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _blend(_grey(images_VCHW), images_VCHW, argument_V)


def contrast(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    mean = _grey(images_VCHW).sum((2, 3), keepdim=True).double() / images_VCHW[0, 0].numel()
    return _blend((mean + 0.5).floor_(), images_VCHW, argument_V)


def brightness(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return images_VCHW.float().mul_(_per_view(argument_V, images_VCHW, torch.float32)).clamp_(0, 255).to(torch.uint8)


def sharpness(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    """Blend with the 3×3 smoothing (1 1 1; 1 5 1; 1 1 1)/13, whose rounding is exact in integers; borders stay."""
    smooth = images_VCHW.to(torch.int32)
    if min(smooth.shape[2:]) > 2:
        rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
        smooth = smooth.clone()
        smooth[:, :, 1:-1, 1:-1] = (2 * total + 13) // 26
    return _blend(smooth, images_VCHW, argument_V)


@lru_cache(maxsize=4096)
def _fixed_matrix(op: int, argument: float, height: int, width: int) -> bytes:
    """One warp's row of `fixed_matrices`. Few differ in an epoch, so each is worked out once, and kept as bytes."""
    a, b, c, d, e, f = 1.0, 0.0, 0.0, 0.0, 1.0, 0.0
    match OPS[op]:
        case "rotate":
            angle = -math.radians(argument % 360.0)
            cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
            center_x, center_y = width / 2, height / 2
            a, b, c = cos, sin, cos * -center_x + sin * -center_y + center_x
            d, e, f = -sin, cos, -sin * -center_x + cos * -center_y + center_y
        case "shear_x":
            b = argument
        case "shear_y":
            d = argument
        # What is moved by more than the image's size is black anyway; so the integers stay small.
        case "translate_x":
            c = min(max(argument, -width), width)
        case "translate_y":
            f = min(max(argument, -height), height)
    corner = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return np.array([math.floor(value * 65536.0 + 0.5) for value in corner], dtype=np.int32).tobytes()


def fixed_matrices(op_V: np.ndarray, argument_V: Arguments, height: int, width: int) -> np.ndarray:
    """Pillow's affine map of each view that is warped, 16.16 fixed point: int32 (V,6) of a, b, c, d, e, f; else zeros.

    Output pixel (x, y) is input pixel ((c + a·x + b·y) >> 16, (f + d·x + e·y) >> 16), black outside the image.
    """
    fixed_V6 = np.zeros((len(op_V), 6), dtype=np.int32)
    (warped,) = _IS_WARP[np.minimum(op_V, len(OPS))].nonzero()
    rows = map(_fixed_matrix, op_V[warped].tolist(), argument_V[warped].tolist(), repeat(height), repeat(width))
    fixed_V6[warped] = np.frombuffer(b"".join(rows), dtype=np.int32).reshape(-1, 6)
    return fixed_V6


def _warp(images_VCHW: Tensor, name: str, argument_V: Arguments) -> Tensor:
    """Pillow's affine transform, nearest pixel, black outside: 16.16 fixed point and floor, as an integer index map."""
    height, width = images_VCHW.shape[2:]
    matrix_V6 = fixed_matrices(np.full(len(argument_V), OPS.index(name)), argument_V, height, width)
    a, b, c, d, e, f = torch.from_numpy(matrix_V6).to(images_VCHW.device)[:, :, None, None].unbind(1)
    x = torch.arange(width, dtype=torch.int32, device=images_VCHW.device)
    y = torch.arange(height, dtype=torch.int32, device=images_VCHW.device)[:, None]
    from_x = (c + a * x + b * y) >> 16
    from_y = (f + d * x + e * y) >> 16
    inside = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    index = torch.where(inside, from_y * width + from_x, 0).long().flatten(1)[:, None]
    index = index.expand(-1, images_VCHW.shape[1], -1)
    return images_VCHW.flatten(2).gather(2, index).view_as(images_VCHW) * inside[:, None]


def rotate(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _warp(images_VCHW, "rotate", argument_V)


def shear_x(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _warp(images_VCHW, "shear_x", argument_V)


def shear_y(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _warp(images_VCHW, "shear_y", argument_V)


def translate_x(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _warp(images_VCHW, "translate_x", argument_V)


def translate_y(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    return _warp(images_VCHW, "translate_y", argument_V)


def hue(images_VCHW: Tensor, argument_V: Arguments) -> Tensor:
    """Turn the colour circle by a share of one turn (standard augmentation only, not on the ESAug list)."""
    rgb = images_VCHW.float() / 255.0
    value, brightest = rgb.max(1)
    chroma = value - rgb.amin(1)
    red, green, blue = rgb.unbind(1)
    safe = chroma.clamp(min=1e-8)
    sector = torch.where(
        brightest == 0,
        (green - blue) / safe,
        torch.where(brightest == 1, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    turned = sector / 6 + _per_view(argument_V, images_VCHW, torch.float32)[:, 0]
    # One formula for all three channels: v − chroma·max(0, min(k, 4 − k, 1)) with k = (n + 6h) mod 6, n = 5, 3, 1.
    channel_shift = torch.tensor([5.0, 3.0, 1.0], device=rgb.device)[:, None, None]
    k = (channel_shift + 6 * turned[:, None]) % 6
    out = value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)
    return (out * 255).round_().clamp_(0, 255).to(torch.uint8)


@dataclass(frozen=True)
class Op:
    """One entry of the list: the function, what a strength means to it, and whether a coin decides its sign."""

    function: Callable[[Tensor, Arguments], Tensor]
    argument: Callable[[np.ndarray, int], np.ndarray] = lambda strength, translate_pixels: np.zeros(len(strength))
    signed: bool = False


def _factor(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return 0.1 + 1.8 * strength / MAX_STRENGTH


def _degrees(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return strength.astype(np.float64)


def _shear(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return 0.3 * strength / MAX_STRENGTH


def _pixels(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return np.trunc(translate_pixels * strength / MAX_STRENGTH)


def _threshold(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return 256 - np.trunc(256 * strength / MAX_STRENGTH)


def _bits(strength: np.ndarray, translate_pixels: int) -> np.ndarray:
    return 8 - np.trunc(4 * strength / MAX_STRENGTH)


OP_TABLE: dict[str, Op] = {
    "identity": Op(identity),
    "autocontrast": Op(autocontrast),
    "equalize": Op(equalize),
    "rotate": Op(rotate, _degrees, signed=True),
    "solarize": Op(solarize, _threshold),
    "color": Op(color, _factor),
    "posterize": Op(posterize, _bits),
    "contrast": Op(contrast, _factor),
    "brightness": Op(brightness, _factor),
    "sharpness": Op(sharpness, _factor),
    "shear_x": Op(shear_x, _shear, signed=True),
    "shear_y": Op(shear_y, _shear, signed=True),
    "translate_x": Op(translate_x, _pixels, signed=True),
    "translate_y": Op(translate_y, _pixels, signed=True),
}
OPS: tuple[str, ...] = tuple(OP_TABLE)

WARPS = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
_IS_WARP = np.array([*(name in WARPS for name in OPS), False])  # by number; the last is for all that are no image ops


def argument_of(name: str, strength_V: np.ndarray, sign_V: np.ndarray, translate_pixels: int = 10) -> np.ndarray:
    """The argument that each strength 0..30 stands for, with its sign where the op has one."""
    op = OP_TABLE[name]
    argument_V = op.argument(strength_V, translate_pixels)
    return argument_V * sign_V if op.signed else argument_V
