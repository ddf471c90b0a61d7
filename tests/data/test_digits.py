"""The embedded digits benchmark: counts, disjoint handwriting, the same bytes every time, and its cache."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits as load_handwriting

from triplee.data import digits
from triplee.data.folder import TRAIN, VAL
from triplee.data.pool import Pool

COUNTS = {"handwritten": 80, "textured": 400, "printed": 400, "street": 400}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _use_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIPLEE_CACHE", str(cache))


@pytest.fixture(scope="module")
def pool(cache: Path) -> Pool:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIPLEE_CACHE", str(cache))
        return digits.load_digits()


@pytest.fixture
def builds(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the building by a stand-in that only counts: one entry per build."""
    calls: list[int] = []

    def build() -> Pool:
        calls.append(1)
        return pool

    monkeypatch.setattr(digits, "_build", build)
    return calls


def assert_same(a: Pool, b: Pool) -> None:
    assert torch.equal(a.images_NCHW, b.images_NCHW)
    for name in ("labels_N", "domains_N", "split_N"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert (a.name, a.classes, a.domains, a.fingerprint) == (b.name, b.classes, b.domains, b.fingerprint)


def ids_by_part(pool: Pool, domain: int, ids: np.ndarray) -> tuple[set[int], set[int]]:
    split = pool.split_N[pool.domains_N == domain]
    return set(ids[split == TRAIN].tolist()), set(ids[split == VAL].tolist())


def test_counts_per_domain_class_and_part(pool: Pool) -> None:
    assert pool.name == "digits"
    assert pool.classes == tuple("0123456789")
    assert pool.domains == tuple(COUNTS)
    assert pool.images_NCHW.shape == (10 * sum(COUNTS.values()), 3, 32, 32)
    assert pool.images_NCHW.dtype == torch.uint8
    assert [array.dtype for array in (pool.labels_N, pool.domains_N, pool.split_N)] == [np.int64, np.int64, np.int8]
    for domain, count in enumerate(COUNTS.values()):
        for split, share in ((TRAIN, count * 4 // 5), (VAL, count // 5)):
            labels = pool.labels_N[(pool.domains_N == domain) & (pool.split_N == split)]
            assert np.bincount(labels, minlength=10).tolist() == [share] * 10


def test_no_image_occurs_twice(pool: Pool) -> None:
    flat = pool.images_NCHW.flatten(1).numpy()
    assert len({image.tobytes() for image in flat}) == len(pool)


def test_handwriting_is_in_one_domain_and_one_part_only(pool: Pool) -> None:
    targets = load_handwriting(return_X_y=True)[1]
    ids = digits._handwriting_ids(targets)
    groups = [group for domain in (0, 1) for group in ids_by_part(pool, domain, ids[domain])]
    assert [len(group) for group in groups] == [640, 160, 640, 160]
    assert len(set.union(*groups)) == sum(len(group) for group in groups)
    for domain in (0, 1):
        np.testing.assert_array_equal(targets[ids[domain]], pool.labels_N[pool.domains_N == domain])


def test_handwritten_and_textured_come_from_different_forms() -> None:
    targets = load_handwriting(return_X_y=True)[1]
    handwritten, textured = digits._handwriting_ids(targets)
    text = "".join(str(target) for target in targets)
    eighth_form = text.index("12345678901234567890123456789095565", 900)  # every form has this row of digits first
    assert handwritten.max() < eighth_form <= textured.min()


def test_handwritten_images_show_the_pieces_they_are_said_to_show(pool: Pool) -> None:
    pixels, targets = load_handwriting(return_X_y=True)
    pieces = pixels.reshape(-1, 8, 8)[digits._handwriting_ids(targets)[0]]
    inner = pool.images_NCHW[pool.domains_N == 0][:, :1, 7:25, 7:25].float()
    small = torch.nn.functional.interpolate(inner, size=8, mode="area").numpy()
    similar = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(small, pieces, strict=True)]
    assert min(similar) > 0.85
    assert pool.images_NCHW[pool.domains_N == 0][:, :, :5].max() == 0


def test_textured_is_the_negative_of_the_photograph_under_the_ink(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = np.kron(np.random.default_rng(0).integers(0, 2, (43, 64, 1)), np.ones((10, 10, 3))) * (95, 85, 75)
    monkeypatch.setattr("sklearn.datasets.load_sample_images", lambda: {"images": [photo.astype(np.uint8)]})
    pieces = load_handwriting(return_X_y=True)[0][:50].reshape(-1, 8, 8)
    ink = digits._draw_handwriting(pieces, margin=1)
    images = digits._draw_textured(pieces)
    assert images[ink == 0].max() <= 95
    assert images[ink == 255].min() >= 160
    assert images[ink == 0].std() > 20, "no texture beside the ink"
    assert images[ink == 255].std() > 20, "no texture under the ink"


def test_fonts_have_ten_different_digits_and_serve_one_domain() -> None:
    assert not set(digits._PRINTED_FONTS) & set(digits._STREET_FONTS)
    for font in digits._load_fonts(digits._PRINTED_FONTS + digits._STREET_FONTS):
        drawn = {digits._draw_text(font, digit).tobytes() for digit in digits.CLASSES}
        assert len(drawn) == 10
        assert bytes(192 * 96) not in drawn


def test_two_builds_are_equal(pool: Pool) -> None:
    assert_same(digits._build(), pool)


def test_second_load_reads_the_cache(pool: Pool, builds: list[int]) -> None:
    assert_same(digits.load_digits(), pool)
    assert builds == []


def test_cached_load_imports_neither_scikit_learn_nor_matplotlib(pool: Pool) -> None:
    code = (
        "import sys; from triplee.data.digits import load_digits; print(load_digits().fingerprint); "
        "sys.exit(bool({'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, pool.fingerprint), done.stderr


def flip_a_pixel(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def swap_the_images(content: bytes) -> bytes:
    file = io.BytesIO()
    with np.load(io.BytesIO(content)) as stored:
        np.savez(file, images=stored["images"][::-1], fingerprint=stored["fingerprint"])
    return file.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "garbage": lambda content: b"not a zip",
    "truncated": lambda content: content[: len(content) // 2],
    "one bit": flip_a_pixel,
    "other images": swap_the_images,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_cache_is_built_again(damage: Callable[[bytes], bytes], pool: Pool, builds: list[int]) -> None:
    path = digits._cache_path()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert_same(digits.load_digits(), pool)
    assert builds == [1]
    assert_same(digits.load_digits(), pool)
    assert builds == [1], "the file was not repaired"
    assert list(path.parent.iterdir()) == [path]


def test_another_version_of_the_recipe_has_its_own_file(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digits._cache_path()
    monkeypatch.setattr(digits, "_VERSION", digits._VERSION + 1)
    assert digits._cache_path() != before


def test_folder_that_cannot_be_written_is_no_error(
    pool: Pool, builds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "file" / "folder"))
    assert_same(digits.load_digits(), pool)
    assert builds == [1]


def test_failed_write_leaves_nothing_behind(
    pool: Pool, builds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disk_is_full(*args: object, **arrays: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path))
    monkeypatch.setattr(np, "savez", disk_is_full)
    assert_same(digits.load_digits(), pool)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [20, 48])
def test_other_image_size_is_pillows_bilinear(size: int, pool: Pool, builds: list[int]) -> None:
    other = digits.load_digits(size)
    assert other.images_NCHW.shape == (len(pool), 3, size, size)
    assert other.fingerprint != pool.fingerprint
    np.testing.assert_array_equal(other.labels_N, pool.labels_N)
    for index in (0, 5000, len(pool) - 1):
        image = Image.fromarray(pool.images_NCHW[index].permute(1, 2, 0).numpy())
        expected = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
        np.testing.assert_array_equal(other.images_NCHW[index].permute(1, 2, 0).numpy(), expected)
