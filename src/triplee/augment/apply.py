"""Carries out a Draw: pool images in, augmented uint8 views out (§ "ESAug"). The only place that knows how.

The host knows which views drew which op, so each op runs once on just its views, with no waiting for the device.
Axes: N pool images, V views, C channels, H height, W width.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from triplee.augment.basic import crop_and_flip
from triplee.augment.draw import DRAWN_OPS, FOURIER, Draw
from triplee.augment.fourier import fourier_mix
from triplee.augment.ops import MAX_STRENGTH, OP_TABLE, OPS, argument_of, hue
from triplee.settings import InputError, nearest


class Images(Protocol):
    """What views are made of: a uint8 tensor (N,3,H,W), or what stands in for one that fits no memory."""

    @property
    def device(self) -> torch.device: ...
    def __getitem__(self, index: Tensor, /) -> Tensor: ...


def apply_draw(pool_NCHW: Images, index_V: np.ndarray, draw: Draw) -> Tensor:
    """The views of pool images `index_V` (one draw each), as uint8 on the pool's device."""
    device = pool_NCHW.device
    views = pool_NCHW[torch.from_numpy(index_V).to(device)]
    if draw.box_V4 is not None and draw.flip_V is not None:
        views = crop_and_flip(views, torch.from_numpy(draw.box_V4), torch.from_numpy(draw.flip_V))
    for op_V, argument_V, partner_V in zip(draw.op_VK.T, draw.argument_VK.T, draw.partner_VK.T, strict=True):
        for op in np.unique(op_V).tolist():
            if DRAWN_OPS[op] == "identity":
                continue
            drawn = np.flatnonzero(op_V == op)
            where = torch.from_numpy(drawn).to(device)
            if op == FOURIER:
                partners = pool_NCHW[torch.from_numpy(partner_V[drawn]).to(device)]
                changed = fourier_mix(views[where], partners, torch.from_numpy(argument_V[drawn]))
            else:
                function = hue if op >= len(OPS) else OP_TABLE[OPS[op]].function
                changed = function(views[where], argument_V[drawn])
            views[where] = changed
    return views


def apply_op(name: str, images_u8: Tensor, strength: int, sign: int = 1) -> Tensor:
    """One op of the list at one strength on a uint8 batch (V,3,H,W) or image (3,H,W): for tests and pictures."""
    if name not in OP_TABLE:
        raise InputError(f"unknown op {name!r}: {nearest(name, OPS)}")
    if images_u8.dtype != torch.uint8 or images_u8.ndim not in (3, 4) or images_u8.shape[-3] != 3:
        raise InputError(f"ops take uint8 images of shape (V,3,H,W), not {images_u8.dtype} {tuple(images_u8.shape)}")
    if not 0 <= strength <= MAX_STRENGTH:
        raise InputError(f"strength is a whole number from 0 to {MAX_STRENGTH}, not {strength}")
    batch = images_u8 if images_u8.ndim == 4 else images_u8[None]
    argument_V = argument_of(name, np.full(len(batch), strength), np.full(len(batch), sign))
    return OP_TABLE[name].function(batch, argument_V).view_as(images_u8)
