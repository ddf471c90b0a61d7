"""Draws: one op per view, the right probabilities, the same from the same key."""

from typing import Any

import numpy as np
import pytest

from triplee.augment import OPS, draw_views
from triplee.augment.draw import DRAWN_OPS, FOURIER, HUE, Draw, draw_esaug
from triplee.augment.ops import argument_of
from triplee.seeding import generator
from triplee.settings import make_recipe

PARTNERS = np.arange(1000, 1200)
MANY = 60_000


def draw(num_views: int = MANY, **values: object) -> Draw:
    return draw_views(make_recipe(values), generator(0, "test"), num_views, PARTNERS)


@pytest.mark.parametrize("ops, num_ops", [("basic", 14), ("fourier", 15)])
def test_exactly_one_op_per_view_uniform_over_the_list(ops: str, num_ops: int) -> None:
    drawn = draw(ops=ops)
    assert drawn.op_VK.shape == (MANY, 1)
    share = np.bincount(drawn.op_VK[:, 0], minlength=num_ops) / MANY
    assert len(share) == num_ops
    assert np.abs(share - 1 / num_ops).max() < 0.005


def test_strengths_and_signs_are_uniform() -> None:
    drawn = draw()
    degrees = drawn.argument_VK[drawn.op_VK == OPS.index("rotate")].astype(int)
    counts = np.bincount(degrees + 30, minlength=61)
    assert len(counts) == 61 and (counts > 0).all()
    assert counts[30] / len(degrees) == pytest.approx(1 / 31, abs=0.012)  # 0 has no sign
    assert (degrees > 0).mean() == pytest.approx(15 / 31, abs=0.03)
    factors = np.unique(drawn.argument_VK[drawn.op_VK == OPS.index("color")])
    assert np.allclose(factors, 0.1 + 1.8 * np.arange(31) / 30)


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_probability_of_the_cross_image_op(probability: float) -> None:
    drawn = draw(cross_image_probability=probability)
    assert (drawn.op_VK == FOURIER).mean() == pytest.approx(probability, abs=0.01)
    share = np.bincount(drawn.op_VK[drawn.op_VK != FOURIER], minlength=14)
    assert probability == 1 or np.abs(share / share.sum() - 1 / 14).max() < 0.01


def test_fourier_partners_come_from_the_sources_and_shares_are_products_of_two_uniforms() -> None:
    drawn = draw()
    mixes = drawn.op_VK == FOURIER
    assert set(np.unique(drawn.partner_VK[mixes])) == set(PARTNERS)
    assert (drawn.partner_VK[~mixes] == -1).all()
    shares = drawn.argument_VK[mixes]
    assert shares.min() >= 0 and shares.max() < 1
    assert shares.mean() == pytest.approx(0.25, abs=0.02)
    assert (shares**2).mean() == pytest.approx(1 / 9, abs=0.015)


def test_sequential_mode_draws_several_ops_in_a_row() -> None:
    drawn = draw(ops_per_view=3)
    assert drawn.op_VK.shape == (MANY, 3)
    for first, second in ((0, 1), (1, 2), (0, 2)):  # drawn independently of each other
        assert (drawn.op_VK[:, first] == drawn.op_VK[:, second]).mean() == pytest.approx(1 / 15, abs=0.005)


def test_standard_augmentation_jitters_in_random_order_and_greys_a_tenth() -> None:
    drawn = draw(augment="standard")
    names = np.array(DRAWN_OPS)[drawn.op_VK]
    assert (np.sort(names[:, :4], 1) == sorted(["brightness", "contrast", "color", "hue"])).all()
    assert len({tuple(row) for row in names[:, :4]}) == 24
    grey = names[:, 4] == "color"
    assert grey.mean() == pytest.approx(0.1, abs=0.01)
    assert (drawn.argument_VK[grey, 4] == 0).all() and (names[~grey, 4] == "identity").all()
    amounts = drawn.argument_VK[:, :4]
    hues = amounts[drawn.op_VK[:, :4] == HUE]
    factors = amounts[drawn.op_VK[:, :4] != HUE]
    assert -0.4 <= hues.min() < -0.39 and 0.39 < hues.max() <= 0.4
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4


def test_crops_keep_the_asked_area_inside_the_image() -> None:
    drawn = draw(augment="vanilla", crop_area=0.8, flip=True)
    assert drawn.op_VK.shape == (MANY, 0) and drawn.box_V4 is not None and drawn.flip_V is not None
    left, top, width, height = drawn.box_V4.T
    assert min(left.min(), top.min()) >= 0 and max((left + width).max(), (top + height).max()) <= 1 + 1e-6
    assert (width * height).min() > 0.8 - 1e-6 and (width * height).max() <= 1 + 1e-6
    assert 0.45 < drawn.flip_V.mean() < 0.55


def test_digits_have_neither_crop_nor_flip() -> None:
    assert draw().box_V4 is None
    assert draw(augment="none", crop_area=0.8, flip=True).box_V4 is None


def test_equal_keys_draw_equally() -> None:
    one, two = draw(100), draw(100)
    assert np.array_equal(one.op_VK, two.op_VK) and np.array_equal(one.argument_VK, two.argument_VK)
    other = draw_views(make_recipe({}), generator(1, "test"), 100, PARTNERS)
    assert not np.array_equal(one.op_VK, other.op_VK)


def test_arguments_at_the_ends_of_the_scale() -> None:
    ends = np.array([0, 30])
    plus, minus = np.array([1, 1]), np.array([-1, -1])
    assert argument_of("solarize", ends, minus).tolist() == [256, 0]
    assert argument_of("posterize", ends, minus).tolist() == [8, 4]
    assert argument_of("translate_x", ends, minus).tolist() == [0, -10]
    assert argument_of("translate_x", ends, plus, translate_pixels=4).tolist() == [0, 4]
    assert np.allclose(argument_of("shear_y", ends, minus), [0, -0.3])
    assert np.allclose(argument_of("sharpness", ends, plus), [0.1, 1.9])


@pytest.mark.parametrize(
    "options",
    [{}, {"ops": "basic"}, {"cross_image_probability": 0.5}, {"ops_per_view": 3, "translate_pixels": 4}],
    ids=str,
)
def test_draws_are_those_of_the_plain_rule(options: dict[str, Any]) -> None:
    """Op by op and in the order in which numbers were always drawn, so that old runs can be drawn again."""
    drawn = draw_esaug(np.random.default_rng(3), 500, PARTNERS, **options)
    rng, shape = np.random.default_rng(3), (500, options.get("ops_per_view", 1))
    has_fourier = options.get("ops") != "basic"
    op_VK = rng.integers(15 if has_fourier else 14, size=shape)
    if (probability := options.get("cross_image_probability")) is not None:
        is_cross = rng.random(shape) < probability
        rng.choice(np.array([FOURIER]), shape)
        op_VK = np.where(is_cross, FOURIER, rng.integers(14, size=shape))
    strength_VK, sign_VK = rng.integers(31, size=shape), rng.integers(2, size=shape) * 2 - 1
    argument_VK = rng.random(shape) * rng.random(shape)
    partner_VK = rng.choice(PARTNERS, shape) if has_fourier else np.full(shape, -1)
    for index, name in enumerate(OPS):
        chosen = op_VK == index
        pixels = options.get("translate_pixels", 10)
        argument_VK[chosen] = argument_of(name, strength_VK[chosen], sign_VK[chosen], pixels)
    assert np.array_equal(drawn.op_VK, op_VK) and np.array_equal(drawn.argument_VK, argument_VK)
    assert np.array_equal(drawn.partner_VK, np.where(op_VK == FOURIER, partner_VK, -1))
