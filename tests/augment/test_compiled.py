"""Compiled code gives the bytes of plain torch, loads when first used, and is done without where it cannot run."""

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import triplee
from triplee.augment import OPS, apply_draw, available, draw_views, fourier, fourier_mix
from triplee.augment import apply as apply_module
from triplee.augment.apply import normalise, plain_pass
from triplee.augment.draw import FOURIER, draw_basic, draw_esaug
from triplee.augment.ops import fixed_matrices
from triplee.data.pool import Pool
from triplee.seeding import generator
from triplee.settings import InputError, make_recipe

compiled = pytest.importorskip("triplee.augment.compiled")

SIZES = [(h, w) for h in (1, 2, 3, 5, 17) for w in (1, 2, 3, 4, 33)] + [(32, 32), (47, 64), (64, 63), (224, 224)]


def make_images(num_images: int, height: int, width: int) -> torch.Tensor:
    """Noise, low contrast, one colour, black with single lights."""
    rng = np.random.default_rng(height * 1000 + width)
    shape = (num_images, 3, height, width)
    images = rng.integers(0, 256, shape)
    images[1::4] = 100 + images[1::4] % 5
    images[2::4] = images[2::4, :, :1, :1]
    images[3::4] = np.where(images[3::4] > 250, 255, 0)
    return torch.from_numpy(images.astype(np.uint8))


def assert_passes_agree(images: torch.Tensor, crop: bool, translate_pixels: int = 10) -> None:
    rng = np.random.default_rng(0)
    num_views = 14 * 12
    draw = draw_esaug(rng, num_views, np.arange(0), ops="basic", translate_pixels=translate_pixels)
    op_V, argument_V = draw.op_VK[:, 0], draw.argument_VK[:, 0]
    basic = draw_basic(rng, num_views, 0.3, True) if crop else {}
    rest = (op_V, argument_V, basic.get("box_V4"), basic.get("flip_V"))
    index_V = rng.integers(len(images), size=num_views)
    untouched = images.clone()
    views, expected = compiled.apply_pass(images, index_V, *rest), plain_pass(images, index_V, *rest)
    wrong = (views != expected).flatten(1).any(1).numpy()
    assert not wrong.any(), {OPS[op] for op in op_V[wrong]}
    assert torch.equal(images, untouched)


@pytest.mark.parametrize("crop", [False, True], ids=["whole", "cropped"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_bytes_are_those_of_plain_torch(size: tuple[int, int], crop: bool) -> None:
    assert_passes_agree(make_images(8, *size), crop)


def test_moves_beyond_the_image_are_black_everywhere() -> None:
    assert_passes_agree(make_images(8, 9, 12), False, translate_pixels=10**9)
    far = fixed_matrices(np.array([OPS.index("translate_x")]), np.array([-1e12]), 9, 12)
    assert far.tolist() == [[65536, 0, -12 * 65536 + 32768, 0, 65536, 32768]]


def test_views_split_over_threads_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BYTES_PER_THREAD", 1)
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 3, 7):
            torch.set_num_threads(num_threads)
            assert_passes_agree(make_images(8, 20, 31), True)
    finally:
        torch.set_num_threads(before)


def test_a_forked_worker_has_threads_of_its_own(digits: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this process, kept from one call to the next, are not there after a fork."""
    monkeypatch.setattr(compiled, "BYTES_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    images = digits.images_NCHW[:4]
    rest = (np.full(4, OPS.index("equalize")), np.zeros(4), None, None)
    ours = compiled.apply_pass(images, np.arange(4), *rest)
    loader = DataLoader(
        [np.array([1, 3])],
        num_workers=1,
        collate_fn=lambda items: compiled.apply_pass(images, np.arange(4), *rest),
        timeout=60,
        multiprocessing_context="fork",
    )
    (in_worker,) = loader
    assert torch.equal(in_worker, ours)


def test_many_threads_at_once_do_not_disturb_each_other(digits: Pool) -> None:
    recipe = make_recipe({"crop_area": 0.8, "flip": True})
    draw = draw_views(recipe, generator(0, "threads"), 400, np.arange(len(digits)))
    index_V = np.arange(400) * 25
    expected = apply_draw(digits.images_NCHW, index_V, draw)
    same: list[bool] = []

    def work() -> None:
        for _ in range(5):
            same.append(torch.equal(apply_draw(digits.images_NCHW, index_V, draw), expected))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(same) == 30 and all(same)


@pytest.mark.parametrize("index", [8, -1, 10**12])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_index_out_of_range_reads_nothing(index: int, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BYTES_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    with pytest.raises(IndexError, match="8 images"):
        compiled.apply_pass(
            make_images(8, 4, 4), np.array([0, 1, 2, index]), np.zeros(4, np.int64), np.zeros(4), None, None
        )


def test_images_that_do_not_lie_in_one_piece(digits: Pool) -> None:
    images = digits.images_NCHW[:40]
    turned = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not turned.is_contiguous()
    draw = draw_views(make_recipe({}), generator(0, "x"), 60, np.arange(40))
    index_V = np.arange(60) % 40
    assert torch.equal(apply_draw(turned, index_V, draw), apply_draw(images, index_V, draw))


@pytest.mark.parametrize(
    "values", [{}, {"augment": "standard"}, {"ops_per_view": 3, "crop_area": 0.8, "flip": True}], ids=str
)
def test_without_compiled_code_the_views_are_the_same(
    values: dict[str, object], digits: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = draw_views(make_recipe(values), generator(0, "x"), 300, np.arange(len(digits)))
    index_V = np.arange(300) * 30
    expected = apply_draw(digits.images_NCHW, index_V, draw)
    for module in (apply_module, fourier):
        monkeypatch.setattr(module, "find_kernels", lambda device_type: None)
    views = apply_draw(digits.images_NCHW, index_V, draw)
    mixed_V = torch.from_numpy((draw.op_VK == FOURIER).any(1))
    assert torch.equal(views[~mixed_V], expected[~mixed_V])
    if draw.op_VK.shape[1] == 1:  # of several ops, a later one would enlarge a grey level that was rounded otherwise
        nearly_the_same(views[mixed_V], expected[mixed_V])


def nearly_the_same(views: torch.Tensor, expected: torch.Tensor, most: float = 1e-3) -> None:
    """But for values halfway between two grey levels, which either transform may round its own way."""
    differences = (views.int() - expected.int()).abs()
    assert differences.max() <= 1 and (differences > 0).float().mean() < most


# Powers of two, and those times 3, 5 and 7, in every order of passes; and sizes that are left to torch.
FOURIER_SIZES = [
    (32, 32),
    (512, 32),
    (1, 16),
    (2, 16),
    (3, 16),
    (5, 32),
    (7, 64),
    (6, 48),
    (12, 80),
    (40, 96),
    (56, 112),
]
LEFT_TO_TORCH = [(1, 1), (7, 10), (11, 16), (16, 40), (18, 32)]


@pytest.mark.parametrize("size", [*FOURIER_SIZES, (160, 160), (224, 224), (256, 128), *LEFT_TO_TORCH], ids=str)
def test_fourier_mixes_are_the_same(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.can_transform(*size) == (size not in LEFT_TO_TORCH)
    images = make_images(9, *size)
    partners, share_V = images.roll(2, 0), torch.linspace(0, 1, 9) ** 1.3  # no eighths: flat images would be halfway
    mixed = fourier_mix(images, partners, share_V)
    assert torch.equal(fourier_mix(images, partners, share_V), mixed)
    assert torch.equal(fourier_mix(images[4:5], partners[4:5], share_V[4:5])[0], mixed[4])
    monkeypatch.setattr(fourier, "find_kernels", lambda device_type: None)
    expected = fourier_mix(images, partners, share_V)
    # On some CPUs torch's transform leaves a flat image more than NO_PHASE in components that it does not have: the
    # partner's amplitude, a tenth of a grey level, comes out with another phase.
    flat = (images == images[:, :, :1, :1]).all(3).all(2)
    for group, most in ((flat, 0.1), (~flat, 1e-3)):
        if group.any():
            nearly_the_same(mixed[group], expected[group], most)


def test_fourier_mixes_have_the_same_bytes_on_every_cpu() -> None:
    """Pinned: what changes them moves everybody's results."""
    digest = hashlib.blake2b(digest_size=8)
    for size in ((32, 32), (48, 80), (224, 224)):
        images = make_images(6, *size)
        digest.update(fourier_mix(images, images.roll(1, 0), torch.linspace(0.1, 0.9, 6)).numpy())
    assert digest.hexdigest() == "efb2b876ec4b759b"


@pytest.mark.parametrize("shape", [(8, 3, 16, 16), (8, 3, 64, 16), (8, 4, 24, 32)], ids=str)
def test_a_partner_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    images, partners = make_images(8, 32, 32), torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"partners are \(.*\), images \(3, 32, 32\)"):
        fourier_mix(images, partners, 0.5)


@pytest.mark.parametrize("partner", [8, -1])
def test_a_partner_out_of_range_is_not_read(partner: int) -> None:
    images = make_images(8, 32, 32)
    with pytest.raises(IndexError, match="8 images"):
        fourier.mix_views(images, np.array([2]), images, np.array([partner]), np.array([0.5]))


@pytest.mark.parametrize("size", [(32, 32), (47, 64)], ids=str)
def test_warps_by_any_argument_are_the_same(size: tuple[int, int]) -> None:
    """Whole degrees all around, and arguments between those that a strength stands for."""
    images = make_images(1, *size)
    for name, argument_V in {
        "rotate": np.concatenate([np.arange(-360.0, 361), np.linspace(-31, 31, 500)]),
        "shear_x": np.linspace(-1.5, 1.5, 200),
        "shear_y": np.linspace(-1.5, 1.5, 200),
        "translate_x": np.linspace(-70, 70, 200),
        "translate_y": np.linspace(-70, 70, 200),
    }.items():
        rest = (np.full(len(argument_V), OPS.index(name)), argument_V, None, None)
        index_V = np.zeros(len(argument_V), np.int64)
        assert torch.equal(compiled.apply_pass(images, index_V, *rest), plain_pass(images, index_V, *rest)), name


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (64, 64)], ids=str)
def test_normalised_pixels_are_the_same(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    images, mean, std = make_images(7, *size), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    floats = normalise(images, mean, std)
    into = torch.empty_like(floats)
    assert normalise(images, mean, std, into) is into and torch.equal(into, floats)
    assert torch.equal(normalise(images.transpose(2, 3), mean, std), floats.transpose(2, 3))
    monkeypatch.setattr(apply_module, "find_kernels", lambda device_type: None)
    assert torch.equal(normalise(images, mean, std), floats)
    mean_C, std_C = (torch.tensor(values, dtype=torch.float64)[:, None, None] for values in (mean, std))
    expected = (images.double() / 255 - mean_C) / std_C
    assert torch.allclose(floats.double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("error, warns", [(ModuleNotFoundError("numba"), False), (SystemError("broken"), True)])
def test_missing_is_silent_and_broken_is_said(
    error: Exception, warns: bool, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def fail(name: str) -> ModuleType:
        raise error

    monkeypatch.setattr(available, "import_module", fail)
    assert available.find_kernels.__wrapped__("cpu") is None
    assert [str(w.message) for w in recwarn] == (
        ["plain torch runs instead of compiled code, which is slower: broken"] if warns else []
    )


def test_numba_loads_on_first_use_and_from_its_cache() -> None:
    """A second process finds what this one compiled, and loads the Fourier op when it is drawn."""
    code = """
import sys, time, numpy as np, torch
from triplee.augment import apply_draw, draw_views
assert "numba" not in sys.modules
from triplee.settings import make_recipe
images = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
for ops in ("basic", "fourier"):
    assert "triplee.augment.compiled_fourier" not in sys.modules
    draw = draw_views(make_recipe({"ops": ops}), np.random.default_rng(0), 200, np.arange(4))
    apply_draw(images, np.arange(200) % 4, draw)
from triplee.augment import compiled, compiled_fourier
kernels = (compiled.apply_views, compiled._normalise, compiled_fourier.mix_views)
print(sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels), len(kernels))
"""
    assert compiled.can_transform(16, 16)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    hits, kernels = result.stdout.split()
    assert hits == kernels != "0"


@pytest.mark.slow
def test_compiled_code_is_not_reused_once_what_it_builds_on_has_changed(tmp_path: Path) -> None:
    code = """
import numpy as np
from triplee.augment.compiled_fourier import mix_views, roots_of_one, room_for_spectra
views = np.random.default_rng(0).integers(0, 256, (2, 3, 16, 16), dtype=np.uint8)
each, roots = np.arange(2), roots_of_one(16)
mix_views(views, each, views.copy(), each[::-1], np.full(2, 0.4), 0.1, roots, roots, *room_for_spectra(16, 16), 0, 2)
print(views.sum(dtype=int), sum(mix_views.stats.cache_hits.values()))
"""
    shutil.copytree(Path(triplee.__file__).parent, tmp_path / "triplee", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    lanes = tmp_path / "triplee/augment/lanes.py"
    said = []
    for text in (lanes.read_text(), None, lanes.read_text().replace('"rint"', '"floor"')):
        if text:
            lanes.write_text(text)
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        said.append([int(number) for number in result.stdout.split()])
    (first, no_hit), (same, hit), (lower, no_hit_again) = said
    assert (no_hit, hit, no_hit_again) == (0, 1, 0) and same == first > lower
