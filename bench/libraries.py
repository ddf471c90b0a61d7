"""The rivals of bench/augment.py from other libraries: their own versions of the 14 ops, one at random per view.

Each maker takes uint8 images (V,3,H,W) and gives a call that makes the views anew, as floats in −1..1, into `batch`.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Maker = Callable[[Tensor, Tensor], Callable[[], Tensor]]


def normalise_into(batch: Tensor, views_u8: Tensor) -> Tensor:
    """Floats in −1..1, in memory that is there already: fresh memory for 64 views of 224² costs more than the views."""
    return batch.copy_(views_u8).mul_(1 / 127.5).sub_(1)


def draw_arguments() -> tuple[float, float, float, float, int, int]:
    """Factor, degrees, shear, pixels, threshold and bits at one random strength, signs drawn."""
    strength, sign = random.randint(0, 30), random.choice((1, -1))
    factor, threshold, bits = 0.1 + 1.8 * strength / 30, 256 - int(256 * strength / 30), 8 - int(4 * strength / 30)
    return factor, sign * strength, sign * 0.3 * strength / 30, sign * int(10 * strength / 30), threshold, bits


def torchvision_views(images: Tensor, batch: Tensor) -> Callable[[], Tensor]:
    """torchvision.transforms.v2.functional, image by image on uint8 tensors, normalised together."""
    import torchvision.transforms.v2.functional as F  # pyright: ignore[reportMissingImports]

    def affine(image: Tensor, across: float = 0, down: float = 0, shear: tuple[float, float] = (0, 0)) -> Tensor:
        degrees = [math.degrees(math.atan(s)) for s in shear]
        return F.affine(image, angle=0, translate=[across, down], scale=1, shear=degrees)

    def view(image: Tensor) -> Tensor:
        factor, degrees, shear, pixels, threshold, bits = draw_arguments()
        calls: tuple[Callable[[], Tensor], ...] = (
            lambda: image,
            lambda: F.autocontrast(image),
            lambda: F.equalize(image),
            lambda: F.rotate(image, degrees),
            lambda: F.solarize(image, min(threshold, 255)),
            lambda: F.adjust_saturation(image, factor),
            lambda: F.posterize(image, bits),
            lambda: F.adjust_contrast(image, factor),
            lambda: F.adjust_brightness(image, factor),
            lambda: F.adjust_sharpness(image, factor),
            lambda: affine(image, shear=(shear, 0)),
            lambda: affine(image, shear=(0, shear)),
            lambda: affine(image, across=pixels),
            lambda: affine(image, down=pixels),
        )
        return random.choice(calls)()

    return lambda: normalise_into(batch, torch.stack([view(image) for image in images]))


def kornia_views(images: Tensor, batch: Tensor) -> Callable[[], Tensor]:
    """kornia's functions on floats in 0..1, as it is meant: views that drew the same op go through it together."""
    import kornia.enhance as E  # pyright: ignore[reportMissingImports]
    import kornia.geometry.transform as T  # pyright: ignore[reportMissingImports]

    def changed(op: int, some: Tensor) -> Tensor:
        drawn = [draw_arguments() for _ in some]
        factor, degrees, shear, pixels, threshold, bits = (
            torch.tensor(column, dtype=torch.float32, device=some.device) for column in zip(*drawn, strict=True)
        )
        nothing = torch.zeros_like(shear)

        def autocontrast() -> Tensor:
            low, high = some.amin((2, 3), keepdim=True), some.amax((2, 3), keepdim=True)
            return (some - low) / (high - low).clamp(min=1e-6)

        calls: tuple[Callable[[], Tensor], ...] = (
            lambda: some,
            autocontrast,
            lambda: E.equalize(some),
            lambda: T.rotate(some, degrees, mode="nearest"),
            lambda: E.solarize(some, threshold / 256),
            lambda: E.adjust_saturation_with_gray_subtraction(some, factor),
            lambda: E.posterize(some, bits.int()),
            lambda: E.adjust_contrast_with_mean_subtraction(some, factor),
            lambda: E.adjust_brightness_accumulative(some, factor),
            lambda: E.sharpness(some, factor),
            lambda: T.shear(some, torch.stack([shear, nothing], 1), mode="nearest"),
            lambda: T.shear(some, torch.stack([nothing, shear], 1), mode="nearest"),
            lambda: T.translate(some, torch.stack([pixels, nothing], 1), mode="nearest"),
            lambda: T.translate(some, torch.stack([nothing, pixels], 1), mode="nearest"),
        )
        return calls[op]()

    def make() -> Tensor:
        op_V = np.random.default_rng(random.getrandbits(32)).integers(14, size=len(images))
        torch.mul(images, 1 / 255, out=batch)
        for op in np.unique(op_V).tolist():
            where = torch.from_numpy(np.flatnonzero(op_V == op)).to(images.device)
            batch[where] = changed(op, batch[where])
        return batch.mul_(2).sub_(1)

    return make


def albumentations_views(images: Tensor, batch: Tensor) -> Callable[[], Tensor]:
    """albumentations' OneOf, image by image on (H,W,3) arrays, normalised together."""
    import albumentations as A  # pyright: ignore[reportMissingImports]

    def jitter(**which: tuple[float, float]) -> Any:
        return A.ColorJitter(
            **{"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0), **which}, p=1
        )

    factors, degrees = (0.1, 1.9), math.degrees(math.atan(0.3))
    one_of = A.OneOf(
        [
            A.NoOp(p=1),
            A.AutoContrast(p=1, method="pil"),
            A.Equalize(p=1, mode="pil"),
            A.Affine(rotate=(-30, 30), interpolation=0, p=1),
            A.Solarize(threshold_range=(0, 1), p=1),
            jitter(saturation=factors),
            A.Posterize(num_bits=(4, 7), p=1),
            jitter(contrast=factors),
            jitter(brightness=factors),
            A.Sharpen(p=1),
            A.Affine(shear={"x": (-degrees, degrees), "y": 0}, interpolation=0, p=1),
            A.Affine(shear={"x": 0, "y": (-degrees, degrees)}, interpolation=0, p=1),
            A.Affine(translate_px={"x": (-10, 10), "y": 0}, interpolation=0, p=1),
            A.Affine(translate_px={"x": 0, "y": (-10, 10)}, interpolation=0, p=1),
        ],
        p=1,
    )
    pictures = [np.ascontiguousarray(image) for image in images.permute(0, 2, 3, 1).numpy()]

    def make() -> Tensor:
        views = torch.from_numpy(np.stack([one_of(image=picture)["image"] for picture in pictures]))
        return normalise_into(batch, views.permute(0, 3, 1, 2))

    return make


LIBRARIES: dict[str, Maker] = {
    "torchvision v2": torchvision_views,
    "kornia": kornia_views,
    "albumentations": albumentations_views,
}
