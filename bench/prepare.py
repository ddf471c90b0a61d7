"""Images decoded per second: ours against a plain Pillow loop and other decoders, and `prepare` as a whole.

OpenCV and simplejpeg are measured where they are installed; neither is needed otherwise.

    python bench/prepare.py PACS       # the folder of PACS; five minutes; writes bench/results/prepare.json
"""

import argparse
import importlib
import io
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

from measuring import ratios, save, summary, time_in_turn
from triplee.data.decode import decode_content
from triplee.data.folder import ImageFolder, list_images
from triplee.data.prepare import load_images, prepare

ROUNDS = 5
Decoder = Callable[[bytes, int], np.ndarray]


def channels_first(image: Image.Image | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def decode_plainly(content: bytes, size: int) -> np.ndarray:
    """What nearly every data loader does."""
    return channels_first(
        Image.open(io.BytesIO(content)).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    )


def decode_ours(content: bytes, size: int) -> np.ndarray:
    return decode_content(Path("in memory"), content, size)


def opencv_decoder(cv2: ModuleType) -> Decoder:
    cv2.setNumThreads(1)

    def decode(content: bytes, size: int) -> np.ndarray:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        # Its bilinear resize is not antialiased; by area is, where it shrinks.
        shrinks = image.shape[0] > size
        image = cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        return channels_first(image[..., ::-1])

    return decode


def simplejpeg_decoder(simplejpeg: ModuleType) -> Decoder:
    def decode(content: bytes, size: int) -> np.ndarray:
        image = simplejpeg.decode_jpeg(content, min_height=2 * size, min_width=2 * size, min_factor=1)
        return channels_first(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))

    return decode


def find_decoders() -> dict[str, Decoder]:
    decoders: dict[str, Decoder] = {"plain Pillow": decode_plainly, "ours": decode_ours}
    for name, module, make in (
        ("OpenCV", "cv2", opencv_decoder),
        ("simplejpeg", "simplejpeg", simplejpeg_decoder),
    ):
        with suppress(ImportError):
            decoders[name] = make(importlib.import_module(module))
    return decoders


def as_jpeg(image: Image.Image, width: int, height: int) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def make_sets(pacs: ImageFolder) -> dict[str, list[bytes]]:
    """Files of each kind, in memory: PACS as it is and as JPEG, and larger JPEGs of it and of two photographs."""
    rng = random.Random(0)
    originals = [pacs.path(index).read_bytes() for index in rng.sample(range(len(pacs)), 200)]
    pictures = [Image.open(io.BytesIO(content)) for content in originals]
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    large = []
    for k in range(48):
        left, top = rng.randrange(160), rng.randrange(107)
        large.append(photos[k % 2].crop((left, top, left + 480, top + 320)) if k % 4 else pictures[k])
    return {
        f"PACS as it is, {pictures[0].format} {pictures[0].width} px": originals,
        "PACS as JPEG 227 px": [as_jpeg(picture, 227, 227) for picture in pictures],
        "JPEG 640 × 480": [as_jpeg(picture, 640, 480) for picture in large],
        "JPEG 1600 × 1200": [as_jpeg(picture, 1600, 1200) for picture in large],
    }


def compare_decoders(name: str, contents: list[bytes], size: int) -> dict[str, Any]:
    """One thread and two of each decoder, and how far its pixels are from the plain ones, in grey levels of 256."""
    decoders = find_decoders()
    if not contents[0].startswith(b"\xff\xd8"):
        decoders.pop("simplejpeg", None)
    with ThreadPoolExecutor(2) as threads:

        def decode_all(decode: Decoder) -> None:
            for content in contents:
                decode(content, size)

        def in_two_threads(decode: Decoder) -> None:
            parts = [contents[k::16] for k in range(16)]
            list(threads.map(lambda part: [decode(content, size) for content in part] and None, parts))

        rivals: dict[str, Callable[[], None]] = {}
        for rival, decode in decoders.items():
            rivals[rival] = lambda decode=decode: decode_all(decode)
            rivals[f"{rival}, 2 threads"] = lambda decode=decode: in_two_threads(decode)
        seconds = time_in_turn(rivals, ROUNDS)
    plain = [decode_plainly(content, size).astype(int) for content in contents]
    row: dict[str, Any] = {"what": name, "size": size}
    for rival, values in seconds.items():
        result = {"images/s": summary([len(contents) / value for value in values], 0)}
        if rival != "plain Pillow":
            result["times plain Pillow"] = ratios(seconds["plain Pillow"], values)
        if rival in decoders and rival != "plain Pillow":
            decoded = (decoders[rival](content, size) for content in contents)
            differences = np.stack([np.abs(a - b) for a, b in zip(plain, decoded, strict=True)])
            result["difference"] = {"mean": round(float(differences.mean()), 3), "max": int(differences.max())}
        row[rival] = result
    return row


def compare_whole(folder: ImageFolder, name: str, size: int, scratch: Path) -> dict[str, Any]:
    """All files of a folder: a plain loop without and with keeping the pixels, `prepare`, and a later load."""
    os.environ["TRIPLEE_CACHE"] = str(scratch / "cache")

    def plain_loop() -> None:
        for index in range(len(folder)):
            decode_plainly(folder.path(index).read_bytes(), size)

    def plain_loop_keeping() -> None:
        with (scratch / "pixels").open("wb") as pixels:
            for index in range(len(folder)):
                pixels.write(decode_plainly(folder.path(index).read_bytes(), size).data)

    def clear() -> None:
        shutil.rmtree(scratch / "cache", ignore_errors=True)

    steps: dict[str, Callable[[], object]] = {
        "plain loop": plain_loop,
        "plain loop that keeps the pixels": plain_loop_keeping,
        "clear": clear,
        "prepare": lambda: prepare(folder, size),
        "load of what is stored": lambda: load_images(folder, name, size),
    }
    seconds = time_in_turn(steps, 5)
    del seconds["clear"]
    row: dict[str, Any] = {"what": f"{len(folder):,} files, {name}", "size": size}
    for step, values in seconds.items():
        row[step] = {"seconds": summary(values, 2), "times plain loop": ratios(seconds["plain loop"], values)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pacs", type=Path, help="the folder of PACS")
    pacs = list_images(parser.parse_args().pacs.absolute())
    rows: list[dict[str, Any]] = []
    for name, contents in make_sets(pacs).items():
        for size in (160, 224):
            rows.append(compare_decoders(name, contents, size))
            print(rows[-1], flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        jpegs = Path(scratch) / "jpeg"
        for index, name in enumerate(pacs.names):
            target = (jpegs / name).with_suffix(".jpg")
            target.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(pacs.path(index)) as image:
                target.write_bytes(as_jpeg(image, 227, 227))
        for folder, name, size in ((pacs, "PACS as it is", 160), (list_images(jpegs), "PACS as JPEG 227 px", 224)):
            rows.append(compare_whole(folder, name, size, Path(scratch)))
            print(rows[-1], flush=True)
    save("prepare", rows)


if __name__ == "__main__":
    main()
