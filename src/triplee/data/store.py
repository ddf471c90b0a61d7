"""The store of one folder's decoded images, on disk: a manifest, and a file of pixels that never changes.

`manifest.jsonl`: a line that names the file of pixels, a line per block of images, a line that ends it; each line
begins with its CRC. `pixels-*.u8`: the good images one after another, in the manifest's order. A build writes
`unfinished.jsonl`, each line after its pixels, so that a build cut off goes on from there; renaming it makes the store.
Axes: N images, R rows of pixels.
"""

import contextlib
import json
import os
import secrets
import weakref
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from triplee.data.threads import in_threads

VERSION = 2  # raise it with any change to what is decoded or how it is stored: other versions are not read
BLOCK = 256  # images per line: a build cut off loses fewer than that

_DIGEST_BYTES = 16
_READ_BYTES = 8 << 20


class FileTimes(NamedTuple):
    """What vouches for a file's content without reading it: as long as these are equal, it is taken to be the same."""

    size: int
    modified_ns: int
    changed_ns: int


UNKNOWN = FileTimes(-1, -1, -1)  # equal to no file's


class Record(NamedTuple):
    """What is stored of one image. `crc`: of its pixels; `bad`: why it has none."""

    name: str
    times: FileTimes
    digest: bytes
    crc: int
    bad: str | None


@dataclass(frozen=True)
class Manifest:
    """The records of a store, column by column."""

    pixels: Path
    names: list[str]
    times_NT: np.ndarray  # int64, T = the fields of FileTimes
    digests_ND: np.ndarray  # uint8
    crc_N: np.ndarray  # uint32
    bad: dict[int, str]
    block_ends: list[tuple[int, int]]  # images and bytes of the manifest up to here
    whole: bool

    @cached_property
    def good_R(self) -> np.ndarray:
        """The image of each row of pixels."""
        good_N = np.ones(len(self.names), bool)
        good_N[list(self.bad)] = False
        return np.flatnonzero(good_N)

    @cached_property
    def rows_N(self) -> np.ndarray:
        """The row of each image, −1 of a bad one."""
        rows_N = np.full(len(self.names), -1)
        rows_N[self.good_R] = np.arange(len(self.good_R))
        return rows_N

    def record(self, index: int) -> Record:
        times, digest = FileTimes(*self.times_NT[index].tolist()), self.digests_ND[index].tobytes()
        return Record(self.names[index], times, digest, int(self.crc_N[index]), self.bad.get(index))


def read_store(entry: Path, image_size: int) -> Manifest | None:
    """The manifest of a finished store; None when there is none, or it is damaged, or pixels are missing."""
    manifest = read_manifest(entry / "manifest.jsonl")
    if manifest is None or not manifest.whole:
        return None
    try:
        size = manifest.pixels.stat().st_size
    except OSError:
        return None
    return manifest if size == len(manifest.good_R) * 3 * image_size**2 else None


def read_manifest(file: Path) -> Manifest | None:
    """The lines of a manifest up to the first that is damaged; None when that is the one that names the pixels."""
    names: list[str] = []
    times, digests, crcs, ends = [], [], [], []
    bad: dict[int, str] = {}
    pixels, whole, offset = None, False, 0
    try:
        with file.open("rb") as lines:
            for line in lines:
                if line[:8] != b"%08x" % zlib.crc32(line[9:]) or not line.endswith(b"\n") or whole:
                    break
                offset += len(line)
                value = json.loads(line[9:])
                if pixels is None:
                    pixels = file.with_name(value["pixels"])
                elif "end" in value:
                    whole = True
                else:
                    bad |= {len(names) + place: reason for place, reason in value["bad"]}
                    names += value["names"]
                    times.append(np.array(value["times"], np.int64))
                    digests.append(np.frombuffer(bytes.fromhex(value["digests"]), np.uint8))
                    crcs.append(np.array(value["crcs"], np.uint32))
                    ends.append((len(names), offset))
    except OSError:
        return None
    if pixels is None:
        return None
    times_NT = np.concatenate([np.empty(0, np.int64), *times]).reshape(-1, len(UNKNOWN))
    digests_ND = np.concatenate([np.empty(0, np.uint8), *digests]).reshape(-1, _DIGEST_BYTES)
    crc_N = np.concatenate([np.empty(0, np.uint32), *crcs])
    return Manifest(pixels, names, times_NT, digests_ND, crc_N, bad, ends, whole)


def rewrite_manifest(entry: Path, manifest: Manifest) -> None:
    """Puts `manifest` in the place of the one of the same pixels."""
    fresh = entry / "manifest.new"
    with fresh.open("wb") as lines:
        lines.write(_line({"pixels": manifest.pixels.name}))
        for start in range(0, len(manifest.names), BLOCK):
            stop = min(start + BLOCK, len(manifest.names))
            lines.write(_block_line([manifest.record(index) for index in range(start, stop)]))
        lines.write(_line({"end": len(manifest.names)}))
        lines.flush()
        os.fsync(lines.fileno())
    fresh.replace(entry / "manifest.jsonl")


class Rows:
    """The pixels of a manifest, read row by row and checked."""

    def __init__(self, manifest: Manifest, image_size: int) -> None:
        self._manifest, self._row_bytes = manifest, 3 * image_size**2
        self._descriptor = os.open(manifest.pixels, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, index: int) -> bytes | None:
        """The pixels of a good image; None when they are damaged."""
        row = int(self._manifest.rows_N[index])
        pixels = os.pread(self._descriptor, self._row_bytes, row * self._row_bytes)
        return pixels if zlib.crc32(pixels) == self._manifest.crc_N[index] else None

    def read_all(self) -> np.ndarray | None:
        """All rows (R, bytes); None when any is damaged."""
        crc_R = self._manifest.crc_N[self._manifest.good_R]
        pixels = np.empty((len(crc_R), self._row_bytes), np.uint8)
        step = max(1, _READ_BYTES // self._row_bytes)

        def read(chunk: int) -> bool:
            part, start = pixels[chunk * step : (chunk + 1) * step], chunk * step
            num_bytes = os.preadv(self._descriptor, [part], start * self._row_bytes)  # pyright: ignore[reportArgumentType]
            return num_bytes == part.size and all(map(_crc_is, part, crc_R[start:].tolist()))

        intact = all(in_threads(read, -(-len(pixels) // step), per_task=1))
        return pixels if intact else None

    def num_intact(self, num_images: int) -> int:
        """How many of the first `num_images` images lie there undamaged before the first that does not."""
        good = self._manifest.good_R[self._manifest.good_R < num_images].tolist()
        intact = in_threads(lambda place: self.read(good[place]) is not None, len(good))
        with contextlib.closing(intact):
            return next((good[place] for place, is_intact in enumerate(intact) if not is_intact), num_images)


class Build:
    """A store in the making: records and pixels are added in order, and `finish` puts it in place.

    `kept` goes on after as many images of a manifest left unfinished, a whole number of its blocks.
    """

    def __init__(self, entry: Path, unfinished: Manifest | None, kept: int, row_bytes: int) -> None:
        self._entry, self._journal_path = entry, entry / "unfinished.jsonl"
        self._block: list[Record] = []
        self.num_images = kept
        with contextlib.ExitStack() as files:
            if unfinished and kept:
                self._pixels_name = unfinished.pixels.name
                rows = int((unfinished.good_R < kept).sum())
                self._pixels = files.enter_context(unfinished.pixels.open("r+b"))
                self._journal = files.enter_context(self._journal_path.open("r+b"))
                _cut(self._pixels, rows * row_bytes)
                _cut(self._journal, next(offset for images, offset in unfinished.block_ends if images == kept))
            else:
                self._pixels_name = f"pixels-{secrets.token_hex(4)}.u8"
                self._pixels = files.enter_context((entry / self._pixels_name).open("xb"))
                self._journal = files.enter_context(self._journal_path.open("wb"))
                self._journal.write(_line({"pixels": self._pixels_name}))
            self._files = files.pop_all()

    def __enter__(self) -> "Build":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, record: Record, pixels: bytes | memoryview | None) -> None:
        if pixels is not None:
            self._pixels.write(pixels)
        self._block.append(record)
        self.num_images += 1
        if len(self._block) == BLOCK:
            self._end_block()

    def finish(self) -> None:
        self._end_block()
        self._journal.write(_line({"end": self.num_images}))
        self._journal.flush()
        for file in (self._pixels, self._journal):  # else a power cut may keep the names and lose what they name
            os.fsync(file.fileno())
        self._journal_path.replace(self._entry / "manifest.jsonl")
        remove_pixels(self._entry, but={self._pixels_name})

    def _end_block(self) -> None:
        if self._block:
            self._pixels.flush()
            self._journal.write(_block_line(self._block))
            self._journal.flush()
            self._block = []


def remove_pixels(entry: Path, but: set[str]) -> None:
    """Removes the pixels of other generations; a process that still reads them has them open."""
    for file in entry.glob("pixels-*.u8"):
        if file.name not in but:
            with contextlib.suppress(OSError):
                file.unlink()


def _cut(file: Any, num_bytes: int) -> None:
    file.truncate(num_bytes)
    file.seek(num_bytes)


def _crc_is(row: np.ndarray, crc: int) -> bool:
    return zlib.crc32(row.data) == crc


def _block_line(records: list[Record]) -> bytes:
    names, times, digests, crcs, bad = zip(*records, strict=True)
    return _line(
        {
            "names": names,
            "times": [number for of_file in times for number in of_file],
            "digests": b"".join(digests).hex(),
            "crcs": crcs,
            "bad": [(place, reason) for place, reason in enumerate(bad) if reason is not None],
        }
    )


def _line(value: dict[str, Any]) -> bytes:
    content = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    return b"%08x %b" % (zlib.crc32(content), content)
