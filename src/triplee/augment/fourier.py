"""The Fourier op (Eq. 3 to 5): the amplitude spectrum is mixed with a partner's, the image keeps its own phase.

Comes in: uint8 images and partners (V,3,H,W) and a share λ per view; goes out: uint8 images, rounded and clipped.
"""

import torch
from torch import Tensor

# Below this amplitude a component's phase is rounding noise (a plain row has exact zeros): it counts as phase 0.
# Amplitudes of 8-bit images run up to 255·H·W; float32 transforms are off by less than 0.05 at 224².
NO_PHASE = 0.1


def fourier_mix(images_u8: Tensor, partners_u8: Tensor, lam: Tensor | float) -> Tensor:
    """Mix amplitudes: (1 − λ)·A(image) + λ·A(partner), phase of the image. λ is a number or one per view."""
    share = torch.as_tensor(lam, dtype=torch.float32, device=images_u8.device)
    if share.ndim:
        share = share.view(-1, 1, 1, 1)
    spectrum = torch.fft.rfft2(images_u8.float())
    amplitude = spectrum.abs()
    partner_amplitude = torch.fft.rfft2(partners_u8.float()).abs()
    mixed = torch.lerp(amplitude, partner_amplitude, share.expand_as(amplitude))
    has_phase = amplitude > NO_PHASE
    gain = mixed / torch.where(has_phase, amplitude, 1.0)
    spectrum = torch.where(has_phase, spectrum, 1.0) * gain
    mixed_images = torch.fft.irfft2(spectrum, s=images_u8.shape[-2:])
    return mixed_images.round_().clamp_(0, 255).to(torch.uint8)
