"""decode_image on real files of every format and mode; the store around it is in test_prepare.py."""

import io
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from triplee.data.decode import BadImage, decode_image

SIZE = 8


def noise(height: int = SIZE, width: int = SIZE, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def pixels(image_CHW: np.ndarray) -> np.ndarray:
    assert image_CHW.dtype == np.uint8 and image_CHW.flags.c_contiguous
    return image_CHW.transpose(1, 2, 0)


def reason(source: Path) -> str:
    with pytest.raises(BadImage) as bad:
        decode_image(source, SIZE)
    assert str(source) in str(bad.value) and bad.value.reason in str(bad.value) and "\n" not in str(bad.value)
    return bad.value.reason


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha.astype(float) / 255
    return colour * share + 255 * (1 - share)


# --- formats and modes


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.bmp", "a.tif", "a.tiff", "a.webp", "png called.jpg"])
def test_lossless_formats_come_back_exactly(tmp_path: Path, name: str) -> None:
    kind = {"bmp": "BMP", "tif": "TIFF", "tiff": "TIFF", "webp": "WEBP"}.get(name.split(".")[1], "PNG")
    Image.fromarray(noise()).save(tmp_path / name, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(pixels(decode_image(tmp_path / name, SIZE)), noise())


@pytest.mark.parametrize("name", ["a.jpg", "a.jpeg", "a.webp"])
def test_lossy_formats_come_back_nearly(tmp_path: Path, name: str) -> None:
    smooth = np.full((SIZE, SIZE, 3), (200, 100, 50), np.uint8)
    Image.fromarray(smooth).save(tmp_path / name, quality=95)
    assert np.abs(pixels(decode_image(tmp_path / name, SIZE)).astype(int) - smooth).max() <= 3


def test_a_gif_called_jpg_is_read(tmp_path: Path) -> None:
    grey = noise(channels=1)[..., 0]
    Image.fromarray(grey).save(tmp_path / "a.jpg", "GIF")
    assert np.array_equal(pixels(decode_image(tmp_path / "a.jpg", SIZE)), np.stack([grey] * 3, -1))


def test_grey_becomes_three_equal_channels(tmp_path: Path) -> None:
    grey = noise(channels=1)[..., 0]
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert np.array_equal(pixels(decode_image(tmp_path / "a.png", SIZE)), np.stack([grey] * 3, -1))


def test_one_bit(tmp_path: Path) -> None:
    black = noise(channels=1)[..., 0] > 127
    Image.fromarray(black).save(tmp_path / "a.png")
    assert np.array_equal(pixels(decode_image(tmp_path / "a.png", SIZE))[..., 1], np.where(black, 255, 0))


def test_rgba_lies_on_white(tmp_path: Path) -> None:
    rgba = noise(channels=4)
    rgba[0, 0, 3], rgba[0, 1, 3] = 0, 255
    Image.fromarray(rgba).save(tmp_path / "a.png")
    decoded = pixels(decode_image(tmp_path / "a.png", SIZE))
    assert np.abs(decoded - on_white(rgba[..., :3], rgba[..., 3:])).max() <= 1
    assert decoded[0, 0].tolist() == [255, 255, 255]
    assert np.array_equal(decoded[0, 1], rgba[0, 1, :3])


def test_grey_with_alpha_lies_on_white(tmp_path: Path) -> None:
    la = noise(channels=2)
    Image.fromarray(la).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "LA"
    decoded = pixels(decode_image(tmp_path / "a.png", SIZE))
    assert np.abs(decoded - on_white(la[..., :1], la[..., 1:])).max() <= 1


@pytest.mark.parametrize(
    ("transparency", "expected"),
    [
        (None, [(255, 0, 0), (0, 255, 0), (0, 0, 255)]),
        (1, [(255, 0, 0), (255, 255, 255), (0, 0, 255)]),
        (bytes([255, 0, 102]), [(255, 0, 0), (255, 255, 255), (153, 153, 255)]),
    ],
)
def test_palette(tmp_path: Path, transparency: int | bytes | None, expected: list[tuple[int, ...]]) -> None:
    indexed = Image.fromarray(np.arange(SIZE * SIZE, dtype=np.uint8).reshape(SIZE, SIZE) % 3)
    indexed.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    assert indexed.mode == "P"
    options: dict[str, Any] = {} if transparency is None else {"transparency": transparency}
    indexed.save(tmp_path / "a.png", **options)
    decoded = pixels(decode_image(tmp_path / "a.png", SIZE))
    assert [tuple(colour) for colour in decoded[0, :3].tolist()] == expected


def test_a_see_through_colour_of_an_rgb_png_is_white(tmp_path: Path) -> None:
    rgb = noise()
    Image.fromarray(rgb).save(tmp_path / "a.png", transparency=tuple(rgb[2, 3].tolist()))
    rgb[2, 3] = 255
    assert np.array_equal(pixels(decode_image(tmp_path / "a.png", SIZE)), rgb)


@pytest.mark.parametrize("name", ["a.tif", "a.jpg"])
def test_cmyk(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"quality": 100} if name == "a.jpg" else {}
    inks = {(0, 255, 255, 0): (255, 0, 0), (255, 0, 255, 0): (0, 255, 0), (0, 0, 0, 0): (255, 255, 255)}
    for ink, colour in {**inks, (0, 0, 0, 255): (0, 0, 0)}.items():
        Image.new("CMYK", (SIZE, SIZE), ink).save(tmp_path / name, **options)
        decoded = pixels(decode_image(tmp_path / name, SIZE)).astype(int)
        assert np.abs(decoded - colour).max() <= (0 if name == "a.tif" else 4)


@pytest.mark.parametrize(
    ("mode", "dtype", "name"),
    [
        ("I;16", "<u2", "a.png"),
        ("I;16", "<u2", "a.tif"),
        ("I;16B", ">u2", "a.tif"),
        ("I", "<i4", "a.tif"),
    ],
)
def test_sixteen_bit_grey_is_scaled(tmp_path: Path, mode: str, dtype: str, name: str) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (SIZE, SIZE))
    deep[0, :4] = [0, 255, 256, 65535]
    Image.frombytes(mode, (SIZE, SIZE), deep.astype(dtype).tobytes()).save(tmp_path / name)
    decoded = pixels(decode_image(tmp_path / name, SIZE))
    assert np.array_equal(decoded, np.stack([deep >> 8] * 3, -1))


def test_floating_point_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).random((SIZE, SIZE), np.float32)).save(tmp_path / "a.tif")
    assert "floating-point" in reason(tmp_path / "a.tif")


# Stored rows and columns for a picture that is to be seen as `upright`, by the definition of the EXIF tag.
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied(tmp_path: Path, name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options: dict[str, Any] = {"lossless": True} if name == "a.webp" else {}
    Image.fromarray(np.ascontiguousarray(STORED[orientation](noise()))).save(tmp_path / name, exif=exif, **options)
    assert np.array_equal(pixels(decode_image(tmp_path / name, SIZE)), noise())


def test_exif_orientation_of_a_jpg_is_applied_before_squashing(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise: what is stored on the left is seen on top
    stored = np.zeros((16, 64, 3), np.uint8)
    stored[:, :32] = (255, 0, 0)
    Image.fromarray(stored).save(tmp_path / "a.jpg", exif=exif, quality=95)
    decoded = pixels(decode_image(tmp_path / "a.jpg", SIZE)).astype(int)
    assert (decoded[:3, :, 0] > 240).all() and (decoded[5:, :, 0] < 15).all()


# --- size


@pytest.mark.parametrize(("height", "width"), [(20, 50), (3, 5), (8, 40), (1, 1)])
def test_other_sizes_are_squashed_as_pillow_does(tmp_path: Path, height: int, width: int) -> None:
    image = Image.fromarray(noise(height, width))
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    assert np.array_equal(pixels(decode_image(tmp_path / "a.png", SIZE)), expected)


def test_squashing_is_antialiased_and_crops_nothing(tmp_path: Path) -> None:
    board = np.indices((64, 128)).sum(0) % 2 * 255
    board[:, :32] = 0
    Image.fromarray(board.astype(np.uint8)).save(tmp_path / "a.png")
    decoded = pixels(decode_image(tmp_path / "a.png", SIZE))[..., 0].astype(int)
    assert (decoded[:, 0] == 0).all()
    assert (np.abs(decoded[:, 3:] - 127.5) < 12).all()


@pytest.mark.parametrize("image_size", [32, 160, 224])
def test_a_large_jpg_decoded_at_a_fraction_stays_close_to_the_plain_way(tmp_path: Path, image_size: int) -> None:
    photo = Image.fromarray(load_sample_image("china.jpg")).resize((1600, 1067))
    photo.save(tmp_path / "a.jpg", quality=90)
    with Image.open(tmp_path / "a.jpg") as image:
        plain = np.asarray(image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR))
    difference = np.abs(pixels(decode_image(tmp_path / "a.jpg", image_size)).astype(int) - plain)
    assert 0 < difference.mean() < 0.5 and difference.max() <= 8


# --- odd files that are read all the same, without a word


def with_exif(content: bytes, exif: bytes) -> bytes:
    segment = b"Exif\0\0" + exif
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + content[2:]


@pytest.mark.parametrize(
    "exif",
    [
        b"garbage!!",
        b"II*\0\x08\0\0\0\xff\x00\x12\x01\x03\0\x01\0\0\0\x01\0\0\0",  # 255 entries said, one there
        b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x05\xff\xff\xff\xff\0\0\0\0",
    ],
)
def test_damaged_exif_data_is_passed_over(tmp_path: Path, exif: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    plain = io.BytesIO()
    Image.fromarray(noise()).save(plain, "JPEG")
    (tmp_path / "plain.jpg").write_bytes(plain.getvalue())
    (tmp_path / "a.jpg").write_bytes(with_exif(plain.getvalue(), exif))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = decode_image(tmp_path / "a.jpg", SIZE)
    assert np.array_equal(decoded, decode_image(tmp_path / "plain.jpg", SIZE))
    assert capfd.readouterr() == ("", "")


# --- bad files


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp", "a.tif"])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.02])
def test_truncated_files(tmp_path: Path, name: str, share: float) -> None:
    Image.fromarray(noise(40, 40)).save(tmp_path / name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(len(content) * share)])
    assert reason(tmp_path / name)


def test_files_that_are_no_images(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not a picture\nat all")
    (tmp_path / "empty.png").touch()
    (tmp_path / "script.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    (tmp_path / "folder.png").mkdir()
    assert "not an image" in reason(tmp_path / "text.png")
    assert "empty" in reason(tmp_path / "empty.png")
    assert "not an image" in reason(tmp_path / "script.jpg")
    assert "folder" in reason(tmp_path / "folder.png")
    assert "No such file" in reason(tmp_path / "gone.png")


def test_files_that_must_not_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zeros.png").symlink_to("/dev/zero")
    (tmp_path / "huge.bmp").touch()
    os.truncate(tmp_path / "huge.bmp", 900_000_000)
    assert "not a file" in reason(tmp_path / "pipe.png")
    assert "not a file" in reason(tmp_path / "zeros.png")
    assert "900 MB" in reason(tmp_path / "huge.bmp")


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_deflate", "jpeg"])
def test_the_tiff_library_keeps_quiet(tmp_path: Path, compression: str, capfd: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(noise(40, 40)).save(tmp_path / "a.tif", compression=compression)
    content = bytearray((tmp_path / "a.tif").read_bytes())
    for place in range(20, 900, 7):
        content[place] ^= 0x55
    (tmp_path / "a.tif").write_bytes(content)
    assert reason(tmp_path / "a.tif")
    assert capfd.readouterr() == ("", "")


def write_png_header(target: Path, width: int, height: int) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    target.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))


def test_the_limit_on_pixels_is_ours_and_silent(tmp_path: Path) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    assert limit is not None and limit < 9_900 * 10_000, "this file must be over Pillow's limit and under ours"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for width, height in [(30_000, 30_000), (10_001, 10_000)]:
            write_png_header(tmp_path / "huge.png", width, height)
            assert f"{width} × {height} is over 100 megapixels" in reason(tmp_path / "huge.png")
        write_png_header(tmp_path / "large.png", 9_900, 10_000)
        assert "truncated" in reason(tmp_path / "large.png")
    assert limit == Image.MAX_IMAGE_PIXELS


def test_threads_share_our_settings_of_pillow_and_put_them_back(tmp_path: Path) -> None:
    Image.fromarray(noise(50, 50)).save(tmp_path / "small.png")
    write_png_header(tmp_path / "large.png", 9_900, 10_000)
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)

    def decode(turn: int) -> str:
        return reason(tmp_path / "large.png") if turn % 2 else str(decode_image(tmp_path / "small.png", SIZE).sum())

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(decode, range(1000)))
    assert len(set(results[::2])) == 1
    assert all("truncated" in result for result in results[1::2])
    assert limit == Image.MAX_IMAGE_PIXELS and list(warnings.filters) == filters
