"""All 14 ops equal Pillow to the pixel."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from pillow_style import pillow_op
from triplee.augment import OPS, apply_op
from triplee.augment.ops import OP_TABLE, hue
from triplee.data.pool import Pool


def make_images(height: int, width: int, digits: Pool) -> list[np.ndarray]:
    """Real, random, constant and low-contrast images, (H,W,3) uint8."""
    rng = np.random.default_rng(height * width)
    shape = (height, width, 3)
    real = [*load_sample_images().images, digits.images_NCHW[-5].permute(1, 2, 0).numpy()]
    made = [
        rng.integers(0, 256, shape),
        np.full(shape, 77),
        np.zeros(shape),
        np.full(shape, 255),
        rng.integers(100, 104, shape),
        np.where(rng.random(shape) < 0.01, 255, 0),
    ]
    resized = [np.asarray(Image.fromarray(image).resize((width, height))) for image in real]
    return resized + [image.astype(np.uint8) for image in made]


@pytest.mark.parametrize("size", [(32, 32), (33, 47), (224, 224)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_no_pixel_differs(name: str, size: tuple[int, int], digits: Pool) -> None:
    images = make_images(*size, digits)
    batch = torch.stack([torch.from_numpy(image.copy()).permute(2, 0, 1) for image in images])
    for strength in range(31):
        for sign in (1, -1) if OP_TABLE[name].signed else (1,):
            views = apply_op(name, batch, strength, sign).permute(0, 2, 3, 1).numpy()
            for view, image in zip(views, images, strict=True):
                expected = np.asarray(pillow_op(name, Image.fromarray(image), strength, sign))
                assert np.array_equal(view, expected), (strength, sign, int((view != expected).sum()))


def test_hue_is_a_turn_of_the_colour_circle() -> None:
    """Pillow's own HSV has 8 bits per channel, so the comparison allows for its rounding."""
    photo = load_sample_images().images[1][::4, ::4]
    batch = torch.from_numpy(photo.copy()).permute(2, 0, 1)[None]
    hsv = np.asarray(Image.fromarray(photo).convert("HSV")).copy()
    hsv[..., 0] += 64  # a quarter turn, wrapping
    expected = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB")).astype(int)
    turned = hue(batch, np.array([64 / 256]))[0].permute(1, 2, 0).numpy().astype(int)
    assert np.abs(turned - expected).mean() < 1.5
    assert torch.equal(hue(batch, np.array([0.0])), batch)
    assert torch.equal(hue(batch, np.array([1.0])), batch)
