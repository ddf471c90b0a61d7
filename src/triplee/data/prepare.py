"""Prepare: decode every image of a folder once, squashed to image_size², and keep the result.

Comes in: a folder (data/folder.py). Goes out: a Pool; a second load of the same files reads the stored pixels.
The store is `<cache>/folders/<key>/`: `pixels.u8`, the good images one after another, and `manifest.json`, which are
bad. The key hashes paths, file bytes and size. Axes: N images, C channels, H height, W width.
"""

import hashlib
import io
import json
import os
import shutil
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from filelock import FileLock
from PIL import Image, ImageOps, UnidentifiedImageError

from triplee.data.folder import ImageFolder, list_images
from triplee.data.pool import Pool
from triplee.settings import InputError, cache_folder

MAX_PIXELS = 100_000_000

_VERSION = 1  # raise it with any change to what is decoded or how it is stored: other versions are not read
# By content, not by name: many a GIF is called .jpg. Not all of Pillow's formats: some start other programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
_BLOCK = 16  # images per task: handing one small image to a thread costs more than decoding it
_OPENING = threading.Lock()

T = TypeVar("T")
Progress = Callable[[int, int], None]


class BadImage(InputError):
    """An image file that cannot be used, and why."""

    def __init__(self, source: Path, reason: str):
        super().__init__(f"cannot read image {source}: {reason}")
        self.reason = reason


def decode_image(source: Path, image_size: int) -> np.ndarray:
    """The upright RGB image as uint8 (3,H,W), H = W = `image_size`; BadImage when it cannot be read."""
    return _decode(source, _read(source), image_size)


def load_folder(root: Path, image_size: int, skip_bad: bool = False, on_progress: Progress | None = None) -> Pool:
    """The pool of a folder. `on_progress(done, total)` is told of each image decoded, not of those already stored."""
    folder = list_images(root)
    digests = list(_in_threads(lambda index: _digest(_read(folder.files[index].path)), len(folder.files)))
    key = _content_key(folder, digests, image_size)
    images_NCHW, bad = _prepare(folder, digests, image_size, cache_folder() / "folders" / key, on_progress)
    if bad and not skip_bad:
        first = next(iter(bad))
        raise InputError(
            f"{BadImage(folder.files[first].path, bad[first])} ({len(bad)} bad in all):"
            " repair or remove what is bad, or leave it out with --skip-bad"
        )
    files = [file for index, file in enumerate(folder.files) if index not in bad]
    labels_N = np.array([file.label for file in files], np.int64)
    domains_N = np.array([file.domain for file in files], np.int64)
    for kind, names, index_N in (("domain", folder.domains, domains_N), ("class", folder.classes, labels_N)):
        if lost := [name for index, name in enumerate(names) if index not in index_N]:
            raise InputError(f"{kind} {lost[0]!r} of {root} has only bad images: repair them or remove the {kind}")
    return Pool(
        name=str(root),
        images_NCHW=torch.from_numpy(images_NCHW),
        labels_N=labels_N,
        domains_N=domains_N,
        split_N=np.array([file.split for file in files], np.int8),
        classes=folder.classes,
        domains=folder.domains,
        fingerprint=key,
        skipped=len(bad),
    )


def _read(source: Path) -> bytes | BadImage:
    try:
        return source.read_bytes()
    except OSError as error:
        return BadImage(source, error.strerror or str(error))


def _digest(content: bytes | BadImage) -> bytes:
    """A hash of the file, or of the reason why it cannot be read, so that it is tried again once it can."""
    hashed = f"unreadable: {content.reason}".encode() if isinstance(content, BadImage) else content
    return hashlib.blake2b(hashed, digest_size=16).digest()


def _content_key(folder: ImageFolder, digests: Sequence[bytes], image_size: int) -> str:
    key = hashlib.blake2b(f"triplee folder {_VERSION}, {image_size} pixels".encode(), digest_size=16)
    for file, digest in zip(folder.files, digests, strict=True):
        key.update(os.fsencode(file.path.relative_to(folder.root).as_posix()) + b"\0" + digest)
    return key.hexdigest()


def _decode(source: Path, content: bytes | BadImage, image_size: int) -> np.ndarray:
    if isinstance(content, BadImage):
        raise content
    if not content:
        raise BadImage(source, "the file is empty")
    try:
        with _open(content) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BadImage(source, f"{image.width} × {image.height} is over {MAX_PIXELS // 10**6} megapixels")
            if image.mode == "F":
                raise BadImage(source, "floating-point pixels have no agreed range, save it with 8 or 16 bits")
            rgb = _to_rgb(ImageOps.exif_transpose(image))
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImage(source, "not an image, or its start is damaged") from None
    except Exception as error:  # Pillow's decoders meet damaged files with errors of a dozen kinds
        raise BadImage(source, " ".join(str(error).split()) or type(error).__name__) from None
    if rgb.size != (image_size, image_size):
        rgb = rgb.resize((image_size, image_size), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def _open(content: bytes) -> Image.Image:
    """Reads the header only. Pillow's own limit is global and lower than ours: lifted here, and put back for others."""
    with _OPENING:
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(io.BytesIO(content), formats=_FORMATS)
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion clips at 255 instead of scaling
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB")


def _prepare(
    folder: ImageFolder, digests: Sequence[bytes], image_size: int, entry: Path, on_progress: Progress | None
) -> tuple[np.ndarray, dict[int, str]]:
    """The good images (N,3,H,W) and the bad ones (position in `folder.files` → reason), stored under `entry`."""
    # Read before locking: a stored entry is whole from the moment it has its name, and the store may be read-only.
    if stored := _read_entry(entry, len(folder.files), image_size):
        return stored
    unfinished = entry.with_name(f"{entry.name}.unfinished")
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if stored := _read_entry(entry, len(folder.files), image_size):
                return stored
            try:
                for rest in (unfinished, entry):  # of a run that was killed; damaged
                    if rest.exists():
                        shutil.rmtree(rest)
                unfinished.mkdir()
                _write_entry(unfinished, _decode_all(folder, digests, image_size), len(folder.files), on_progress)
                unfinished.rename(entry)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
            stored = _read_entry(entry, len(folder.files), image_size)
    except OSError as error:
        raise InputError(
            f"cannot keep decoded images in {cache_folder()}: {error.strerror or error}:"
            " make room there, or set TRIPLEE_CACHE to another folder"
        ) from None
    if stored is None:
        raise InputError(f"decoded images in {entry} came back damaged: set TRIPLEE_CACHE to a folder on another disk")
    return stored


def _decode_all(folder: ImageFolder, digests: Sequence[bytes], image_size: int) -> Iterator[np.ndarray | BadImage]:
    def decode(index: int) -> np.ndarray | BadImage:
        source = folder.files[index].path
        content = _read(source)
        if _digest(content) != digests[index]:
            raise InputError(f"{source} changed while it was read: load again when nothing writes to {folder.root}")
        try:
            return _decode(source, content, image_size)
        except BadImage as bad:
            return bad

    return _in_threads(decode, len(folder.files))


def _in_threads(work: Callable[[int], T], num_items: int) -> Iterator[T]:
    """work(0), work(1), … in order. Few blocks are under way at a time, so that results do not fill the memory."""

    def work_block(start: int) -> list[T]:
        return [work(index) for index in range(start, min(start + _BLOCK, num_items))]

    num_threads = os.cpu_count() or 1
    pending: deque[Future[list[T]]] = deque()
    with ThreadPoolExecutor(num_threads) as threads:
        for start in range(0, num_items, _BLOCK):
            pending.append(threads.submit(work_block, start))
            if len(pending) > 2 * num_threads:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _write_entry(
    unfinished: Path, images: Iterable[np.ndarray | BadImage], num_images: int, on_progress: Progress | None
) -> None:
    bad: list[tuple[int, str]] = []
    checksum = 0
    # Written, not memory-mapped: on a full disk a write is an error, a mapped page ends the process.
    with (unfinished / "pixels.u8").open("wb") as pixels:
        for index, image in enumerate(images):
            if isinstance(image, BadImage):
                bad.append((index, image.reason))
            else:
                pixels.write(image.data)
                checksum = zlib.crc32(image.data, checksum)
            if on_progress:
                on_progress(index + 1, num_images)
    manifest = {"bad": bad, "checksum": zlib.crc32(json.dumps(bad).encode(), checksum)}
    (unfinished / "manifest.json").write_text(json.dumps(manifest))


def _read_entry(entry: Path, num_images: int, image_size: int) -> tuple[np.ndarray, dict[int, str]] | None:
    """What `_write_entry` stored; None when it is not there or damaged."""
    try:
        manifest = json.loads((entry / "manifest.json").read_text())
        bad = manifest["bad"]
        shape = (num_images - len(bad), 3, image_size, image_size)
        pixels = np.fromfile(entry / "pixels.u8", np.uint8)
        if zlib.crc32(json.dumps(bad).encode(), zlib.crc32(pixels.data)) != manifest["checksum"]:
            return None
        return pixels.reshape(shape), {index: reason for index, reason in bad}
    except (OSError, ValueError, KeyError, TypeError):
        return None
