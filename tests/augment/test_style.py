"""The style op: AdaIN's formula, only the views that drew it, and each the same whatever is made beside it."""

import numpy as np
import pytest
import torch

from triplee import ESAug, ReplayCollate
from triplee.augment import OPS, Draw, apply_draw, draw_views
from triplee.augment.draw import FOURIER, STYLE
from triplee.augment.style import EPSILON, StyleTable, channel_statistics, move_statistics
from triplee.data.pool import Pool
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import freeze
from triplee.seeding import generator
from triplee.settings import InputError, make_recipe


@pytest.fixture(scope="module")
def stylizer() -> Stylizer:
    """Untrained: it makes no pretty pictures, but follows the same arithmetic."""
    torch.manual_seed(0)
    return freeze(Stylizer("small"))


def styled(num_views: int, partner_V: np.ndarray, strength: float = 1.0) -> Draw:
    column = (num_views, 1)
    return Draw(np.full(column, STYLE), np.full(column, strength), partner_V.reshape(column))


def test_adain_is_the_formula_in_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    content, style = rng.normal(1, 3, (4, 5, 6, 7)), rng.normal(-2, 0.5, (4, 5, 8, 3))
    content[0, 0], style[1, 2] = 2, 0  # channels without any spread
    expected = np.empty_like(content)
    for v in range(4):
        strength = v / 3
        for c in range(5):
            own, other = content[v, c], style[v, c]
            scale = np.sqrt((other.var() + EPSILON) / (own.var() + EPSILON))
            expected[v, c] = (1 - strength) * own + strength * ((own - own.mean()) * scale + other.mean())
    moved = move_statistics(
        torch.from_numpy(content).float(), channel_statistics(torch.from_numpy(style)), torch.arange(4) / 3
    )
    assert np.abs(moved.numpy() - expected).max() < 1e-4
    assert torch.allclose(channel_statistics(moved)[3], channel_statistics(torch.from_numpy(style))[3], atol=1e-4)


def test_only_the_views_that_drew_it_are_restyled(digits: Pool, stylizer: Stylizer) -> None:
    images, partners = digits.images_NCHW[:], np.arange(500, 700)
    table = StyleTable(stylizer, images, partners)
    recipe, index_V = make_recipe({"ops": "both"}), np.arange(300)
    draw = draw_views(recipe, generator(0, "style"), 300, partners)
    views = apply_draw(images, index_V, draw, table)
    (restyled,) = (draw.op_VK[:, 0] == STYLE).nonzero()
    assert 8 < len(restyled) < 35
    plain = Draw(np.where(draw.op_VK == STYLE, 0, draw.op_VK), draw.argument_VK, draw.partner_VK)
    expected = apply_draw(images, index_V, plain)
    table.restyle_views(expected, restyled, draw.partner_VK[restyled, 0], np.ones(len(restyled)))
    assert torch.equal(views, expected)
    differ = (views != apply_draw(images, index_V, plain)).flatten(1).any(1)
    assert set(differ.nonzero()[:, 0].tolist()) == set(restyled.tolist())


def test_a_view_does_not_depend_on_those_beside_it(digits: Pool, stylizer: Stylizer) -> None:
    images, partners = digits.images_NCHW[:], np.arange(100, 140)
    table = StyleTable(stylizer, images, partners)
    partner_V = np.resize(partners, 50)
    together = apply_draw(images, np.arange(50), styled(50, partner_V), table)
    for start, stop in ((0, 1), (1, 18), (18, 50)):
        some = apply_draw(images, np.arange(start, stop), styled(stop - start, partner_V[start:stop]), table)
        assert torch.equal(some, together[start:stop]), (start, stop)
    own = np.array([partners[5]])
    one_table = StyleTable(stylizer, images, own)
    assert torch.equal(apply_draw(images, np.array([5]), styled(1, own), one_table), together[5:6])


def test_odd_sizes_and_photos_one_at_a_time(stylizer: Stylizer) -> None:
    images = torch.randint(0, 256, (3, 3, 131, 133), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    table = StyleTable(stylizer, images, np.array([2]))
    views = apply_draw(images, np.arange(2), styled(2, np.array([2, 2])), table)
    assert views.shape == (2, 3, 131, 133) and not torch.equal(views, images[:2])


def test_strength_zero_is_what_the_decoder_makes_of_the_image(digits: Pool, stylizer: Stylizer) -> None:
    images = digits.images_NCHW[:4]
    views = apply_draw(images, np.arange(4), styled(4, np.full(4, 1), 0.0), StyleTable(stylizer, images, np.array([1])))
    with torch.inference_mode():
        again = stylizer.decode(stylizer.encode(images / 255), 32, 32)
    assert (views.int() - (again * 255).round().clamp(0, 255).int()).abs().max() <= 1


def test_without_a_stylizer_the_op_is_refused(digits: Pool) -> None:
    with pytest.raises(InputError, match="stylizer"):
        apply_draw(digits.images_NCHW[:3], np.arange(1), styled(1, np.array([2])))
    with pytest.raises(InputError, match="load_stylizer"):
        ESAug("style")


def test_esaug_takes_styles_from_the_same_class(digits: Pool, stylizer: Stylizer) -> None:
    torch.manual_seed(0)
    images = digits.images_NCHW[:40]
    augment = ESAug("style", stylizer=stylizer, partners=digits.images_NCHW[100:140], cross_image_probability=1.0)
    assert augment(images).shape == images.shape and augment(images[0]).shape == images[0].shape
    # Of its class there is one partner alone, so every view has that one's style.
    labels, partner_labels = torch.tensor([1, 0]), torch.tensor([0, 1] + [2] * 38)
    classy = ESAug(
        "style",
        stylizer=stylizer,
        partners=digits.images_NCHW[100:140],
        partner_labels=partner_labels,
        cross_image_probability=1.0,
    )
    expected = apply_draw(
        digits.images_NCHW[:141],
        np.array([0, 1]),
        styled(2, np.array([101, 100])),
        StyleTable(stylizer, digits.images_NCHW[:141], np.array([100, 101])),
    )
    for _ in range(3):
        assert torch.equal(classy(images[:2], labels), expected)
    views, _ = ReplayCollate(2, classy)([(images[0], 1), (images[1], 0)])
    assert torch.equal(views, expected.repeat_interleave(2, 0))
    batch_only = ESAug("both", stylizer=stylizer)
    assert batch_only(images).shape == images.shape
    with pytest.raises(InputError, match="partners"):
        batch_only(images[0])


@pytest.mark.parametrize("ops, cross", [("style", [STYLE]), ("both", [FOURIER, STYLE])])
def test_the_list_has_the_cross_image_ops_once_each(ops: str, cross: list[int]) -> None:
    partners, many = np.arange(10, 20), 48_000
    listed = [*range(len(OPS)), *cross]
    drawn = draw_views(make_recipe({"ops": ops}), generator(0, "x"), many, partners)
    share = {op: float((drawn.op_VK == op).mean()) for op in np.unique(drawn.op_VK).tolist()}
    assert sorted(share) == listed and max(abs(s - 1 / len(listed)) for s in share.values()) < 0.005
    assert (drawn.argument_VK[drawn.op_VK == STYLE] == 1).all()
    halves = draw_views(make_recipe({"ops": ops, "cross_image_probability": 0.5}), generator(0, "x"), many, partners)
    assert np.isin(halves.op_VK, cross).mean() == pytest.approx(0.5, abs=0.01)
    assert ((halves.partner_VK >= 0) == np.isin(halves.op_VK, cross)).all()


def test_partners_of_the_style_op_are_of_the_same_class_and_any_of_them() -> None:
    partners = np.arange(100, 130)
    partner_labels = np.resize([0, 1, 2], 30)
    labels = np.resize([0, 1, 2, 7], 40_000)  # nobody is of class 7
    recipe = make_recipe({"ops": "both", "cross_image_probability": 1.0})
    drawn = draw_views(recipe, generator(0, "x"), len(labels), partners, (labels, partner_labels))
    is_style = drawn.op_VK[:, 0] == STYLE
    chosen = drawn.partner_VK[:, 0]
    for label in range(3):
        own = chosen[is_style & (labels == label)]
        assert set(own) == set(partners[partner_labels == label])
        assert np.bincount(own)[100:].max() < 1.4 * len(own) / 10
    assert set(chosen[is_style & (labels == 7)]) == set(partners)
    assert set(chosen[~is_style & (labels == 0)]) == set(partners)  # Fourier takes any


def test_other_draws_stay_as_they_were() -> None:
    """Labels decide nothing but the style op's partners."""
    for ops in ("basic", "fourier"):
        one, two = (
            draw_views(make_recipe({"ops": ops}), generator(0, "x"), 500, np.arange(9), labels)
            for labels in (None, (np.zeros(500, int), np.zeros(9, int)))
        )
        assert all(np.array_equal(getattr(one, n), getattr(two, n)) for n in ("op_VK", "argument_VK", "partner_VK"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("side", [17, 32, 96, 160, 224, 500])
def test_pieces_are_the_index_and_only_the_last_is_filled_up(device: str, side: int) -> None:
    table = object.__new__(StyleTable)
    table.device = torch.device(device)
    index = np.arange(5000) + 3
    pieces = list(table._chunks(index, torch.Size([side, side])))
    assert np.array_equal(np.concatenate(pieces)[: len(index)], index)
    assert len({len(piece) for piece in pieces[:-1]}) <= 1
    length = max(1, (16 * 32 * 32 if device == "cpu" else 64 * 224 * 224) // side**2)
    assert len(pieces[0]) == (length if device == "cpu" else min(length, len(index)))
    assert len(pieces[-1]) == (length if device == "cpu" else (len(index) - 1) % length + 1)
