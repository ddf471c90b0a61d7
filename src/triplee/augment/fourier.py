"""The Fourier op (Eq. 3 to 5): the amplitude spectrum is mixed with a partner's, the image keeps its own phase.

Comes in: uint8 images and partners (V,3,H,W) and a share λ per view; goes out: uint8 images, rounded and clipped.
Compiled code and torch have different transforms: a value halfway between two grey levels may be rounded to either.
"""

import numpy as np
import torch
from torch import Tensor

from triplee.augment.available import find_kernels
from triplee.settings import InputError

# Below this amplitude a component's phase is rounding noise (a plain row has exact zeros): it counts as phase 0.
# Amplitudes of 8-bit images run up to 255·H·W; float32 transforms are off by less than 0.05 at 224² but for some CPUs'.
NO_PHASE = 0.1
# Pixels mixed at once. On a CPU spectra that stay in its cache are mixed three times as fast; on a GPU the spectra of
# 256 images of 224² take about a gigabyte.
CHUNK_PIXELS = {"cpu": 224 * 224, "cuda": 256 * 224 * 224}


def fourier_mix(images_u8: Tensor, partners_u8: Tensor, lam: Tensor | float) -> Tensor:
    """Mix amplitudes: (1 − λ)·A(image) + λ·A(partner), phase of the image. λ is a number or one per view."""
    mixed, each = images_u8.clone(memory_format=torch.contiguous_format), np.arange(len(images_u8))
    share_V = torch.as_tensor(lam, dtype=torch.float64).expand(len(mixed)).cpu().numpy()
    mix_views(mixed, each, partners_u8, each, share_V)
    return mixed


def mix_views(
    views_VCHW: Tensor, where_M: np.ndarray, pool_NCHW: Tensor, partner_M: np.ndarray, share_M: np.ndarray
) -> None:
    """The op in place on the views `where_M`, each with an image of the pool and a share λ of its own."""
    device, size = views_VCHW.device.type, views_VCHW.shape[2:]
    if pool_NCHW.shape[1:] != views_VCHW.shape[1:]:
        raise InputError(f"partners are {tuple(pool_NCHW.shape[1:])}, images {tuple(views_VCHW.shape[1:])}")
    kernels = find_kernels("cpu") if device == "cpu" else None
    if kernels and kernels.can_transform(*size):
        kernels.mix_views(views_VCHW, where_M, pool_NCHW, partner_M, share_M, NO_PHASE)
        return
    num_at_once = max(1, CHUNK_PIXELS.get(device, CHUNK_PIXELS["cpu"]) // size.numel())
    for start in range(0, len(where_M), num_at_once):
        where, partner, share = (
            torch.from_numpy(array[start : start + num_at_once]).to(views_VCHW.device)
            for array in (where_M, partner_M, share_M)
        )
        pairs = torch.stack([views_VCHW[where], pool_NCHW[partner]])
        own, other = torch.fft.rfft2(pairs.float())
        mixed = torch.fft.irfft2(mix_spectra(own, other, share.float()), s=size)
        views_VCHW[where] = mixed.round_().clamp_(0, 255).to(torch.uint8)


def mix_spectra(spectrum: Tensor, partner: Tensor, share_V: Tensor) -> Tensor:
    """Spectra (V,3,H,W//2+1) with amplitudes mixed and the first one's phase; compiled_fourier.py has the same."""
    amplitude, partner_amplitude = _amplitude(spectrum), _amplitude(partner)
    mixed = amplitude + (partner_amplitude - amplitude) * share_V[:, None, None, None]
    has_phase = amplitude > NO_PHASE
    gain = mixed / torch.where(has_phase, amplitude, 1.0)
    return torch.where(has_phase, spectrum, 1.0) * gain


def _amplitude(spectrum: Tensor) -> Tensor:
    squared = spectrum.real.square() + spectrum.imag.square()
    # On some CPUs torch's float32 root is a last bit off; compiled code and GPUs round it right.
    return squared.double().sqrt().float() if squared.device.type == "cpu" else squared.sqrt()
