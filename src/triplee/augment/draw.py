"""What is random about a view, drawn ahead as plain arrays: ops, arguments, partners, crops (§ "ESAug").

Comes in: a generator and how many views; goes out: a Draw that apply.py carries out on any device.
Axes: V views, K ops in a row per view (1 = singular).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from triplee.augment.ops import MAX_STRENGTH, OPS, argument_of
from triplee.settings import Recipe

FOURIER, HUE, STYLE = range(len(OPS), len(OPS) + 3)
DRAWN_OPS = (*OPS, "fourier", "hue", "style")
CROSS_IMAGE_OPS = {"basic": (), "fourier": (FOURIER,), "style": (STYLE,), "both": (FOURIER, STYLE)}
STYLE_STRENGTH = 1.0  # what is random about a style is whose it is

JITTER, GREY_PROBABILITY = 0.4, 0.1  # the field's standard augmentation
CROP_RATIO = 4 / 3  # of a crop's sides, at most


@dataclass(frozen=True)
class Draw:
    """The draws of V views. `op_VK` indexes DRAWN_OPS; `partner_VK` says which image a cross-image op takes from."""

    op_VK: np.ndarray
    argument_VK: np.ndarray  # float64
    partner_VK: np.ndarray  # int64, −1 where the op needs none
    box_V4: np.ndarray | None = None  # float32 shares: left, top, width, height
    flip_V: np.ndarray | None = None

    def __getitem__(self, views: slice) -> "Draw":
        box_V4 = None if self.box_V4 is None else self.box_V4[views]
        flip_V = None if self.flip_V is None else self.flip_V[views]
        return Draw(self.op_VK[views], self.argument_VK[views], self.partner_VK[views], box_V4, flip_V)

    @property
    def kind(self) -> tuple[int, bool]:
        """Draws of one kind can be joined: as many ops in a row, and a crop for all or none."""
        return self.op_VK.shape[1], self.box_V4 is not None

    @classmethod
    def join(cls, draws: "Sequence[Draw]") -> "Draw":
        """The draws of several members, one after another, to be carried out at once."""
        boxes = [draw.box_V4 for draw in draws if draw.box_V4 is not None]
        flips = [draw.flip_V for draw in draws if draw.flip_V is not None]
        return cls(
            np.concatenate([draw.op_VK for draw in draws]),
            np.concatenate([draw.argument_VK for draw in draws]),
            np.concatenate([draw.partner_VK for draw in draws]),
            np.concatenate(boxes) if boxes else None,
            np.concatenate(flips) if flips else None,
        )


@lru_cache(maxsize=64)
def _arguments(translate_pixels: int) -> np.ndarray:
    """The argument of each op (the ESAug list, then 0 for cross-image ops) by strength and coin: sign −1, sign +1."""
    strength_L = np.arange(MAX_STRENGTH + 1)
    table = np.zeros((len(DRAWN_OPS), MAX_STRENGTH + 1, 2))
    for op, name in enumerate(OPS):
        for coin, sign in enumerate((-1, 1)):
            table[op, :, coin] = argument_of(name, strength_L, np.full_like(strength_L, sign), translate_pixels)
    return table


def draw_esaug(
    rng: np.random.Generator,
    num_views: int,
    partners: np.ndarray,
    *,
    labels: tuple[np.ndarray, np.ndarray] | None = None,
    ops: str = "fourier",
    cross_image_probability: float | None = None,
    ops_per_view: int = 1,
    translate_pixels: int = 10,
) -> Draw:
    """Exactly `ops_per_view` ops of random strength for each view; cross-image ops take a partner from `partners`.

    The style op takes one of the view's own class, where `labels` tells those of the views and of the partners.
    """
    shape = (num_views, ops_per_view)
    cross = np.array(CROSS_IMAGE_OPS[ops], dtype=np.int64)
    listed = np.concatenate([np.arange(len(OPS)), cross])
    op_VK = listed[rng.integers(len(listed), size=shape)]
    if cross_image_probability is not None and len(cross):
        is_cross = rng.random(shape) < cross_image_probability
        op_VK = np.where(is_cross, cross[rng.integers(len(cross), size=shape)], rng.integers(len(OPS), size=shape))
    strength_VK = rng.integers(MAX_STRENGTH + 1, size=shape)
    coin_VK = rng.integers(2, size=shape)
    share_VK = rng.random(shape) * rng.random(shape)  # λ ~ U(0, ξ) with ξ ~ U(0, 1)
    argument_VK = _arguments(translate_pixels)[op_VK, strength_VK, coin_VK]
    if not len(cross):
        return Draw(op_VK, argument_VK, np.full(shape, -1))
    partner_VK = partners[rng.integers(len(partners), size=shape)]
    is_style = op_VK == STYLE
    if STYLE in cross and labels is not None:
        partner_VK = np.where(is_style, _draw_classmates(rng, shape, partners, *labels), partner_VK)
    argument_VK = np.where(op_VK == FOURIER, share_VK, np.where(is_style, STYLE_STRENGTH, argument_VK))
    return Draw(op_VK, argument_VK, np.where(op_VK >= len(OPS), partner_VK, -1))


def _draw_classmates(
    rng: np.random.Generator,
    shape: tuple[int, int],
    partners: np.ndarray,
    label_V: np.ndarray,
    partner_label_P: np.ndarray,
) -> np.ndarray:
    """Partners of each view's own class, or any where it has none."""
    order_P = np.argsort(partner_label_P, kind="stable")
    first_V, after_V = (np.searchsorted(partner_label_P[order_P], label_V, side) for side in ("left", "right"))
    alone_V = first_V == after_V
    first_V, after_V = np.where(alone_V, 0, first_V), np.where(alone_V, len(partners), after_V)
    place_VK = first_V[:, None] + np.floor(rng.random(shape) * (after_V - first_V)[:, None]).astype(np.int64)
    return partners[order_P[place_VK]]


def draw_standard(rng: np.random.Generator, num_views: int) -> Draw:
    """Colour jitter of brightness, contrast, saturation and hue in random order, then grey for every tenth view."""
    jittered = np.array([OPS.index("brightness"), OPS.index("contrast"), OPS.index("color"), HUE])
    order_V4 = rng.random((num_views, 4)).argsort(1)
    op_V4 = jittered[order_V4]
    amount_V4 = rng.uniform(-JITTER, JITTER, (num_views, 4))
    argument_V4 = np.where(op_V4 == HUE, amount_V4, 1 + amount_V4)
    grey_V1 = rng.random((num_views, 1)) < GREY_PROBABILITY
    op_VK = np.concatenate([op_V4, np.where(grey_V1, OPS.index("color"), OPS.index("identity"))], 1)
    argument_VK = np.concatenate([argument_V4, np.zeros((num_views, 1))], 1)
    return Draw(op_VK, argument_VK, np.full(op_VK.shape, -1))


def draw_basic(rng: np.random.Generator, num_views: int, crop_area: float, flip: bool) -> dict[str, np.ndarray]:
    """Boxes and flips of the basic augmentation, as the fields of a Draw; none when it would change nothing."""
    if crop_area == 1 and not flip:
        return {}
    area = rng.uniform(crop_area, 1, num_views)
    widest = np.minimum(CROP_RATIO, 1 / area)  # a side longer than the image would have to be cut, and the area with it
    ratio = widest ** rng.uniform(-1, 1, num_views)
    size_V2 = np.stack([np.sqrt(area * ratio), np.sqrt(area / ratio)], 1).clip(max=1)
    corner_V2 = rng.random((num_views, 2)) * (1 - size_V2)
    flip_V = rng.random(num_views) < 0.5 if flip else np.zeros(num_views, dtype=bool)
    return {"box_V4": np.concatenate([corner_V2, size_V2], 1).astype(np.float32), "flip_V": flip_V}


def draw_views(
    recipe: Recipe,
    rng: np.random.Generator,
    num_views: int,
    partners: np.ndarray,
    labels: tuple[np.ndarray, np.ndarray] | None = None,
) -> Draw:
    """The draws a recipe asks for, for `num_views` views."""
    basic = {} if recipe.augment == "none" else draw_basic(rng, num_views, recipe.crop_area, recipe.flip)
    if recipe.augment == "esaug":
        draw = draw_esaug(
            rng,
            num_views,
            partners,
            labels=labels,
            ops=recipe.ops,
            cross_image_probability=recipe.cross_image_probability,
            ops_per_view=recipe.ops_per_view,
            translate_pixels=recipe.translate_pixels,
        )
    elif recipe.augment == "standard":
        draw = draw_standard(rng, num_views)
    else:
        empty = np.empty((num_views, 0))
        draw = Draw(empty.astype(np.int64), empty, empty.astype(np.int64))
    return Draw(draw.op_VK, draw.argument_VK, draw.partner_VK, **basic)
