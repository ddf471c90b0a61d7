"""Predictions for image files, as a stream: processes decode, batches go through the network, results come in order.

Comes in: a Classifier and files, or a folder that fills; goes out: batches of predictions. However many files there
are, only a few batches of pixels are in memory.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

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


def predict_files(classifier: Classifier, files: Sequence[Path], on_bad: Callable[[BadImage], None]) -> Iterator[Batch]:
    """Predictions for the files, in order, batch by batch; `on_bad` is told of those that cannot be read, or raises."""
    size, per_batch = classifier.recipe.image_size, classifier.batch_size
    pixels_NCHW = torch.empty((per_batch, 3, size, size), dtype=torch.uint8)
    rows = pixels_NCHW.view(per_batch, -1).numpy()
    waiting: list[Path] = []
    with contextlib.closing(read_images([os.fspath(file) for file in files], size)) as images:
        for file, image in zip(files, images, strict=True):
            if image.pixels is None:
                on_bad(BadImage(file, image.bad or ""))
                continue
            rows[len(waiting)] = np.frombuffer(image.pixels, np.uint8)
            waiting.append(file)
            if len(waiting) == per_batch:
                yield list(zip(waiting, classifier.judge(pixels_NCHW), strict=True))
                waiting = []
    if waiting:
        yield list(zip(waiting, classifier.judge(pixels_NCHW[: len(waiting)]), strict=True))


def predict_arriving(
    classifier: Classifier, folder: Path, on_bad: Callable[[BadImage], None], stop: threading.Event
) -> Iterator[Batch]:
    """Predictions for the images of a folder, those there and those to come, until `stop` is set."""
    watch = Watch(folder)

    def on_unreadable(bad: BadImage) -> None:
        if not watch.put_back(bad.source):
            on_bad(bad)

    while not stop.is_set():
        if files := watch.poll():
            yield from predict_files(classifier, files, on_unreadable)
        else:
            stop.wait(POLL_SECONDS)
