"""Carries out a Draw: pool images in, augmented uint8 views out (§ "ESAug"). The only place that knows how.

Gather, crop, flip and the 14 ops are one pass: compiled code on a CPU, a kernel on a GPU, plain torch where neither
runs; all three give the same bytes. Fourier, hue and style follow, on just the views that drew them.
Axes: N pool images, V views, C channels, H height, W width.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from triplee.augment.available import find_kernels
from triplee.augment.basic import crop_and_flip, crop_coefficients
from triplee.augment.draw import FOURIER, HUE, STYLE, Draw
from triplee.augment.fourier import mix_views
from triplee.augment.ops import MAX_STRENGTH, OP_TABLE, OPS, argument_of, fixed_matrices, hue
from triplee.augment.style import Images, StyleTable
from triplee.settings import InputError, nearest

# From images (N,3,H,W), and per view: image number, op and argument, box and flip where there are any.
Pass = Callable[[Tensor, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None], Tensor]


def apply_draw(pool_NCHW: Images, index_V: np.ndarray, draw: Draw, styles: StyleTable | None = None) -> Tensor:
    """The views of pool images `index_V` (one draw each), as uint8 on the pool's device.

    The style op needs a table of `styles` with every partner that was drawn for it.
    """
    device, num_ops = pool_NCHW.device, draw.op_VK.shape[1]
    one_pass = _fastest_pass(device.type)
    if isinstance(pool_NCHW, Tensor):
        views, from_V = pool_NCHW, index_V
    else:
        views, from_V = pool_NCHW[torch.from_numpy(index_V).to(device)], np.arange(len(index_V))
    if not num_ops:
        nothing = np.zeros(len(index_V))
        return one_pass(views, from_V, nothing.astype(np.int64), nothing, draw.box_V4, draw.flip_V)
    for k in range(num_ops):
        op_V, argument_V = draw.op_VK[:, k], draw.argument_VK[:, k]
        if k == 0:
            views = one_pass(views, from_V, op_V, argument_V, draw.box_V4, draw.flip_V)
        else:
            views = one_pass(views, np.arange(len(views)), op_V, argument_V, None, None)
        (rest,) = (op_V >= len(OPS)).nonzero()
        if not len(rest):
            continue
        mixed, turned, restyled = (rest[op_V[rest] == op] for op in (FOURIER, HUE, STYLE))
        if len(mixed):
            partners, partner_M = pool_NCHW, draw.partner_VK[mixed, k]
            if not isinstance(partners, Tensor):
                partners, partner_M = partners[torch.from_numpy(partner_M).to(device)], np.arange(len(mixed))
            mix_views(views, mixed, partners, partner_M, argument_V[mixed])
        if len(turned):
            where = torch.from_numpy(turned).to(device)
            views[where] = hue(views[where], argument_V[turned])
        if len(restyled):
            if styles is None:
                raise InputError("the style op needs a stylizer: fit one with `triplee style fit`")
            styles.restyle_views(views, restyled, draw.partner_VK[restyled, k], argument_V[restyled])
    return views


def normalise(views_u8: Tensor, mean: Sequence[float], std: Sequence[float], out: Tensor | None = None) -> Tensor:
    """Floats, (pixel / 255 − mean) / std by channel, in one pass over memory: what a network takes.

    Into `out` where one is given: fresh memory for many views costs more than filling it.
    """
    if views_u8.dtype != torch.uint8 or views_u8.ndim not in (3, 4) or views_u8.shape[-3] != 3:
        raise InputError(f"normalise takes uint8 (V,3,H,W) or (3,H,W), not {views_u8.dtype} {tuple(views_u8.shape)}")
    scale_C, shift_C = _scale_and_shift(tuple(mean), tuple(std))
    if out is None:
        out = torch.empty(views_u8.shape, device=views_u8.device)
    kernels = find_kernels("cpu") if views_u8.device.type == "cpu" else None
    if kernels and views_u8.ndim == 4 and views_u8.is_contiguous() and out.is_contiguous():
        kernels.normalise(views_u8, scale_C, shift_C, out)
        return out
    scale, shift = (torch.from_numpy(values_C).to(views_u8.device)[:, None, None] for values_C in (scale_C, shift_C))
    return out.copy_(views_u8).mul_(scale).add_(shift)


@lru_cache(maxsize=64)
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    scale_C = np.array([1 / (255 * s) for s in std], np.float32)
    return scale_C, np.array([-m / s for m, s in zip(mean, std, strict=True)], np.float32)


def plain_pass(
    images_NCHW: Tensor,
    index_V: np.ndarray,
    op_V: np.ndarray,
    argument_V: np.ndarray,
    box_V4: np.ndarray | None,
    flip_V: np.ndarray | None,
) -> Tensor:
    """In torch alone, on any device: each op runs once, on just its views, with no waiting for the device."""
    views = images_NCHW[torch.from_numpy(index_V).to(images_NCHW.device)]
    if box_V4 is not None and flip_V is not None:
        views = crop_and_flip(views, box_V4, flip_V)
    for op in np.unique(op_V).tolist():
        if op < len(OPS) and OPS[op] != "identity":
            drawn = np.flatnonzero(op_V == op)
            where = torch.from_numpy(drawn).to(images_NCHW.device)
            views[where] = OP_TABLE[OPS[op]].function(views[where], argument_V[drawn])
    return views


def _cuda_pass(
    images_NCHW: Tensor,
    index_V: np.ndarray,
    op_V: np.ndarray,
    argument_V: np.ndarray,
    box_V4: np.ndarray | None,
    flip_V: np.ndarray | None,
) -> Tensor:
    """On a GPU: the host's numbers go over, and kernels do the rest."""
    from triplee.augment.cuda import apply_kernel

    height, width = images_NCHW.shape[2:]
    matrix_V6 = fixed_matrices(op_V, argument_V, height, width)
    numbers = [index_V, op_V.astype(np.uint8), np.ascontiguousarray(argument_V), matrix_V6]
    if box_V4 is not None and flip_V is not None:
        numbers.append(crop_coefficients(box_V4, flip_V, height, width))
    index, op, argument, matrix, *crop = (torch.from_numpy(array).to(images_NCHW.device) for array in numbers)
    return apply_kernel(images_NCHW.contiguous(), index, op, argument, matrix, crop[0] if crop else None)


def _fastest_pass(device_type: str) -> Pass:
    kernels = find_kernels(device_type)
    if kernels is None:
        return plain_pass
    return kernels.apply_pass if device_type == "cpu" else _cuda_pass


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
