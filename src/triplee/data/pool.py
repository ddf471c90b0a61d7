"""The pool: all decoded images of a data set, as one uint8 tensor or on disk, with what is known of each.

Comes from the embedded digits or a folder; goes to the splitter (data/split.py) and, as pixels, to the engine.
Axes: N images, C channels, H height, W width.
"""

import os
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from triplee.settings import InputError


class MappedImages:
    """Images (N,3,H,W) that stay in a file of raw uint8; indexing reads those asked for, as a tensor on the host.

    Read, not memory-mapped: pages mapped count as memory of the process, and each fault waits for the disk alone.
    Announcing all rows first and then reading them was 20 to 30 times faster from a cold disk (bench/big_tree.py).
    The file is held open: a store that is replaced meanwhile stays readable here.
    """

    dtype, device = torch.uint8, torch.device("cpu")

    def __init__(self, file: Path, shape: tuple[int, ...]) -> None:
        self.file, self.shape = file, torch.Size(shape)
        self._row_bytes = self.shape[1:].numel()
        self._descriptor = os.open(file, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor | slice | int) -> Tensor:
        """As for a tensor: one image for an int, else as many as the slice or the 1-D int64 tensor asks for."""
        if isinstance(index, int):
            return self._read(self._rows(torch.tensor([index])))[0]
        if isinstance(index, slice):
            return self._read(np.arange(len(self))[index])
        return self._read(self._rows(index))

    def _rows(self, index_V: Tensor) -> np.ndarray:
        rows_V = index_V.cpu().numpy()
        if rows_V.dtype.kind != "i" or rows_V.ndim != 1:
            raise IndexError(f"images are indexed by whole numbers on one axis, not by {index_V.dtype} {rows_V.shape}")
        if len(rows_V) and not -len(self) <= rows_V.min() <= rows_V.max() < len(self):
            raise IndexError(f"an index is out of the range of {len(self)} images")
        return np.where(rows_V < 0, rows_V + len(self), rows_V)

    def _read(self, rows_V: np.ndarray) -> Tensor:
        images = np.empty((len(rows_V), self._row_bytes), np.uint8)
        order_V = np.argsort(rows_V, kind="stable")  # as they lie on disk
        places = list(zip(order_V.tolist(), (rows_V[order_V] * self._row_bytes).tolist(), strict=True))
        if hasattr(os, "posix_fadvise"):
            for _, offset in places:
                os.posix_fadvise(self._descriptor, offset, self._row_bytes, os.POSIX_FADV_WILLNEED)
        for place, offset in places:
            if os.preadv(self._descriptor, [images[place]], offset) != self._row_bytes:  # pyright: ignore[reportArgumentType]
                raise InputError(f"decoded images in {self.file} were cut off while in use: load the data again")
        return torch.from_numpy(images).view(len(rows_V), *self.shape[1:])


@dataclass(frozen=True)
class Pool:
    """Images and labels of all domains. `split_N`: where the data set itself puts an image, TRAIN, VAL or UNSPLIT."""

    name: str
    images_NCHW: Tensor | MappedImages  # uint8
    labels_N: np.ndarray  # int64, index into classes
    domains_N: np.ndarray  # int64, index into domains
    split_N: np.ndarray  # int8
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    fingerprint: str  # of the content: equal pools have equal fingerprints
    skipped: int = 0  # unreadable images left out on request
    notes: tuple[str, ...] = ()  # lines for people: what was passed over or left out
    root: str | None = None  # where a benchmark was found by its name

    def __len__(self) -> int:
        return len(self.labels_N)
