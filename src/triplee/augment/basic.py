"""The basic augmentation that comes before any op (§ "ESAug"): random resized crop and horizontal flip.

Comes in: uint8 images (V,3,H,W), a crop box per view in shares of the image, a flip per view; goes out: the same shape.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_and_flip(images_VCHW: Tensor, boxes_V4: Tensor, flips_V: Tensor) -> Tensor:
    """Cut each view's box (left, top, width, height in 0..1), enlarge it bilinearly to the whole, mirror if asked."""
    left, top, width, height = boxes_V4.to(images_VCHW.device, torch.float32).unbind(1)
    mirror = torch.where(flips_V.to(images_VCHW.device), -1.0, 1.0)
    zero = torch.zeros_like(left)
    # Output coordinates in −1..1 to input coordinates: scale by the box, move to the box's middle.
    rows_x = torch.stack([width * mirror, zero, 2 * left + width - 1], 1)
    rows_y = torch.stack([zero, height, 2 * top + height - 1], 1)
    grid = F.affine_grid(torch.stack([rows_x, rows_y], 1), list(images_VCHW.shape), align_corners=False)
    views = F.grid_sample(images_VCHW.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return views.round_().clamp_(0, 255).to(torch.uint8)
