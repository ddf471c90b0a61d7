"""Compiled code for the CPU as functions of tensors: a pass of ESAug, the Fourier op, normalising.

Comes in: uint8 images (N,3,H,W) and what apply.py and fourier.py have at hand; goes out: what torch gives them too.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplee.augment.available import find_kernels
from triplee.augment.basic import crop_coefficients
from triplee.augment.compiled_ops import apply_views, compile_ahead, room_for_ops

__all__ = ["apply_pass", "can_transform", "mix_views", "normalise"]

_NO_CROP = np.empty((0, 4), np.int32)
BYTES_PER_THREAD = 1 << 20  # of views: below this a thread costs more than it saves


@compile_ahead("b1(u1[:,:,:,::1], f4[::1], f4[::1], f4[:,:,:,::1], i8, i8)")
def _normalise(
    views_VCHW: np.ndarray, scale_C: np.ndarray, shift_C: np.ndarray, out_VCHW: np.ndarray, first: int, last: int
) -> bool:
    planes = (len(views_VCHW), 3, views_VCHW.shape[2] * views_VCHW.shape[3])
    views_VCP, out_VCP = views_VCHW.reshape(planes), out_VCHW.reshape(planes)
    for v in range(first, last):
        for c in range(3):
            plane, out, scale, shift = views_VCP[v, c], out_VCP[v, c], scale_C[c], shift_C[c]
            for i in range(len(plane)):
                out[i] = np.float32(plane[i]) * scale + shift
    return True


def can_transform(height: int, width: int) -> bool:
    """Whether `mix_views` has a transform for this size; the first call compiles it."""
    fourier = find_kernels("cpu fourier")
    return fourier is not None and fourier.can_transform(height, width)


def mix_views(
    views_VCHW: Tensor,
    where_M: np.ndarray,
    pool_NCHW: Tensor,
    partner_M: np.ndarray,
    share_M: np.ndarray,
    no_phase: float,
) -> None:
    """fourier.py's `mix_views`, for sizes that `can_transform`; the views lie in one piece."""
    fourier = find_kernels("cpu fourier")
    assert fourier is not None
    height, width = views_VCHW.shape[2:]
    if not pool_NCHW.is_contiguous():
        pool_NCHW, partner_M = pool_NCHW[torch.from_numpy(partner_M)].contiguous(), np.arange(len(partner_M))
    roots = (fourier.roots_of_one(height), fourier.roots_of_one(width))
    arguments = (views_VCHW.numpy(), where_M, pool_NCHW.numpy(), partner_M, share_M, no_phase, *roots)
    num_bytes = 3 * height * width * len(where_M)
    room = partial(fourier.room_for_spectra, height, width)
    if not _on_threads(fourier.mix_views, arguments, room, len(where_M), num_bytes):
        raise IndexError(f"a partner is out of the range of {len(pool_NCHW)} images")


def apply_pass(
    images_NCHW: Tensor,
    index_V: np.ndarray,
    op_V: np.ndarray,
    argument_V: np.ndarray,
    box_V4: np.ndarray | None,
    flip_V: np.ndarray | None,
) -> Tensor:
    """Gather, crop, flip and one op per view."""
    num_images, _, height, width = images_NCHW.shape
    num_views = len(index_V)
    if not images_NCHW.is_contiguous():
        images_NCHW, index_V = images_NCHW[torch.from_numpy(index_V)].contiguous(), np.arange(num_views)
        num_images = num_views
    crop_V4 = _NO_CROP
    if box_V4 is not None and flip_V is not None:
        crop_V4 = crop_coefficients(box_V4, flip_V, height, width)
    # By NumPy, as torch takes twice as long to hand out a few kilobytes and lend them: that counts for 16 digits.
    views_VCHW = np.empty((num_views, 3, height, width), np.uint8)
    arguments = (images_NCHW.numpy(), index_V, crop_V4, op_V, argument_V, views_VCHW)
    room = partial(room_for_ops, height, width, len(crop_V4) > 0)
    if not _on_threads(apply_views, arguments, room, num_views, views_VCHW.size):
        raise IndexError(f"an index is out of the range of {num_images} images")
    return torch.from_numpy(views_VCHW)


def normalise(views_VCHW: Tensor, scale_C: np.ndarray, shift_C: np.ndarray, out: Tensor) -> None:
    """apply.py's `normalise`; both tensors lie in one piece."""
    arguments = (views_VCHW.numpy(), scale_C, shift_C, out.numpy())
    _on_threads(_normalise, arguments, tuple, len(views_VCHW), views_VCHW.nbytes)


def _on_threads(
    kernel: Callable[..., bool],
    arguments: tuple[Any, ...],
    room: Callable[[], tuple[Any, ...]],
    num_views: int,
    num_bytes: int,
) -> bool:
    """Run a kernel on its views, on as many threads as torch would take; whether all of them were done.

    `room` makes the memory that each thread needs for itself.
    """
    num_threads = min(torch.get_num_threads(), num_bytes // BYTES_PER_THREAD)
    if num_threads < 2:
        return kernel(*arguments, *room(), 0, num_views)

    def run(first: int, last: int) -> bool:
        return kernel(*arguments, *room(), first, last)

    own, *shares = pairwise(num_views * k // num_threads for k in range(num_threads + 1))
    others = [_threads(os.getpid()).submit(run, *share) for share in shares]
    done = [run(*own), *(other.result() for other in others)]
    return all(done)


@lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Kept, as to start threads takes as long as many a call. A process forked from this one has none of them."""
    return ThreadPoolExecutor(os.cpu_count())
