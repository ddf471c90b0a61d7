"""The rival: ESAug the usual way, one view at a time through Pillow, normalised per view (the authors' way)."""

import random
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from triplee.augment import OPS


def pillow_view(image: Image.Image, partners: Sequence[Image.Image] = ()) -> torch.Tensor:
    """One op of random strength, then a normalised float tensor."""
    return torch.from_numpy(pillow_pixels(image, partners)).permute(2, 0, 1).float().div(255).sub(0.5).div(0.5)


def pillow_pixels(image: Image.Image, partners: Sequence[Image.Image] = ()) -> np.ndarray:
    """One op of random strength, (H,W,3); given partners, the list has the Fourier mix too."""
    op = random.randrange(len(OPS) + bool(partners))
    if op == len(OPS):
        planes, others = (np.asarray(picture).transpose(2, 0, 1) for picture in (image, random.choice(partners)))
        return numpy_fourier(planes, others, random.random() * random.random()).transpose(1, 2, 0).astype(np.uint8)
    return np.array(pillow_op(OPS[op], image, random.randint(0, 30), random.choice((1, -1))))


def pillow_op(name: str, image: Image.Image, strength: int, sign: int) -> Image.Image:
    """The calls that define the ops: the rival here, and the oracle of the tests."""

    def affine(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    pixels, shear = sign * int(10 * strength / 30), sign * 0.3 * strength / 30
    match name:
        case "identity":
            return image
        case "autocontrast" | "equalize":
            return getattr(ImageOps, name)(image)
        case "rotate":
            return image.rotate(sign * strength)
        case "shear_x":
            return affine(1, shear, 0, 0, 1, 0)
        case "shear_y":
            return affine(1, 0, 0, shear, 1, 0)
        case "translate_x":
            return affine(1, 0, pixels, 0, 1, 0)
        case "translate_y":
            return affine(1, 0, 0, 0, 1, pixels)
        case "solarize":
            return ImageOps.solarize(image, 256 - int(256 * strength / 30))
        case "posterize":
            return ImageOps.posterize(image, 8 - int(4 * strength / 30))
        case _:
            return getattr(ImageEnhance, name.capitalize())(image).enhance(0.1 + 1.8 * strength / 30)


def numpy_fourier(image: np.ndarray, partner: np.ndarray, share: float) -> np.ndarray:
    """Amplitude mix of two images (3,H,W) in float64, one pair at a time."""
    spectrum, other = np.fft.fft2(image), np.fft.fft2(partner)
    amplitude = (1 - share) * np.abs(spectrum) + share * np.abs(other)
    return np.clip(np.real(np.fft.ifft2(amplitude * np.exp(1j * np.angle(spectrum)))), 0, 255)


def numpy_rfft(image: np.ndarray, partner: np.ndarray, share: float) -> np.ndarray:
    """The same with less work: half a spectrum in float32, and a gain where there an angle is taken and undone."""
    spectrum, other = (np.fft.rfft2(picture.astype(np.float32)) for picture in (image, partner))
    amplitude = np.abs(spectrum)
    mixed = amplitude + (np.abs(other) - amplitude) * np.float32(share)
    spectrum = spectrum * (mixed / np.maximum(amplitude, np.float32(1e-6)))
    return np.clip(np.fft.irfft2(spectrum, s=image.shape[1:]), 0, 255)
