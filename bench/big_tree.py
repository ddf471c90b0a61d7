"""A folder of DomainNet's size and shape, made up: time and memory of `prepare`, of later loads and of reading.

Every step runs in a process of its own, so that its memory is its own.

    python bench/big_tree.py           # six minutes, 5 GB of disk; writes bench/results/big_tree.json
    python bench/big_tree.py --images 60000
"""

import argparse
import io
import json
import multiprocessing
import os
import resource
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from measuring import save
from triplee.data.folder import list_images
from triplee.data.pool import MappedImages
from triplee.data.prepare import prepare
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack, native_precision
from triplee.recipes import find_recipe
from triplee.settings import make_recipe

DOMAINS, CLASSES, SOURCE_SIZE, SIZE = 6, 345, 48, 32
WINDOW = 4096  # images read at once
STEPS = 800  # of training: 25,600 images, 102,400 views


def make_tree(root: Path, num_images: int) -> None:
    """Patches of two photographs as JPEG, 64 different ones; a comment with a number makes every file differ."""
    rng = np.random.default_rng(0)
    patches = []
    for k in range(64):
        photo = load_sample_images().images[k % 2]
        top, left = rng.integers(photo.shape[0] - 200), rng.integers(photo.shape[1] - 200)
        file = io.BytesIO()
        patch = Image.fromarray(photo[top : top + 200, left : left + 200]).resize((SOURCE_SIZE, SOURCE_SIZE))
        patch.save(file, "JPEG", quality=85)
        patches.append(file.getvalue())
    number = 0
    for place in range(DOMAINS * CLASSES):
        folder = root / f"domain_{place // CLASSES}" / f"class_{place % CLASSES:03}"
        folder.mkdir(parents=True)
        for k in range(num_images * place // (DOMAINS * CLASSES), num_images * (place + 1) // (DOMAINS * CLASSES)):
            write_image(folder / f"{k:06}.jpg", patches[k % len(patches)], number)
            number += 1


def write_image(target: Path, jpeg: bytes, number: int) -> None:
    comment = f"{number:012}".encode()
    target.write_bytes(jpeg[:2] + b"\xff\xfe" + struct.pack(">H", len(comment) + 2) + comment + jpeg[2:])


def memory() -> dict[str, float]:
    """Megabytes of this process: its own pages, all its pages, and the most it ever had."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    own, total = (int(lines[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"own MB": round(own), "resident MB": round(total), "peak MB": round(peak)}


def in_process(work: Callable[..., dict[str, Any]], *arguments: object) -> dict[str, Any]:
    """What `work` returns, from a fresh process; with the memory that the process begins with."""
    receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=_send, args=(sender, work, arguments))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def _send(sender: Any, work: Callable[..., dict[str, Any]], arguments: tuple[object, ...]) -> None:
    begins_with = memory()
    sender.send({"begins with": begins_with, **work(*arguments)})


def list_and_prepare(root: Path) -> dict[str, Any]:
    start = time.perf_counter()
    folder = list_images(root)
    listed = time.perf_counter()
    prepared = prepare(folder, SIZE)
    end = time.perf_counter()
    return {
        "decoded": prepared.num_decoded,
        "reused": prepared.num_reused,
        "list, s": round(listed - start, 2),
        "prepare, s": round(end - listed, 2),
        "images/s": round(len(folder) / (end - listed)),
        "ends with": memory(),
        "pixels": str(prepared.manifest.pixels),
    }


def read_an_epoch(pixels: Path, num_images: int) -> dict[str, Any]:
    """Every image once, in windows in random order, as an epoch of training reads them."""
    images = MappedImages(pixels, (num_images, 3, SIZE, SIZE))
    windows = torch.randperm(num_images, generator=torch.Generator().manual_seed(0)).split(WINDOW)
    images[windows[0]].sum()
    memory_at = {"start": memory()}
    start = time.perf_counter()
    for k, window in enumerate(windows):
        images[window].sum()
        if k == len(windows) // 2:
            memory_at["middle"] = memory()
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 2), "images/s": round(num_images / seconds), **memory_at, "end": memory()}


def train_from_disk(pixels: Path, num_images: int) -> dict[str, Any]:
    """Steps of TripleE-Fourier with one member, its views made of images on disk."""
    recipe = make_recipe({"members": 1, "batch_size": 32}, find_recipe("digits-triplee-fourier"))
    images, device = MappedImages(pixels, (num_images, 3, SIZE, SIZE)), torch.device("cpu")
    spec = MemberSpec(recipe, seed=0, index=0, train_N=np.arange(num_images), num_classes=CLASSES)
    stack = Stack([spec], images, np.arange(num_images) % CLASSES, device, native_precision(recipe, device))
    memory_at: dict[str, Any] = {}
    num_done, start = 0, time.perf_counter()

    def after_step() -> bool:
        nonlocal num_done
        num_done += 1
        if num_done % (STEPS // 4) == 0:
            memory_at[f"step {num_done}"] = memory()
        return num_done == STEPS

    stack.train_epoch([0], EpochProgress.start(1), after_step)
    seconds = time.perf_counter() - start
    return {"steps": num_done, "views/s": round(num_done * recipe.batch_size * recipe.replay / seconds), **memory_at}


def compare_reading(pixels: Path, num_images: int) -> dict[str, Any]:
    """Microseconds per image of a random window, with the file in the page cache and without: ours and a memory map."""
    shape = (num_images, 3, SIZE, SIZE)
    ways = {  # mapped anew for each window: what stays mapped stays in memory
        "ours": lambda index: MappedImages(pixels, shape)[index],
        "memory map": lambda index: np.memmap(pixels, np.uint8, "r", shape=shape)[index.numpy()],
    }
    row: dict[str, Any] = {}
    for disk in ("warm", "cold"):
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for seed in range(7):
            for name, read in ways.items():
                index = torch.randint(num_images, (WINDOW,), generator=torch.Generator().manual_seed(seed))
                if disk == "cold":
                    drop_from_page_cache(pixels)
                else:
                    read(index)
                start = time.perf_counter()
                read(index)
                seconds[name].append(time.perf_counter() - start)
        row |= {f"{name}, {disk}, µs": round(float(np.median(s)) / WINDOW * 1e6, 2) for name, s in seconds.items()}
    return row


def drop_from_page_cache(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=600_000)
    num_images = parser.parse_args().images
    rows: list[dict[str, Any]] = []

    def report(what: str, result: dict[str, Any]) -> Path:
        pixels = result.pop("pixels", "")
        rows.append({"what": what, **result})
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
        return Path(pixels)

    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "tree"
        os.environ["TRIPLEE_CACHE"] = str(Path(scratch) / "cache")
        start = time.perf_counter()
        make_tree(root, num_images)
        shape = {"images": num_images, "domains": DOMAINS, "classes": CLASSES, "size": SIZE}
        report("the tree", {**shape, "making it, s": round(time.perf_counter() - start, 1)})
        pixels = report("prepare", in_process(list_and_prepare, root))
        report("load again, nothing changed", in_process(list_and_prepare, root))
        report("an epoch from disk", in_process(read_an_epoch, pixels, num_images))
        report("training from disk", in_process(train_from_disk, pixels, num_images))
        report("one window from disk", in_process(compare_reading, pixels, num_images))
        first = next(root.glob("*/*/*.jpg"))
        write_image(first, first.read_bytes(), 10**9)
        write_image(first.with_name("added.jpg"), first.read_bytes(), 10**9 + 1)
        report("load again, an image changed and one added", in_process(list_and_prepare, root))
    save("big_tree", rows)


if __name__ == "__main__":
    main()
