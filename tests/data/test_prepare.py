"""The store of decoded images: reuse, changes, damage and bad images. Decoding itself is in test_decode.py."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noise_images import SIZE, assert_images, load_folder, prepare_folder, save, save_many
from PIL import Image

from triplee.data import changes
from triplee.data import prepare as prepare_module
from triplee.data.folder import TRAIN, UNSPLIT, VAL, list_images
from triplee.data.load import load_data
from triplee.data.pool import MappedImages
from triplee.data.prepare import available_memory, load_images, prepare
from triplee.settings import InputError

pytestmark = pytest.mark.usefixtures("cache")

ALL = [0, 1, 2, 3, 4, 5, 6, 7]


def refusal(root: Path, skip_bad: bool = False) -> str:
    with pytest.raises(InputError) as refused:
        load_folder(root, skip_bad=skip_bad)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """The arguments of every call of a library's function from now on."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counting)
    return calls


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every call of Pillow's Image.open, which no decoding can do without."""
    return count_calls(monkeypatch, Image, "open")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every image file read."""
    return count_calls(monkeypatch, Path, "read_bytes")


def test_a_folder_becomes_a_pool(root: Path) -> None:
    calls: list[tuple[int, int]] = []
    pool = load_images(list_images(root), "mine", SIZE, on_progress=lambda *call: calls.append(call))
    assert_images(pool, ALL)
    assert isinstance(pool.images_NCHW, torch.Tensor)
    assert pool.images_NCHW.dtype == torch.uint8 and pool.images_NCHW.is_contiguous()
    assert (pool.name, pool.domains, pool.classes, pool.skipped) == ("mine", ("a", "b"), ("x", "y"), 0)
    assert pool.domains_N.tolist() == [0, 0, 0, 0, 1, 1, 1, 1] and pool.domains_N.dtype == np.int64
    assert pool.labels_N.tolist() == [0, 0, 1, 1, 0, 0, 1, 1] and pool.labels_N.dtype == np.int64
    assert pool.split_N.tolist() == [UNSPLIT] * 8 and pool.split_N.dtype == np.int8
    assert pool.notes == ()
    assert calls == [(8, 8)]


def test_progress_is_told_every_few_images_and_not_of_stored_ones(tmp_path: Path) -> None:
    folder = list_images(save_many(tmp_path / "data", 40))
    calls: list[tuple[int, int]] = []
    prepare(folder, SIZE, lambda *call: calls.append(call))
    assert calls == [(16, 40), (32, 40), (40, 40)]
    prepare(folder, SIZE, lambda *call: calls.append(call))
    assert len(calls) == 3


def test_parts_and_notes_reach_the_pool(tmp_path: Path) -> None:
    for seed, name in enumerate(["d/train/x/0.png", "d/val/x/0.png", "e/x/0.png", "e/astray.png"]):
        save(tmp_path / "data" / name, seed)
    pool = load_folder(tmp_path / "data")
    assert_images(pool, [0, 1, 2])
    assert pool.split_N.tolist() == [TRAIN, VAL, UNSPLIT]
    assert len(pool.notes) == 1 and "e/astray.png" in pool.notes[0]


def test_many_images_keep_their_order(tmp_path: Path) -> None:
    assert_images(load_folder(save_many(tmp_path / "data", 600)), list(range(600)))


def test_names_that_are_not_text(tmp_path: Path) -> None:
    for seed, name in enumerate([b"\xff", b'"\n\\', "ä\u2028".encode()]):
        save(tmp_path / "data/a/x" / os.fsdecode(name + b".png"), seed)
    assert_images(load_folder(tmp_path / "data"), [1, 2, 0])
    assert prepare_folder(tmp_path / "data").num_decoded == 0


def test_load_data_reads_a_folder(root: Path) -> None:
    assert_images(load_data(str(root), SIZE), ALL)
    (root / "a/x/0.png").write_text("broken")
    assert load_data(str(root), SIZE, skip_bad=True).skipped == 1


# --- what a second load does


def test_a_second_load_decodes_nothing(root: Path, opened: list[Any]) -> None:
    first = load_folder(root)
    assert len(opened) == 8
    second = load_folder(root)
    assert len(opened) == 8
    assert_images(second, ALL)
    assert second.fingerprint == first.fingerprint


def test_a_second_load_reads_no_file_whose_times_are_as_before(settled_root: Path, read: list[Any]) -> None:
    prepared = prepare_folder(settled_root)
    assert (len(read), prepared.num_decoded, prepared.num_reused) == (8, 8, 0)
    prepared = prepare_folder(settled_root)
    assert (len(read), prepared.num_decoded, prepared.num_reused) == (8, 0, 8)


def test_a_young_file_is_read_again_until_its_times_can_be_believed(root: Path, read: list[Any]) -> None:
    prepare_folder(root)
    prepare_folder(root)
    assert len(read) == 16
    time.sleep(2.1)
    assert prepare_folder(root).num_decoded == 0
    assert len(read) == 24
    assert prepare_folder(root).num_decoded == 0
    assert len(read) == 24


def test_a_touched_image_is_read_once_and_not_decoded(settled_root: Path, read: list[Any]) -> None:
    before = prepare_folder(settled_root)
    os.utime(settled_root / "a/x/1.png", ns=(0, 10**18))
    time.sleep(0.15)
    read.clear()
    touched = prepare_folder(settled_root)
    assert read == [(settled_root / "a/x/1.png",)]
    assert (touched.num_decoded, touched.fingerprint) == (0, before.fingerprint)
    assert touched.manifest.pixels == before.manifest.pixels
    prepare_folder(settled_root)
    assert len(read) == 1


def test_over_a_slow_network_file_times_are_asked_for_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = save_many(tmp_path / "data", 1200)
    before = prepare_folder(root)
    asking, local_stat = set(), os.stat

    def slow_stat(path: Any, **kwargs: Any) -> os.stat_result:
        if isinstance(path, str):  # not the Path of a file that is about to be read
            asking.add(threading.get_ident())
        time.sleep(0.0002)
        return local_stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", slow_stat)
    monkeypatch.setattr(changes, "SETTLED_NS", 0)
    after = prepare_folder(root)
    assert len(asking) > 1
    assert after.manifest.times_NT.tolist() == [
        [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        for status in map(local_stat, (root / name for name in after.manifest.names))
    ]
    assert (after.num_decoded, after.fingerprint) == (0, before.fingerprint)


@pytest.mark.parametrize("settled", [False, True])
def test_a_change_is_noticed_though_size_and_modification_time_are_the_same(
    tmp_path: Path, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "data/a/x/0.bmp"
    save(source, 1)
    if settled:
        monkeypatch.setattr(changes, "SETTLED_NS", 10**8)
        time.sleep(0.15)
    before, first = source.stat(), load_folder(tmp_path / "data")
    save(source, 2)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = load_folder(tmp_path / "data")
    assert_images(second, [2])
    assert second.fingerprint != first.fingerprint


def test_only_new_content_is_decoded(root: Path) -> None:
    prints = [prepare_folder(root).fingerprint]

    def check(seeds: list[int], num_decoded: int) -> None:
        prepared = prepare_folder(root)
        assert (prepared.num_decoded, prepared.num_reused) == (num_decoded, len(seeds) - num_decoded)
        prints.append(prepared.fingerprint)
        assert_images(load_folder(root), seeds)

    save(root / "a/x/2.png", 8)
    check([0, 1, 8, 2, 3, 4, 5, 6, 7], 1)
    save(root / "a/x/0.png", 9)
    check([9, 1, 8, 2, 3, 4, 5, 6, 7], 1)
    (root / "a/x/0.png").unlink()
    check([1, 8, 2, 3, 4, 5, 6, 7], 0)
    (root / "a/x/2.png").rename(root / "b/y/2.png")
    check([1, 2, 3, 4, 5, 6, 7, 8], 0)
    (root / "b").rename(root / "c")
    check([1, 2, 3, 4, 5, 6, 7, 8], 0)
    assert load_folder(root).domains == ("a", "c")
    assert len(set(prints)) == 6


def test_the_same_data_elsewhere_has_the_same_fingerprint(root: Path, tmp_path: Path) -> None:
    first = load_folder(root)
    shutil.copytree(root, tmp_path / "copy")
    second = load_folder(tmp_path / "copy")
    assert_images(second, ALL)
    assert second.fingerprint == first.fingerprint
    save(tmp_path / "copy/a/x/0.png", 9)
    assert load_folder(tmp_path / "copy").fingerprint != first.fingerprint
    assert load_folder(root).fingerprint == first.fingerprint


def test_splits_and_labels_are_the_folders_not_the_stores(root: Path) -> None:
    folder = list_images(root)
    first = load_images(folder, "name", SIZE)
    for other in (
        replace(folder, split_N=np.full(8, TRAIN, np.int8)),
        replace(folder, labels_N=1 - folder.labels_N),
    ):
        assert prepare(other, SIZE).num_decoded == 0
        second = load_images(other, "name", SIZE)
        assert np.array_equal(second.split_N, other.split_N) and np.array_equal(second.labels_N, other.labels_N)
        assert second.fingerprint != first.fingerprint


def test_another_size_is_another_store(root: Path) -> None:
    small, large = load_folder(root), load_folder(root, 2 * SIZE)
    assert small.fingerprint != large.fingerprint
    assert large.images_NCHW.shape == (8, 3, 2 * SIZE, 2 * SIZE)
    assert prepare_folder(root).num_decoded == prepare_folder(root, 2 * SIZE).num_decoded == 0


# --- damage


def flip_last_byte(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def only(entry: Path, pattern: str) -> Path:
    (found,) = entry.glob(pattern)
    return found


@pytest.mark.parametrize(
    ("damage", "num_decoded"),
    [
        (lambda entry: flip_last_byte(only(entry, "pixels-*")), 1),
        (lambda entry: os.truncate(only(entry, "pixels-*"), 100), 8),
        (lambda entry: only(entry, "pixels-*").unlink(), 8),
        (lambda entry: (entry / "manifest.jsonl").unlink(), 8),
        (lambda entry: (entry / "manifest.jsonl").write_text(""), 8),
        (lambda entry: (entry / "manifest.jsonl").write_text("[1]\n"), 8),
        (lambda entry: (entry / "manifest.jsonl").write_bytes(b"\xff"), 8),
        (lambda entry: os.truncate(entry / "manifest.jsonl", (entry / "manifest.jsonl").stat().st_size - 1), 8),
        (
            lambda entry: (entry / "manifest.jsonl").write_text(
                (entry / "manifest.jsonl").read_text().replace("[[0,", "[[1,")
            ),
            8,
        ),
    ],
)
def test_a_damaged_store_is_built_again(
    root: Path, damage: Callable[[Path], None], num_decoded: int, opened: list[Any]
) -> None:
    (root / "a/x/0.png").write_text("broken")
    prepared, whole = prepare_folder(root), load_folder(root, skip_bad=True)
    files = sorted((file.name, file.read_bytes()) for file in prepared.entry.iterdir())
    damage(prepared.entry)
    assert sorted((file.name, file.read_bytes()) for file in prepared.entry.iterdir()) != files
    opened.clear()
    again = load_folder(root, skip_bad=True)
    assert len(opened) == num_decoded
    assert_images(again, ALL[1:])
    assert again.labels_N.tolist() == whole.labels_N.tolist() and again.fingerprint == whole.fingerprint
    assert sorted(file.name.split("-")[0] for file in prepared.entry.iterdir()) == ["lock", "manifest.jsonl", "pixels"]


def test_damage_is_not_carried_over_into_the_next_store(root: Path) -> None:
    prepared = prepare_folder(root)
    flip_last_byte(prepared.manifest.pixels)
    save(root / "a/x/2.png", 8)
    assert prepare_folder(root).num_decoded == 2
    assert_images(load_folder(root), [0, 1, 8, 2, 3, 4, 5, 6, 7])


# --- memory


def test_images_stay_on_disk_where_memory_is_short(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = load_folder(root)
    monkeypatch.setattr(prepare_module, "RESIDENT_SHARE", 0.0)
    mapped = load_folder(root)
    assert isinstance(resident.images_NCHW, torch.Tensor) and isinstance(mapped.images_NCHW, MappedImages)
    assert_images(mapped, ALL)
    assert mapped.fingerprint == resident.fingerprint


def test_available_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


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
    pool = load_folder(root, skip_bad=True)
    assert_images(pool, [0, 1, 2, 5, 6, 7])
    assert pool.skipped == 2
    assert pool.labels_N.tolist() == [0, 0, 1, 0, 1, 1]
    assert pool.domains_N.tolist() == [0, 0, 0, 1, 1, 1]
    (note,) = pool.notes
    assert note.startswith("left out 2 bad images: a/y/1.png (not an image") and "b/x/0.png (No such file" in note


def test_a_skipped_image_leaves_no_trace_in_the_fingerprint(root: Path) -> None:
    whole = load_folder(root).fingerprint
    (root / "a/y/9.png").write_text("broken")
    assert load_folder(root, skip_bad=True).fingerprint == whole
    (root / "a/y/1.png").write_text("broken")
    skipped = load_folder(root, skip_bad=True).fingerprint
    for name in ("a/y/1.png", "a/y/9.png"):
        (root / name).unlink()
    assert load_folder(root).fingerprint == skipped != whole


def test_of_many_bad_images_a_few_are_named(tmp_path: Path) -> None:
    save_many(tmp_path / "data", 10)
    for index in range(1, 7):
        (tmp_path / f"data/a/x/{index:04}.bmp").write_text("broken")
    (note,) = load_folder(tmp_path / "data", skip_bad=True).notes
    assert note.startswith("left out 6 bad images: a/x/0001.bmp") and note.endswith(", …")
    assert "0003.bmp" in note and "0004.bmp" not in note


def test_bad_images_are_remembered_and_a_repaired_one_is_noticed(root: Path, opened: list[Any]) -> None:
    (root / "a/y/1.png").write_text("broken")
    (root / "b/x/0.png").unlink()
    (root / "b/x/0.png").symlink_to(root.parent / "later.png")
    refusal(root)
    decoded = len(opened)
    assert_images(load_folder(root, skip_bad=True), [0, 1, 2, 5, 6, 7])
    assert "2 bad in all" in refusal(root)
    assert len(opened) == decoded
    save(root.parent / "later.png", 4)
    assert_images(load_folder(root, skip_bad=True), [0, 1, 2, 4, 5, 6, 7])
    save(root / "a/y/1.png", 3)
    assert_images(load_folder(root), ALL)


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
