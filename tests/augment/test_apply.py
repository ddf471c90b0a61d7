"""Carrying out draws: each view gets its own op and nothing else; the pool is never touched."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from triplee.augment import OPS, apply_draw, apply_op, draw_views, fourier_mix, normalise
from triplee.augment.basic import crop_and_flip
from triplee.augment.draw import FOURIER, Draw, draw_basic
from triplee.augment.ops import OP_TABLE
from triplee.data.pool import Pool
from triplee.seeding import generator
from triplee.settings import InputError, make_recipe


def test_every_view_is_its_own_op_on_its_own_image(digits: Pool) -> None:
    images = digits.images_NCHW[::29].clone()
    untouched = images.clone()
    index_V = np.random.default_rng(0).integers(len(images), size=300)
    draw = draw_views(make_recipe({}), generator(0, "apply"), 300, np.arange(len(images)))
    views = apply_draw(images, index_V, draw)
    for v, image in enumerate(index_V):
        op, argument, partner = (part[v, 0] for part in (draw.op_VK, draw.argument_VK, draw.partner_VK))
        one = images[image : image + 1]
        if op == FOURIER:
            expected = fourier_mix(one, images[partner : partner + 1], float(argument))
        else:
            expected = OP_TABLE[OPS[op]].function(one, np.array([argument]))
        assert torch.equal(views[v], expected[0]), (v, op)
    assert torch.equal(images, untouched)


def test_ops_in_a_row_are_applied_in_order(digits: Pool) -> None:
    images = digits.images_NCHW[:2]
    names = ("rotate", "solarize")
    arguments = np.array([[20.0, 128.0], [-7.0, 60.0]])
    draw = Draw(np.array([[OPS.index(n) for n in names]] * 2), arguments, np.full((2, 2), -1))
    expected = images
    for k, name in enumerate(names):
        expected = OP_TABLE[name].function(expected, arguments[:, k])
    assert torch.equal(apply_draw(images, np.arange(2), draw), expected)


def test_no_augmentation_is_the_image_itself(digits: Pool) -> None:
    draw = draw_views(make_recipe({"augment": "none"}), generator(0, "x"), 5, np.arange(3))
    assert torch.equal(apply_draw(digits.images_NCHW, np.arange(5), draw), digits.images_NCHW[:5])


def test_whole_box_is_the_identity_and_flip_mirrors(digits: Pool) -> None:
    images = digits.images_NCHW[::4001]
    whole = np.tile(np.array([0, 0, 1, 1], dtype=np.float32), (len(images), 1))
    never, always = np.zeros(len(images), dtype=bool), np.ones(len(images), dtype=bool)
    assert torch.equal(crop_and_flip(images, whole, never), images)
    assert torch.equal(crop_and_flip(images, whole, always), images.flip(3))


def test_a_quarter_box_is_that_quarter_enlarged() -> None:
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    image[..., :16, 16:] = 200  # top right
    view = crop_and_flip(image, np.array([[0.5, 0.0, 0.5, 0.5]], dtype=np.float32), np.array([False]))
    assert (view[..., :30, 2:] == 200).all()


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (32, 32), (33, 47)], ids=str)
def test_crops_are_bilinear_to_a_grey_level(size: tuple[int, int]) -> None:
    """Against torch's own sampling in floating point."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (40, 3, *size)).astype(np.uint8))
    basic = draw_basic(rng, 40, 0.3, True)
    left, top, width, height = torch.from_numpy(basic["box_V4"]).unbind(1)
    mirror, zero = torch.from_numpy(np.where(basic["flip_V"], -1, 1)), torch.zeros(40)
    across = torch.stack([width * mirror, zero, 2 * left + width - 1], 1)
    down = torch.stack([zero, height, 2 * top + height - 1], 1)
    grid = F.affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    expected = F.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    views = crop_and_flip(images, basic["box_V4"], basic["flip_V"])
    assert (views.float() - expected).abs().max() < 0.75  # half a level of rounding, weights of 11 bits


@pytest.mark.parametrize(
    "name, shape, dtype, strength",
    [
        ("rotat", (3, 8, 8), torch.uint8, 3),
        ("rotate", (1, 8, 8), torch.uint8, 3),
        ("rotate", (3, 8, 8), torch.float32, 3),
        ("rotate", (3, 8, 8), torch.uint8, 31),
        ("rotate", (8, 8), torch.uint8, 3),
    ],
)
def test_wrong_calls_are_one_line(name: str, shape: tuple[int, ...], dtype: torch.dtype, strength: int) -> None:
    with pytest.raises(InputError) as error:
        apply_op(name, torch.zeros(shape, dtype=dtype), strength)
    assert "\n" not in str(error.value)
    assert name != "rotat" or "'rotate'" in str(error.value)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(1, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)], ids=["float", "two"]
)
def test_what_is_no_image_is_not_normalised(wrong: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"normalise takes uint8 \(V,3,H,W\) or \(3,H,W\), not torch"):
        normalise(wrong, (0.5,) * 3, (0.5,) * 3)


def test_one_image_is_normalised_as_in_a_batch(digits: Pool) -> None:
    batch, half = digits.images_NCHW[:2], (0.5,) * 3
    assert torch.equal(normalise(batch[1], half, half), normalise(batch, half, half)[1])


def test_rows_are_asked_for_where_the_pool_is_no_tensor(digits: Pool) -> None:
    class Rows:
        device = torch.device("cpu")

        def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
            return digits.images_NCHW[index]

    recipe = make_recipe({"crop_area": 0.8, "flip": True, "ops_per_view": 2})
    draw = draw_views(recipe, generator(0, "rows"), 200, np.arange(len(digits)))
    index_V = np.random.default_rng(0).integers(len(digits), size=200)
    assert torch.equal(apply_draw(Rows(), index_V, draw), apply_draw(digits.images_NCHW, index_V, draw))
