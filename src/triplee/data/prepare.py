"""Prepare: decode every image of a folder once, squashed to image_size², and keep the result (data/store.py).

Comes in: an ImageFolder. Goes out: a Pool. A later load compares file times, reads again only the files whose times do
not vouch for them, and decodes what it has not stored. Labels and splits are the folder's, never the store's.
Axes: N images of the folder, R rows of pixels, T file times.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from filelock import FileLock, Timeout

from triplee.data.changes import all_file_times, count_unchanged
from triplee.data.decode import BadImage
from triplee.data.folder import ImageFolder
from triplee.data.pool import MappedImages, Pool
from triplee.data.reading import ReadImage, read_image, read_images
from triplee.data.store import (
    UNKNOWN,
    VERSION,
    Build,
    FileTimes,
    Manifest,
    Record,
    Rows,
    read_manifest,
    read_store,
    remove_pixels,
    rewrite_manifest,
)
from triplee.settings import InputError, cache_folder, counted, first_few

RESIDENT_SHARE = 0.5  # of the memory available: more images than fit in there stay on disk


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Prepared:
    """A folder's images as they are stored under `entry`."""

    entry: Path
    manifest: Manifest
    fingerprint: str  # of keys, splits and content of what can be read, wherever it lies
    num_decoded: int  # by this call

    @property
    def rows(self) -> np.ndarray:
        """The image of each row of pixels, ascending positions in the folder."""
        return self.manifest.good_R

    @property
    def bad(self) -> dict[int, str]:
        """The images that cannot be read, by position in the folder, and why."""
        return self.manifest.bad

    @property
    def num_reused(self) -> int:
        return len(self.manifest.names) - self.num_decoded


def load_images(
    folder: ImageFolder,
    name: str,
    image_size: int,
    skip_bad: bool = False,
    on_progress: Progress | None = None,
    needed_domain: str | None = None,
) -> Pool:
    """The pool of a folder, decoded as far as it is not stored; a bad image is an InputError unless it may be skipped.

    The images are in memory when they fit well, else on disk. `on_progress`: see `prepare`. Where one domain alone is
    needed, bad images of the others are skipped.
    """
    for attempt in (prepare, prepare, _rebuild):
        prepared = attempt(folder, image_size, on_progress)
        _refuse_bad(folder, prepared.bad, skip_bad, needed_domain)
        images_NCHW = _read_images(prepared, image_size)
        if images_NCHW is not None:  # else replaced by another process since, or damaged
            return Pool(
                name=name,
                images_NCHW=images_NCHW,
                labels_N=folder.labels_N[prepared.rows],
                domains_N=folder.domains_N[prepared.rows],
                split_N=folder.split_N[prepared.rows],
                classes=folder.classes,
                domains=folder.domains,
                fingerprint=prepared.fingerprint,
                skipped=len(prepared.bad),
                notes=(*folder.notes, *_describe_bad(folder, prepared.bad)),
            )
    raise _damaged(_entry(folder, image_size))


def prepare(folder: ImageFolder, image_size: int, on_progress: Progress | None = None) -> Prepared:
    """Decodes what is not stored yet. `on_progress(done, total)` is told of it every few images, if there is any."""
    # Read before locking: a store is whole from the moment it has its name, and the cache may be read-only.
    entry = _entry(folder, image_size)
    stored = read_store(entry, image_size)
    if stored and (current := _bring_up_to_date(folder, stored)):
        if not np.array_equal(current.times_NT, stored.times_NT):
            _keep_times(entry, current)
        return Prepared(entry, current, _fingerprint(folder, current, image_size), num_decoded=0)
    return _build(folder, image_size, on_progress)


def available_memory() -> int:
    """Bytes that this process may still take: what the machine has left, or the limit of its control group."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    with contextlib.suppress(OSError):
        group = Path("/sys/fs/cgroup") / Path("/proc/self/cgroup").read_text().rsplit("::/", 1)[-1].strip()
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):  # ValueError: "max", which is no limit
                limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
                available = min(available, limit - used)
    return available


def _entry(folder: ImageFolder, image_size: int) -> Path:
    place = f"{VERSION}\0{image_size}\0{folder.benchmark}\0".encode() + os.fsencode(folder.root.resolve())
    return cache_folder() / "folders" / hashlib.blake2b(place, digest_size=16).hexdigest()


def _fingerprint(folder: ImageFolder, manifest: Manifest, image_size: int) -> str:
    """Of the good images alone: whether a bad one is skipped, or has been removed since, the pool is the same."""
    content = hashlib.blake2b(f"triplee folder {VERSION}, {image_size} pixels".encode(), digest_size=16)
    good_R = manifest.good_R
    content.update(os.fsencode("\0".join(compress(folder.image_keys(), manifest.rows_N >= 0))))
    content.update(folder.split_N[good_R].tobytes() + manifest.digests_ND[good_R].tobytes())
    return content.hexdigest()


def _bring_up_to_date(folder: ImageFolder, stored: Manifest) -> Manifest | None:
    """The manifest with the file times of today, when it holds of the folder as it is; else None."""
    if stored.names != list(folder.names):
        return None
    unchanged, times_NT = count_unchanged(folder, stored)
    return replace(stored, times_NT=times_NT) if unchanged == len(folder) else None


def _keep_times(entry: Path, current: Manifest) -> None:
    """Saves the next load from reading the same files again, where that can be done without waiting."""
    with contextlib.suppress(OSError, Timeout), FileLock(entry / "lock", timeout=0):
        now = read_manifest(entry / "manifest.jsonl")
        if now and now.pixels == current.pixels:
            rewrite_manifest(entry, current)


def _build(folder: ImageFolder, image_size: int, on_progress: Progress | None, rebuild: bool = False) -> Prepared:
    """Stores the folder as it is now. `rebuild`: even if the store there says that it is."""
    entry = _entry(folder, image_size)
    try:
        entry.mkdir(parents=True, exist_ok=True)
        with FileLock(entry / "lock"):
            stored = read_store(entry, image_size)
            if stored and not rebuild and (current := _bring_up_to_date(folder, stored)):
                return Prepared(entry, current, _fingerprint(folder, current, image_size), num_decoded=0)
            num_decoded = _write_store(folder, image_size, entry, stored, on_progress)
            manifest = read_store(entry, image_size)
    except (OSError, NotImplementedError) as error:  # the latter where a file system has no locks
        raise InputError(
            f"cannot keep decoded images in {cache_folder()}: {getattr(error, 'strerror', None) or error}:"
            " make room there, or set TRIPLEE_CACHE to another folder"
        ) from None
    if manifest is None:
        raise _damaged(entry)
    return Prepared(entry, manifest, _fingerprint(folder, manifest, image_size), num_decoded)


def _rebuild(folder: ImageFolder, image_size: int, on_progress: Progress | None) -> Prepared:
    return _build(folder, image_size, on_progress, rebuild=True)


def _damaged(entry: Path) -> InputError:
    return InputError(f"decoded images in {entry} came back damaged: set TRIPLEE_CACHE to a folder on another disk")


def _write_store(
    folder: ImageFolder, image_size: int, entry: Path, stored: Manifest | None, on_progress: Progress | None
) -> int:
    """Builds the next store, of the one there and of one left unfinished as far as they go; how many it decoded."""
    row_bytes = 3 * image_size**2
    unfinished = read_manifest(entry / "unfinished.jsonl")
    kept = _count_kept(folder, unfinished, image_size) if unfinished else 0
    in_use = {stored.pixels.name} if stored else set()
    remove_pixels(entry, but=in_use | {unfinished.pixels.name} if unfinished and kept else in_use)
    num_decoded = 0
    with Build(entry, unfinished, kept, row_bytes) as build:
        images = _make_images(folder, image_size, kept, stored)
        with contextlib.closing(images):
            for record, pixels, is_decoded in images:
                build.add(record, pixels)
                num_decoded += is_decoded
                if on_progress and (build.num_images % 16 == 0 or build.num_images == len(folder)):
                    on_progress(build.num_images, len(folder))
        build.finish()
    return num_decoded


def _count_kept(folder: ImageFolder, unfinished: Manifest, image_size: int) -> int:
    """How many images of a build cut off are still right, in whole blocks."""
    unchanged, _ = count_unchanged(folder, unfinished)
    try:
        intact = Rows(unfinished, image_size).num_intact(unchanged)
    except OSError:
        return 0
    return max((images for images, _ in unfinished.block_ends if images <= intact), default=0)


class _Image(NamedTuple):
    record: Record
    pixels: bytes | memoryview | None
    is_decoded: bool


class _Known:
    """The images of the store that is there, by name and by content."""

    def __init__(self, stored: Manifest, image_size: int) -> None:
        self._stored, self._rows = stored, Rows(stored, image_size)
        self._place_of_name = {name: place for place, name in enumerate(stored.names)}
        self.place_of_digest = {digest.tobytes(): place for place, digest in enumerate(stored.digests_ND)}

    def find_vouched(self, names: Sequence[str], times_NT: np.ndarray) -> np.ndarray:
        """The place in the store of each file that its times vouch for, else −1."""
        place_N = np.array([self._place_of_name.get(name, -1) for name in names], np.int64)
        vouched_N = (self._stored.times_NT[place_N] == times_NT).all(1) & (times_NT[:, 0] >= 0)
        return np.where(vouched_N, place_N, -1)

    def copy(self, place: int, name: str, times: FileTimes) -> _Image | None:
        """The image at `place`, for a file with that content; None when it is damaged."""
        record = self._stored.record(place)._replace(name=name, times=times)
        pixels = None if record.bad else self._rows.read(place)
        return None if pixels is None and not record.bad else _Image(record, pixels, is_decoded=False)


def _make_images(
    folder: ImageFolder, image_size: int, start: int, stored: Manifest | None
) -> Generator[_Image, None, None]:
    """Record and pixels of each image from `start` on: from the store when it has that content, else decoded."""
    known = _Known(stored, image_size) if stored else None
    place_N, times_NT = np.full(len(folder), -1), np.empty((len(folder), len(UNKNOWN)), np.int64)
    if known:
        times_NT[start:] = all_file_times(folder, start, len(folder))
        place_N[start:] = known.find_vouched(folder.names[start:], times_NT[start:])
    unvouched = (start + np.flatnonzero(place_N[start:] < 0)).tolist()
    paths = [f"{folder.root}/{folder.names[index]}" for index in unvouched]
    files = read_images(paths, image_size, known.place_of_digest if known else ())
    with contextlib.closing(files):
        for index in range(start, len(folder)):
            name, image = folder.names[index], None
            if known and place_N[index] >= 0:
                image = known.copy(place_N[index], name, FileTimes(*times_NT[index].tolist()))
            else:
                file = next(files)
                if not file.is_known:
                    image = _decoded(name, file)
                elif known:
                    image = known.copy(known.place_of_digest[file.digest], name, file.times)
            yield image or _decoded(name, read_image(f"{folder.root}/{name}", image_size))  # the store is damaged there


def _decoded(name: str, file: ReadImage) -> _Image:
    return _Image(Record(name, file.times, file.digest, file.checksum, file.bad), file.pixels, is_decoded=True)


def _read_images(prepared: Prepared, image_size: int) -> torch.Tensor | MappedImages | None:
    """The stored images, in memory or, unchecked, on disk; None when they are damaged."""
    manifest, shape = prepared.manifest, (len(prepared.rows), 3, image_size, image_size)
    try:
        if np.prod(shape) > RESIDENT_SHARE * available_memory():
            return MappedImages(manifest.pixels, shape)
        pixels = Rows(manifest, image_size).read_all()
    except OSError:
        return None
    return None if pixels is None else torch.from_numpy(pixels).view(shape)


def _refuse_bad(folder: ImageFolder, bad: dict[int, str], skip_bad: bool, needed_domain: str | None) -> None:
    wanted = [index for index in bad if needed_domain in (None, folder.domains[folder.domains_N[index]])]
    if wanted and not skip_bad:
        first = wanted[0]
        raise InputError(
            f"{BadImage(folder.path(first), bad[first])} ({len(wanted)} bad in all):"
            " repair or remove what is bad, or leave it out with --skip-bad"
        )
    good = np.setdiff1d(np.arange(len(folder)), list(bad))
    for kind, names, index_N in (
        ("domain", folder.domains, folder.domains_N),
        ("class", folder.classes, folder.labels_N),
    ):
        for lost in np.setdiff1d(np.arange(len(names)), index_N[good]).tolist():
            if needed_domain is None or (kind, names[lost]) == ("domain", needed_domain):
                what = "only bad images: repair them" if lost in index_N else "no image: get some"
                raise InputError(f"{kind} {names[lost]!r} of {folder.root} has {what} or remove the {kind}")


def _describe_bad(folder: ImageFolder, bad: dict[int, str]) -> list[str]:
    names = [f"{folder.names[index]} ({reason})" for index, reason in bad.items()]
    return [f"left out {counted(len(bad), 'bad image')}: {first_few(names)}"] if bad else []
