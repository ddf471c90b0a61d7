"""The basic augmentation that comes before any op (§ "ESAug"): random resized crop and horizontal flip.

Comes in: uint8 images (V,3,H,W), a crop box per view in shares of the image, a flip per view; goes out: the same shape.
All in integers, so that every device and every kernel gives the same bytes.
"""

import numpy as np
import torch
from torch import Tensor

WEIGHT_BITS = 11  # of an interpolation weight: two of them and a pixel fit an int32


def crop_coefficients(box_V4: np.ndarray, flip_V: np.ndarray, height: int, width: int) -> np.ndarray:
    """Where output pixels read, 16.16 fixed: (V,4) of a_x, c_x, a_y, c_y; column x reads c_x + a_x·x, rows alike."""
    left, top, width_share, height_share = box_V4.astype(np.float64).T
    start_x, start_y = left * width + 0.5 * width_share - 0.5, top * height + 0.5 * height_share - 0.5
    crop_V4 = np.stack([width_share, start_x, height_share, start_y], 1)
    fixed_V4 = np.floor(crop_V4 * 65536.0 + 0.5).astype(np.int32)
    fixed_V4[:, 1] += np.where(flip_V, fixed_V4[:, 0] * (width - 1), 0)
    fixed_V4[:, 0] *= np.where(flip_V, -1, 1).astype(np.int32)
    return fixed_V4


def _neighbours(step_V: Tensor, start_V: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two input pixels (V,size) that each output pixel along one axis lies between, and the second one's weight."""
    place = start_V[:, None] + step_V[:, None] * torch.arange(size, dtype=torch.int32, device=step_V.device)
    place.clamp_(0, (size - 1) << 16)
    first = place >> 16
    return first.long(), (first + 1).clamp_(max=size - 1).long(), (place & 0xFFFF) >> (16 - WEIGHT_BITS)


def crop_and_flip(images_VCHW: Tensor, box_V4: np.ndarray, flip_V: np.ndarray) -> Tensor:
    """Cut each view's box (left, top, width, height in 0..1), enlarge it bilinearly to the whole, mirror if asked."""
    height, width = images_VCHW.shape[2:]
    fixed = torch.from_numpy(crop_coefficients(box_V4, flip_V, height, width)).to(images_VCHW.device)
    left, right, weight_x = _neighbours(fixed[:, 0], fixed[:, 1], width)
    upper, lower, weight_y = _neighbours(fixed[:, 2], fixed[:, 3], height)
    one = 1 << WEIGHT_BITS
    view = torch.arange(len(images_VCHW), device=fixed.device)[:, None, None]
    weight_x, weight_y = weight_x[:, None, :, None], weight_y[:, :, None, None]

    def row(y_VH: Tensor) -> Tensor:
        # Advanced indices on both sides of a slice put their axes first: (V,H,W,C).
        near = images_VCHW[view, :, y_VH[:, :, None], left[:, None]].to(torch.int32)
        far = images_VCHW[view, :, y_VH[:, :, None], right[:, None]].to(torch.int32)
        return near.mul_(one - weight_x).add_(far.mul_(weight_x))

    mixed = row(upper).mul_(one - weight_y).add_(row(lower).mul_(weight_y))
    half = 1 << (2 * WEIGHT_BITS - 1)
    return mixed.add_(half).bitwise_right_shift_(2 * WEIGHT_BITS).to(torch.uint8).permute(0, 3, 1, 2).contiguous()
