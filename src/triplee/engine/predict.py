"""Predictions for image files, as a stream: processes decode, batches go through the network, results come in order.

Comes in: a Classifier and files, or a folder that fills; goes out: batches of predictions. However many files there
are, only a few batches of pixels are in memory.
"""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from triplee.data.decode import BadImage
from triplee.data.folder import SUFFIXES
from triplee.data.reading import read_images
from triplee.data.watch import Watch, images_below
from triplee.engine.classifier import Classifier, Prediction
from triplee.settings import InputError

POLL_SECONDS = 0.5

Batch = list[tuple[Path, Prediction]]


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The files named, and the images in the folders named, at any depth."""
    return [file for path in paths for file in _images_of(path)]


def _images_of(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(images_below(path))
        if not found:
            raise InputError(f"{path} has no images (looked for {', '.join(sorted(SUFFIXES))})")
        return found
    if not path.exists():
        raise InputError(f"{path} does not exist")
    return [path]


def predict_files(
    classifier: Classifier, files: Sequence[Path], on_bad: Callable[[BadImage], None]
) -> Generator[Batch, None, None]:
    """Predictions for the files, in order, batch by batch; `on_bad` is told of those that cannot be read, or raises.

    On a CPU batches go through the network side by side, a thread each: threads that share a batch wait for each other,
    and for the processes that decode.
    """
    num_threads = torch.get_num_threads()
    num_batches = num_threads if classifier.device.type == "cpu" else 1
    per_batch = max(1, min(classifier.batch_size, -(-len(files) // num_batches)))
    pending: deque[tuple[list[Path], Future[list[Prediction]]]] = deque()

    def next_done() -> Batch:
        batch, predictions = pending.popleft()
        return list(zip(batch, predictions.result(), strict=True))

    try:
        with ThreadPoolExecutor(num_batches, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            with contextlib.closing(_decode(files, classifier.recipe.image_size, per_batch, on_bad)) as batches:
                for batch, pixels_NCHW in batches:
                    pending.append((batch, threads.submit(classifier.judge, pixels_NCHW)))
                    if len(pending) > num_batches:
                        yield next_done()
            while pending:
                yield next_done()
    finally:
        torch.set_num_threads(num_threads)


def _decode(
    files: Sequence[Path], image_size: int, per_batch: int, on_bad: Callable[[BadImage], None]
) -> Generator[tuple[list[Path], Tensor], None, None]:
    """The files that can be read with their pixels (N,3,H,W), `per_batch` at a time."""
    batch: list[Path] = []
    pixels_NCHW = torch.empty((0, 3, image_size, image_size), dtype=torch.uint8)
    with contextlib.closing(read_images([os.fspath(file) for file in files], image_size)) as images:
        for file, image in zip(files, images, strict=True):
            if image.pixels is None:
                on_bad(BadImage(file, image.bad or ""))
                continue
            if not batch:
                pixels_NCHW = torch.empty((per_batch, 3, image_size, image_size), dtype=torch.uint8)
            pixels_NCHW[len(batch)].view(-1).numpy()[:] = np.frombuffer(image.pixels, np.uint8)
            batch.append(file)
            if len(batch) == per_batch:
                yield batch, pixels_NCHW
                batch = []
    if batch:
        yield batch, pixels_NCHW[: len(batch)]


def predict_arriving(
    classifier: Classifier, folder: Path, on_bad: Callable[[BadImage], None], stop: threading.Event
) -> Generator[Batch, None, None]:
    """Predictions for the images of a folder, those there and those to come, until `stop` is set."""
    watch = Watch(folder)

    def on_unreadable(bad: BadImage) -> None:
        if not watch.put_back(bad.source):
            on_bad(bad)

    while not stop.is_set():
        if files := watch.poll():
            yield from predict_files(classifier, files, on_unreadable)
        stop.wait(POLL_SECONDS)
