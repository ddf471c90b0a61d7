"""The Fourier op equals a float64 version of Eq. 3 to 5 within one grey level."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images

from pillow_style import numpy_fourier, numpy_rfft
from triplee.augment import fourier_mix
from triplee.data.pool import Pool


def reference(image: np.ndarray, partner: np.ndarray, share: float) -> np.ndarray:
    spectrum, other = np.fft.fft2(image.astype(np.float64)), np.fft.fft2(partner.astype(np.float64))
    amplitude = (1 - share) * np.abs(spectrum) + share * np.abs(other)
    phase = np.where(np.abs(spectrum) > 1e-6, np.angle(spectrum), 0.0)  # zero but for rounding: no phase
    return np.clip(np.real(np.fft.ifft2(amplitude * np.exp(1j * phase))), 0, 255)


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (224, 224)], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_within_one_grey_level(size: tuple[int, int], share: float, digits: Pool) -> None:
    rng = np.random.default_rng(1)
    photos = [p[: size[0], : size[1]].transpose(2, 0, 1) for p in load_sample_images().images]
    images = np.stack([*photos, rng.integers(0, 256, (3, *size)), np.full((3, *size), 90), photos[0] // 8])
    images = torch.from_numpy(images.astype(np.uint8))
    partners = images.roll(1, 0)
    mixed = fourier_mix(images, partners, share).numpy().astype(float)
    for view, image, partner in zip(mixed, images.numpy(), partners.numpy(), strict=True):
        assert np.abs(view - reference(image, partner, share)).max() <= 1.0


@pytest.mark.parametrize("rival", [numpy_fourier, numpy_rfft])
def test_what_the_bench_sets_against_it_does_the_same(rival: Callable[..., np.ndarray]) -> None:
    image, partner = (photo[:224, :224].transpose(2, 0, 1) for photo in load_sample_images().images)
    assert np.abs(rival(image, partner, 0.4) - reference(image, partner, 0.4)).max() < 0.01


def test_share_zero_is_the_identity(digits: Pool) -> None:
    images = digits.images_NCHW[::97]
    assert torch.equal(fourier_mix(images, images.roll(1, 0), 0.0), images)


def test_each_view_has_its_own_share(digits: Pool) -> None:
    images = digits.images_NCHW[::1999]
    partners = images.roll(1, 0)
    shares = torch.linspace(0, 1, len(images))
    together = fourier_mix(images, partners, shares)
    for k, share in enumerate(shares.tolist()):
        assert torch.equal(together[k], fourier_mix(images[k : k + 1], partners[k : k + 1], share)[0])


def test_phase_is_the_images_own(digits: Pool) -> None:
    """At full share the phase of image and mix agree wherever clipping and rounding leave it readable."""
    image, partner = digits.images_NCHW[100:101], digits.images_NCHW[6000:6001]
    mixed = fourier_mix(image, partner, 0.5)
    before, after = torch.fft.rfft2(image.double()), torch.fft.rfft2(mixed.double())
    strong = before.abs() > 0.05 * before.abs().amax()
    agreement = torch.cos(before.angle() - after.angle())[strong]
    assert agreement.mean() > 0.95
