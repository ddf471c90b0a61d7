"""The embedded four-domain digits benchmark (`DATA = digits`), made from what the dependencies carry; no download.

Comes in: scikit-learn's UCI handwriting and two photographs, matplotlib's fonts. Goes out: a Pool of 12,800 images,
split 80/20, where a piece of handwriting is in one domain and one split only and the two font domains share no font.
Stands in for Digits-DG (paper, § "Evaluation on six DG benchmarks"). Axes: N images, C channels, H height, W width.
"""

import hashlib
import math
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from triplee.data.folder import TRAIN, VAL
from triplee.data.pool import Pool
from triplee.seeding import generator
from triplee.settings import InputError, cache_folder

DOMAINS = ("handwritten", "textured", "printed", "street")
CLASSES = tuple("0123456789")
PIECES = 80  # of handwriting per class: each is one handwritten image, or five textured ones
PER_CLASS = 400  # images of a class in each of the other three domains

_VERSION = 1  # raise it with any change to what is drawn: cached files of another version are not read
_SIZE = 32
_LARGEST = 256  # of the sides that they may be enlarged to: all lie in memory
_CANVAS = (192, 96)  # for digits twice as large as they end up, with room for the neighbours of a house number

# Left out of matplotlib's: fonts without digits, and cmmi10, whose digits are old-style.
_PRINTED_FONTS = (
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "cmr10", "cmb10"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmti10", "cmtt10"),
)
_STREET_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "cmss10"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
)


def load_digits(image_size: int = _SIZE) -> Pool:
    """The benchmark as uint8 images, N × 3 × image_size × image_size; built once, then read from the cache."""
    if image_size > _LARGEST:
        raise InputError(f"the embedded digits have {_SIZE} px: {image_size} is too large for them, at most {_LARGEST}")
    path = _cache_path()
    pool = _read_cache(path)
    if pool is None:
        pool = _build()
        _write_cache(path, pool)
    if image_size == _SIZE:
        return pool
    images_NCHW = torch.empty(len(pool), 3, image_size, image_size, dtype=torch.uint8)
    for k, image_HWC in enumerate(pool.images_NCHW[:].permute(0, 2, 3, 1).numpy()):
        resized = _resize(Image.fromarray(image_HWC), image_size, Image.Resampling.BILINEAR)
        images_NCHW[k] = torch.tensor(resized).permute(2, 0, 1)
    return replace(pool, images_NCHW=images_NCHW, fingerprint=_fingerprint(images_NCHW, pool.labels_N))


def _make_pool(images_NCHW: torch.Tensor) -> Pool:
    """Say what is what: images lie domain by domain, then class by class, in each class those of TRAIN first."""
    counts = [PIECES, PER_CLASS, PER_CLASS, PER_CLASS]
    labels_N = np.concatenate([np.repeat(np.arange(10, dtype=np.int64), count) for count in counts])
    domains_N = np.repeat(np.arange(4, dtype=np.int64), [10 * count for count in counts])
    splits = [np.where(np.arange(count) < count * 4 // 5, TRAIN, VAL) for count in counts]
    split_N = np.concatenate([np.tile(split, 10) for split in splits]).astype(np.int8)
    fingerprint = _fingerprint(images_NCHW, labels_N)
    return Pool("digits", images_NCHW, labels_N, domains_N, split_N, CLASSES, DOMAINS, fingerprint)


def _fingerprint(images_NCHW: torch.Tensor, labels_N: np.ndarray) -> str:
    digest = hashlib.blake2b(images_NCHW.numpy().data, digest_size=16)
    digest.update(labels_N.data)
    return digest.hexdigest()


def _cache_path() -> Path:
    """The cache file of this recipe of the data and these dependencies, whose versions may move single pixels."""
    made_with = [version(name) for name in ("numpy", "pillow", "scikit-learn", "matplotlib")]
    key = hashlib.blake2b(repr(made_with).encode(), digest_size=4).hexdigest()
    return cache_folder() / f"digits-v{_VERSION}-{key}.npz"


def _read_cache(path: Path) -> Pool | None:
    try:
        with path.open("rb") as file, np.load(file) as stored:
            pool = _make_pool(torch.from_numpy(stored["images"]))
            return pool if pool.fingerprint == str(stored["fingerprint"]) else None
    except Exception:  # a damaged file raises nearly anything; whatever it is, building again cures it
        return None


def _write_cache(path: Path, pool: Pool) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with suppress(OSError):  # a folder that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                np.savez(file, images=pool.images_NCHW[:].numpy(), fingerprint=np.array(pool.fingerprint))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _build() -> Pool:
    from sklearn.datasets import load_digits as load_handwriting

    pixels, targets = load_handwriting(return_X_y=True)
    pieces = np.reshape(pixels, (-1, 8, 8))
    handwritten_ids, textured_ids = _handwriting_ids(targets)
    font_labels = np.repeat(np.arange(10), PER_CLASS)
    images = [
        _draw_handwriting(pieces[handwritten_ids], margin=3),
        _draw_textured(pieces[textured_ids]),
        _draw_printed(font_labels),
        _draw_street(font_labels),
    ]
    return _make_pool(_channels_first(np.concatenate(images)))


def _handwriting_ids(targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which UCI digit each handwritten (800) and each textured image (4,000) shows, in the order of the pool.

    UCI's file holds 14 filled-in forms in a row and a domain takes from its own end of the file, so from other hands.
    Pieces drawn from the whole file made the held-out handwritten domain easier for a plain network: 96 % against 91 %.
    """
    rng = generator(0, "digits handwriting")
    ids = [np.flatnonzero(targets == label) for label in range(10)]
    handwritten = [rng.permutation(of_class[:PIECES]) for of_class in ids]
    textured = [np.repeat(rng.permutation(of_class[-PIECES:]), PER_CLASS // PIECES) for of_class in ids]
    return np.concatenate(handwritten), np.concatenate(textured)


def _draw_handwriting(pieces: np.ndarray, margin: int) -> np.ndarray:
    """Pieces of handwriting (N × 8 × 8 in 0..16) with a margin around them, enlarged smoothly: light on black."""
    padded = np.pad(pieces * (255 / 16), ((0, 0), (margin, margin), (margin, margin))).astype(np.uint8)
    large = np.stack([_resize(Image.fromarray(piece), _SIZE, Image.Resampling.BICUBIC) for piece in padded])
    return np.repeat(_to_uint8(1.6 * large - 70)[..., None], 3, axis=-1)  # crisper, as a pen writes


def _draw_textured(pieces: np.ndarray) -> np.ndarray:
    """|photograph − digit| per channel, as MNIST-M is made, on a patch with texture in which the digit can be read."""
    from sklearn.datasets import load_sample_images

    rng = generator(0, "digits textured")
    photos = [Image.fromarray(photo) for photo in load_sample_images()["images"]]
    images = []
    for digit in _draw_handwriting(pieces, margin=1).astype(np.int16):
        while True:
            photo = photos[rng.integers(len(photos))]
            side = int(rng.integers(48, 161))
            left, top = (int(rng.integers(extent - side + 1)) for extent in photo.size)
            patch = _resize(photo.crop((left, top, left + side, top + side)), _SIZE, Image.Resampling.BILINEAR)
            image = np.abs(patch - digit)
            if np.average(np.abs(image - patch), weights=digit) > 110 and patch.std(axis=(0, 1)).mean() > 30:
                break
        images.append(image.astype(np.uint8))
    return np.stack(images)


def _draw_printed(labels: np.ndarray) -> np.ndarray:
    """One digit in a plain colour on a plain colour, a little turned, scaled and moved."""
    rng = generator(0, "digits printed")
    fonts = _load_fonts(_PRINTED_FONTS)
    images = []
    for label in labels:
        text = _draw_text(fonts[rng.integers(len(fonts))], str(label))
        zoom, shift = rng.uniform(0.65, 1.05, 2), rng.uniform(-4, 4, 2)
        coverage = _project(text, zoom, shift, angle=rng.uniform(-12, 12), tilt=np.zeros(2), blur=0)
        ink, paper = _draw_colours(rng, least=90, most=255, grey=0)
        images.append(_to_uint8(paper + coverage * (ink - paper)))
    return np.stack(images)


def _draw_street(labels: np.ndarray) -> np.ndarray:
    """A digit of a house number, its neighbours cut off: perspective, low contrast, uneven light, blur, noise."""
    rng = generator(0, "digits street")
    fonts = _load_fonts(_STREET_FONTS)
    ramp = np.linspace(-1, 1, _SIZE)
    images = []
    for label in labels:
        left, right = (str(digit) if digit < 10 else "" for digit in rng.integers(13, size=2))  # 3 in 13: none
        text = _draw_text(fonts[rng.integers(len(fonts))], str(label), left, right)
        zoom, shift, tilt = rng.uniform(0.8, 1.1, 2), rng.uniform(-3, 3, 2), rng.uniform(-0.01, 0.01, 2)
        coverage = _project(text, zoom, shift, angle=rng.uniform(-8, 8), tilt=tilt, blur=rng.uniform(0.6, 2.2))
        ink, wall = _draw_colours(rng, least=25, most=75, grey=0.5)
        slope_x, slope_y = rng.uniform(-45, 45, 2)
        light = (slope_x * ramp + slope_y * ramp[:, None])[..., None] * rng.uniform(0.5, 1, 3)
        noise = rng.normal(0, rng.uniform(2, 10), (_SIZE, _SIZE, 3))
        images.append(_to_uint8(wall + coverage * (ink - wall) + light + noise))
    return np.stack(images)


def _draw_colours(rng: np.random.Generator, least: float, most: float, grey: float) -> np.ndarray:
    """Two RGB colours, `grey` of the way to grey, whose luminance differs by `least` to `most` either way."""
    while True:
        colours = rng.uniform(0, 255, (2, 3))
        luminance = np.sum(colours * (0.299, 0.587, 0.114), axis=1, keepdims=True)
        if least <= np.ptp(luminance) <= most:
            return colours + grey * (luminance - colours)


def _load_fonts(names: tuple[str, ...]) -> list[ImageFont.FreeTypeFont]:
    import matplotlib

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    basic = ImageFont.Layout.BASIC  # the other layout engine is not on every machine
    return [ImageFont.truetype(folder / f"{name}.ttf", 64, layout_engine=basic) for name in names]


def _draw_text(font: ImageFont.FreeTypeFont, digit: str, left: str = "", right: str = "") -> Image.Image:
    """White on black: the digit in the middle of the canvas, its neighbours on the same line."""
    canvas = Image.new("L", _CANVAS)
    draw = ImageDraw.Draw(canvas)
    x_min, y_min, x_max, y_max = font.getbbox(digit, anchor="ls")
    x, y = (_CANVAS[0] - x_min - x_max) / 2, (_CANVAS[1] - y_min - y_max) / 2
    draw.text((x, y), digit, 255, font, anchor="ls")
    draw.text((x + x_min - 5, y), left, 255, font, anchor="rs")
    draw.text((x + x_max + 5, y), right, 255, font, anchor="ls")
    return canvas


def _project(
    text: Image.Image, zoom: np.ndarray, shift: np.ndarray, *, angle: float, tilt: np.ndarray, blur: float
) -> np.ndarray:
    """How far each pixel (32 × 32 × 1) is covered with ink, 0..1; angle in degrees, lengths in pixels of `text`."""
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    to_centre = np.array([[1, 0, -_SIZE - shift[0]], [0, 1, -_SIZE - shift[1]], [0, 0, 1]])
    turn = np.array([[cos / zoom[0], sin / zoom[0], 0], [-sin / zoom[1], cos / zoom[1], 0], [*tilt, 1]])
    from_centre = np.array([[1, 0, _CANVAS[0] / 2], [0, 1, _CANVAS[1] / 2], [0, 0, 1]])
    matrix = from_centre @ turn @ to_centre  # Pillow asks where a pixel of the result lies in the text
    coefficients = (matrix / matrix[2, 2]).ravel()[:8].tolist()
    seen = text.transform((2 * _SIZE, 2 * _SIZE), Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)
    return np.asarray(seen.filter(ImageFilter.GaussianBlur(blur)).reduce(2))[..., None] / 255


def _resize(image: Image.Image, size: int, method: Image.Resampling) -> np.ndarray:
    return np.asarray(image.resize((size, size), method))


def _channels_first(images_NHWC: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images_NHWC).permute(0, 3, 1, 2).contiguous()


def _to_uint8(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
