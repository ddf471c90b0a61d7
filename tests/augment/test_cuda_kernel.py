"""The Triton kernels give the bytes of plain torch on the CPU: every op, with and without crop, at any size.

On a GPU the compiled kernels run. Elsewhere Triton's interpreter carries them out on the CPU, in a process of its own:
it takes over at the first import of Triton, and for good.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from triplee.augment.basic import crop_and_flip, crop_coefficients
from triplee.augment.draw import DRAWN_OPS, FOURIER, HUE, STYLE, draw_basic
from triplee.augment.ops import OP_TABLE, OPS, argument_of, fixed_matrices
from triton_interpreter import DEVICE, ON_GPU, needs_triton, run_in_interpreter, runs_kernels, starts_interpreter

STRENGTHS = range(31) if ON_GPU else (7, 30)  # the interpreter is slow

pytestmark = needs_triton


@starts_interpreter
def test_all_of_this_file_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


def hard_images(num_images: int, height: int, width: int) -> Tensor:
    """Noise between random bounds, half of it smooth; one flat image; one of the levels 0 and 1; one all white."""
    rng = np.random.default_rng(height * 1000 + width)
    low_N, high_N = rng.integers(0, 100, num_images), rng.integers(120, 256, num_images)
    share = rng.random((num_images, 3, height, width))
    share[::2] = np.sort(share[::2], axis=3)
    images = low_N[:, None, None, None] + share * (high_N - low_N + 1)[:, None, None, None]
    images = torch.from_numpy(images.clip(0, 255).astype(np.uint8))
    images[0], images[1], images[2] = 93, images[1] // 128, 255
    images[3, 1] = 0
    return images


def by_kernel(
    images: Tensor, index_V: np.ndarray, op_V: np.ndarray, argument_V: np.ndarray, crop_V4: np.ndarray | None = None
) -> Tensor:
    from triplee.augment.cuda import apply_kernel

    matrix_V6 = fixed_matrices(op_V, argument_V, *images.shape[2:])
    arrays = (index_V, op_V.astype(np.uint8), argument_V, matrix_V6)
    on_device = [torch.from_numpy(array).to(DEVICE) for array in arrays]
    crop = None if crop_V4 is None else torch.from_numpy(crop_V4).to(DEVICE)
    return apply_kernel(images.to(DEVICE), *on_device, crop).cpu()


def by_torch(views: Tensor, op_V: np.ndarray, argument_V: np.ndarray) -> Tensor:
    views = views.clone()
    for op in range(len(OPS)):
        drawn = np.flatnonzero(op_V == op)
        if len(drawn):
            views[drawn] = OP_TABLE[OPS[op]].function(views[drawn], argument_V[drawn])
    return views


def assert_same(ours: Tensor, theirs: Tensor, op_V: np.ndarray) -> None:
    wrong = (ours != theirs).flatten(1).any(1).numpy()
    assert not wrong.any(), sorted({DRAWN_OPS[op] for op in op_V[wrong]})


def every_op(images: Tensor, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index, op and argument of one view per op, strength and sign, of images at random; other ops too."""
    cases = [
        (op, s, sign) for op in range(len(OPS)) for s in STRENGTHS for sign in (1, -1)[: 1 + OP_TABLE[OPS[op]].signed]
    ]
    arguments = [argument_of(OPS[op], np.array([s]), np.array([sign]))[0] for op, s, sign in cases]
    op_V = np.array([op for op, _, _ in cases] + [FOURIER, HUE, STYLE])
    order = rng.permutation(len(op_V))
    return rng.integers(len(images), size=len(op_V)), op_V[order], np.array([*arguments, 0.3, 0.2, 1.0])[order]


@runs_kernels
@pytest.mark.parametrize("height, width", [(16, 16), (1, 2), (33, 35)])
def test_every_op_equals_plain_torch(height: int, width: int) -> None:
    images = hard_images(12, height, width)
    index_V, op_V, argument_V = every_op(images, np.random.default_rng(0))
    ours = by_kernel(images, index_V, op_V, argument_V)
    assert_same(ours, by_torch(images[index_V], op_V, argument_V), op_V)


@runs_kernels
@pytest.mark.parametrize("name", ["autocontrast", "equalize", "contrast", "sharpness"])
def test_ops_that_look_around_see_every_image(name: str) -> None:
    images = hard_images(6, 30, 31)
    op_V = np.full(len(images), OPS.index(name))
    argument_V = np.full(len(images), 1.3)
    ours = by_kernel(images, np.arange(len(images)), op_V, argument_V)
    assert_same(ours, by_torch(images, op_V, argument_V), op_V)


@runs_kernels
@pytest.mark.parametrize("height, width", [(34, 20)])
def test_crop_and_flip_come_first(height: int, width: int) -> None:
    rng = np.random.default_rng(1)
    images = hard_images(12, height, width)
    index_V, op_V, argument_V = every_op(images, rng)
    basic = draw_basic(rng, len(op_V), 0.3, True)
    crop_V4 = crop_coefficients(basic["box_V4"], basic["flip_V"], height, width)
    ours = by_kernel(images, index_V, op_V, argument_V, crop_V4)
    cropped = crop_and_flip(images[index_V], basic["box_V4"], basic["flip_V"])
    assert_same(ours, by_torch(cropped, op_V, argument_V), op_V)


@runs_kernels
def test_nothing_is_drawn() -> None:
    from triplee.augment.cuda import apply_kernel

    images = hard_images(5, 24, 24).to(DEVICE)
    nothing = [
        torch.zeros(size, dtype=dtype, device=DEVICE)
        for size, dtype in ((5, torch.uint8), (5, torch.float64), ((5, 6), torch.int32))
    ]
    assert torch.equal(apply_kernel(images, torch.arange(5, device=DEVICE), *nothing, None), images)
    none = [tensor[:0] for tensor in nothing]
    assert apply_kernel(images, torch.arange(0, device=DEVICE), *none, None).shape == (0, 3, 24, 24)


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
@pytest.mark.parametrize("size", [32, 160, 224, 1024])
def test_all_strengths_and_usual_sizes(size: int) -> None:
    rng = np.random.default_rng(2)
    images = hard_images(6, size, size)
    index_V, op_V, argument_V = every_op(images, rng)
    basic = draw_basic(rng, len(op_V), 0.8, True)
    crop_V4 = crop_coefficients(basic["box_V4"], basic["flip_V"], size, size)
    ours = by_kernel(images, index_V, op_V, argument_V, crop_V4)
    cropped = crop_and_flip(images[index_V], basic["box_V4"], basic["flip_V"])
    assert_same(ours, by_torch(cropped, op_V, argument_V), op_V)
