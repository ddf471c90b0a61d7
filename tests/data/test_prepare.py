"""The store of decoded images: reuse, changes, damage and bad images. Decoding itself is in test_decode.py."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triplee.data.load import load_data
from triplee.data.pool import TRAIN, UNSPLIT, VAL, Pool
from triplee.data.prepare import load_folder
from triplee.settings import InputError

SIZE = 8


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains, two classes, two images each: a/x/0.png … b/y/1.png, all different."""
    for seed, name in enumerate(f"{d}/{c}/{i}.png" for d in "ab" for c in "xy" for i in range(2)):
        save(tmp_path / "data" / name, seed)
    return tmp_path / "data"


def save(target: Path, seed: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed)).save(target)


def assert_images(pool: Pool, seeds: list[int]) -> None:
    assert np.array_equal(pool.images_NCHW.numpy().transpose(0, 2, 3, 1), np.stack([noise(s) for s in seeds]))


def refusal(root: Path, skip_bad: bool = False) -> str:
    with pytest.raises(InputError) as refused:
        load_folder(root, SIZE, skip_bad)
    assert "\n" not in str(refused.value)
    return str(refused.value)


class Decoded:
    """Counts the images that load_folder says it decodes."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def test_a_folder_becomes_a_pool(root: Path) -> None:
    progress = Decoded()
    pool = load_folder(root, SIZE, on_progress=progress)
    assert_images(pool, [0, 1, 2, 3, 4, 5, 6, 7])
    assert str(pool.images_NCHW.dtype) == "torch.uint8" and pool.images_NCHW.is_contiguous()
    assert (pool.name, pool.domains, pool.classes, pool.skipped) == (str(root), ("a", "b"), ("x", "y"), 0)
    assert pool.domains_N.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and pool.domains_N.dtype == np.int64
    assert pool.labels_N.tolist() == [0, 0, 1, 1, 0, 0, 1, 1] and pool.labels_N.dtype == np.int64
    assert pool.split_N.tolist() == [UNSPLIT] * 8 and pool.split_N.dtype == np.int8
    assert progress.calls == [(done, 8) for done in range(1, 9)]


def test_parts_reach_the_pool(tmp_path: Path) -> None:
    for seed, name in enumerate(["d/train/x/0.png", "d/val/x/0.png", "e/x/0.png"]):
        save(tmp_path / "data" / name, seed)
    pool = load_folder(tmp_path / "data", SIZE)
    assert_images(pool, [0, 1, 2])
    assert pool.split_N.tolist() == [TRAIN, VAL, UNSPLIT]


def test_many_images_keep_their_order(tmp_path: Path) -> None:
    for seed in range(150):
        save(tmp_path / f"data/a/x/{seed:03}.png", seed)
    assert_images(load_folder(tmp_path / "data", SIZE), list(range(150)))


def test_load_data_reads_a_folder(root: Path) -> None:
    progress = Decoded()
    assert_images(load_data(str(root), SIZE, on_progress=progress), [0, 1, 2, 3, 4, 5, 6, 7])
    assert len(progress.calls) == 8
    (root / "a/x/0.png").write_text("broken")
    assert load_data(str(root), SIZE, skip_bad=True).skipped == 1


# --- the store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every call of Pillow's Image.open, which no decoding can do without."""
    calls: list[Any] = []
    pillow_open = Image.open

    def counting_open(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return pillow_open(*args, **kwargs)

    monkeypatch.setattr(Image, "open", counting_open)
    return calls


def test_a_second_load_decodes_nothing(root: Path, opened: list[Any]) -> None:
    first = load_folder(root, SIZE)
    assert len(opened) == 8
    second = load_folder(root, SIZE)
    assert len(opened) == 8
    assert_images(second, [0, 1, 2, 3, 4, 5, 6, 7])
    assert second.fingerprint == first.fingerprint


def test_the_same_data_elsewhere_is_the_same_data(root: Path, tmp_path: Path, opened: list[Any]) -> None:
    first = load_folder(root, SIZE)
    shutil.copytree(root, tmp_path / "copy")
    second = load_folder(tmp_path / "copy", SIZE)
    assert len(opened) == 8
    assert (second.fingerprint, second.name) == (first.fingerprint, str(tmp_path / "copy"))


def test_another_size_is_another_pool(root: Path) -> None:
    small, large = load_folder(root, SIZE), load_folder(root, 2 * SIZE)
    assert small.fingerprint != large.fingerprint
    assert large.images_NCHW.shape == (8, 3, 2 * SIZE, 2 * SIZE)
    assert_images(load_folder(root, SIZE), [0, 1, 2, 3, 4, 5, 6, 7])


def test_a_changed_image_is_noticed_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    source = tmp_path / "data/a/x/0.bmp"
    save(source, 1)
    before, first = source.stat(), load_folder(tmp_path / "data", SIZE)
    save(source, 2)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = load_folder(tmp_path / "data", SIZE)
    assert_images(second, [2])
    assert second.fingerprint != first.fingerprint


def test_added_removed_and_renamed_images_are_noticed(root: Path) -> None:
    prints = [load_folder(root, SIZE).fingerprint]
    save(root / "a/x/2.png", 8)
    assert_images(pool := load_folder(root, SIZE), [0, 1, 8, 2, 3, 4, 5, 6, 7])
    prints.append(pool.fingerprint)
    (root / "a/x/0.png").unlink()
    assert_images(pool := load_folder(root, SIZE), [1, 8, 2, 3, 4, 5, 6, 7])
    prints.append(pool.fingerprint)
    (root / "a/x/2.png").rename(root / "b/y/2.png")
    assert_images(pool := load_folder(root, SIZE), [1, 2, 3, 4, 5, 6, 7, 8])
    prints.append(pool.fingerprint)
    (root / "b").rename(root / "c")
    pool = load_folder(root, SIZE)
    assert pool.domains == ("a", "c")
    prints.append(pool.fingerprint)
    assert len(set(prints)) == 5


def flip_last_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: flip_last_byte(entry / "pixels.u8"),
        lambda entry: os.truncate(entry / "pixels.u8", 100),
        lambda entry: (entry / "pixels.u8").unlink(),
        lambda entry: (entry / "manifest.json").unlink(),
        lambda entry: (entry / "manifest.json").write_text(""),
        lambda entry: (entry / "manifest.json").write_text("[1]"),
        lambda entry: (entry / "manifest.json").write_bytes(b"\xff"),
        lambda entry: (entry / "manifest.json").write_text(
            (entry / "manifest.json").read_text().replace("[[0,", "[[1,")
        ),
    ],
)
def test_a_damaged_store_is_built_again(root: Path, cache: Path, damage: Callable[[Path], None]) -> None:
    (root / "a/x/0.png").write_text("broken")
    whole = load_folder(root, SIZE, skip_bad=True)
    (entry,) = [folder for folder in cache.rglob("*") if folder.is_dir() and whole.fingerprint == folder.name]
    files = {file.name: file.read_bytes() for file in entry.iterdir()}
    damage(entry)
    assert {file.name: file.read_bytes() for file in entry.iterdir()} != files
    progress = Decoded()
    again = load_folder(root, SIZE, skip_bad=True, on_progress=progress)
    assert len(progress.calls) == 8
    assert_images(again, [1, 2, 3, 4, 5, 6, 7])
    assert again.labels_N.tolist() == whole.labels_N.tolist()
    assert {file.name: file.read_bytes() for file in entry.iterdir()} == files


# --- bad images


def test_a_bad_image_is_named_with_the_reason_and_the_count(root: Path) -> None:
    (root / "a/y/1.png").write_text("broken")
    (root / "b/x/0.png").write_bytes(b"")
    message = refusal(root)
    assert f"{root / 'a/y/1.png'}: not an image" in message
    assert "2 bad in all" in message and "--skip-bad" in message


def test_bad_images_are_left_out_on_request(root: Path) -> None:
    (root / "a/y/1.png").write_text("broken")
    (root / "b/x/0.png").unlink()
    (root / "b/x/0.png").symlink_to("gone.png")
    pool = load_folder(root, SIZE, skip_bad=True)
    assert_images(pool, [0, 1, 2, 5, 6, 7])
    assert pool.skipped == 2
    assert pool.labels_N.tolist() == [0, 0, 1, 0, 1, 1]
    assert pool.domains_N.tolist() == [0, 0, 0, 1, 1, 1]


def test_bad_images_are_remembered_and_a_repaired_one_is_noticed(root: Path, opened: list[Any]) -> None:
    (root / "a/y/1.png").write_text("broken")
    (root / "b/x/0.png").unlink()
    (root / "b/x/0.png").symlink_to(root.parent / "later.png")
    refusal(root)
    decoded = len(opened)
    assert_images(load_folder(root, SIZE, skip_bad=True), [0, 1, 2, 5, 6, 7])
    assert "2 bad in all" in refusal(root)
    assert len(opened) == decoded
    save(root.parent / "later.png", 4)
    assert_images(load_folder(root, SIZE, skip_bad=True), [0, 1, 2, 4, 5, 6, 7])
    save(root / "a/y/1.png", 3)
    assert_images(load_folder(root, SIZE), [0, 1, 2, 3, 4, 5, 6, 7])


def test_a_class_or_domain_without_a_good_image_is_refused(root: Path) -> None:
    for image in root.glob("*/x/*.png"):
        image.write_text("broken")
    message = refusal(root, skip_bad=True)
    assert "class 'x'" in message and "only bad images" in message
    for image in root.glob("b/*/*.png"):
        image.write_text("broken")
    assert "domain 'b'" in refusal(root, skip_bad=True)
    assert "6 bad in all" in refusal(root)


def test_nothing_but_bad_images(root: Path) -> None:
    for image in root.glob("*/*/*.png"):
        image.write_text("broken")
    assert "only bad images" in refusal(root, skip_bad=True)
