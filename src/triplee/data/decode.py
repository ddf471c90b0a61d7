"""Decode: the bytes of one image file to pixels, upright, RGB, squashed to image_size².

By Pillow, which reads every format here and decodes large JPEGs at a fraction; what others would gain and cost is in
docs/performance.md.
Comes in: a file. Goes out: uint8 (3,H,W), or a BadImage that says why not. Axes: C channels, H height, W width.
"""

import contextlib
import ctypes
import io
import logging
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from triplee.settings import InputError

MAX_PIXELS = 100_000_000

_MAX_BYTES = 8 * MAX_PIXELS  # the most that many pixels take up in a file: four channels of 16 bits
# By content, not by name: many a GIF is called .jpg. Not all of Pillow's formats: some start other programs (EPS).
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF")
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(InputError):
    """An image file that cannot be used, and why."""

    def __init__(self, source: Path, reason: str):
        super().__init__(f"cannot read image {source}: {reason}")
        self.source, self.reason = source, reason


def decode_image(source: Path, image_size: int) -> np.ndarray:
    """The upright RGB image as uint8 (3,H,W), H = W = `image_size`; BadImage when it cannot be read."""
    return decode_content(source, read_content(source), image_size)


def read_content(source: Path) -> bytes:
    """The bytes of an image file; BadImage when they cannot be read."""
    try:
        status = source.stat()
        if stat.S_ISDIR(status.st_mode):
            raise BadImage(source, "it is a folder")
        if not stat.S_ISREG(status.st_mode):  # reading a pipe or a device may never end
            raise BadImage(source, "it is not a file")
        if status.st_size > _MAX_BYTES:
            raise BadImage(source, f"{status.st_size / 1e6:,.0f} MB are over {_MAX_BYTES // 10**6} MB")
        return source.read_bytes()
    except OSError as error:
        raise BadImage(source, error.strerror or str(error)) from None


def decode_content(source: Path, content: bytes, image_size: int) -> np.ndarray:
    """As `decode_image`, for bytes already read from `source`."""
    if not content:
        raise BadImage(source, "the file is empty")
    with _naming(source), _PILLOW, Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        _check(source, image)
        # A JPEG may be decoded at 1/2, 1/4 or 1/8: not below twice the size, so that ours is still the resize.
        reduced = image.draft(None, (2 * image_size, 2 * image_size))
        return _to_pixels(image, image_size, reduced[1] if reduced else None)


def decode_picture(picture: Image.Image, image_size: int) -> np.ndarray:
    """As `decode_image`, for what somebody else has opened or made with Pillow."""
    source = Path(getattr(picture, "filename", "") or "in memory")
    with _naming(source), _PILLOW:
        _check(source, picture)
        return _to_pixels(picture, image_size, None)


@contextlib.contextmanager
def _naming(source: Path) -> Iterator[None]:
    """Whatever goes wrong in decoding is a BadImage of that name."""
    try:
        yield
    except (BadImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImage(source, "not an image, or its start is damaged") from None
    except Exception as error:  # Pillow's decoders meet damaged files with errors of a dozen kinds
        raise BadImage(source, " ".join(str(error).split()) or type(error).__name__) from None


def _check(source: Path, image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImage(source, f"{image.width} × {image.height} is over {MAX_PIXELS // 10**6} megapixels")
    if image.mode == "F":
        raise BadImage(source, "floating-point pixels have no agreed range, save it with 8 or 16 bits")


def _to_pixels(image: Image.Image, image_size: int, box: tuple[float, float, float, float] | None) -> np.ndarray:
    """`box`: the true extent of an image that was decoded smaller, as half of 1067 rows is no whole number."""
    image.load()
    rgb = _to_rgb(image)
    if rgb.size != (image_size, image_size):
        rgb = rgb.resize((image_size, image_size), Image.Resampling.BILINEAR, box)
    rgb = _turn_upright(rgb, image)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


class _PillowSettings:
    """Our settings of Pillow while any thread decodes: no warnings, no limit on pixels but ours; then as before.

    Both settings are global to the process, hence the count: the last thread out puts them back.
    """

    def __init__(self) -> None:
        self._lock, self._num_inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
                self._warnings = warnings.catch_warnings()
                self._warnings.__enter__()
                warnings.simplefilter("ignore")
            self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._warnings.__exit__(None, None, None)
                Image.MAX_IMAGE_PIXELS = self._limit


def _silence_libraries() -> None:
    """What Pillow and the TIFF library in it say of odd files would reach the terminal; the reason is in BadImage."""
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or built otherwise
        mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
        for library in {file for file in mapped if Path(file).name.startswith("libtiff")}:
            ctypes.CDLL(library).TIFFSetErrorHandler(None)


_PILLOW = _PillowSettings()
_silence_libraries()


def _turn_upright(rgb: Image.Image, source: Image.Image) -> Image.Image:
    """`rgb` as the EXIF data of `source` ask for, which Pillow has obeyed already where it loads a TIFF."""
    try:
        orientation = source.getexif().get(_ORIENTATION)
    except Exception:  # damaged EXIF data: the pixels are whole all the same
        return rgb
    return rgb.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else rgb


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey; Pillow's own conversion clips at 255 instead of scaling
        return Image.fromarray((np.asarray(image).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image if image.mode == "RGB" else image.convert("RGB")
