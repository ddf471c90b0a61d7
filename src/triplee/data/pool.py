"""The pool: all decoded images of a data set as one resident uint8 tensor, with what is known of each.

Comes from the embedded digits or a folder; goes to the splitter (data/split.py) and, as pixels, to the engine.
Axes: N images, C channels, H height, W width.
"""

from dataclasses import dataclass

import numpy as np
import torch

TRAIN, VAL, UNSPLIT = 0, 1, 2


@dataclass(frozen=True)
class Pool:
    """Images and labels of all domains. `split_N`: where the data set itself puts an image, TRAIN, VAL or UNSPLIT."""

    name: str
    images_NCHW: torch.Tensor  # uint8
    labels_N: np.ndarray  # int64, index into classes
    domains_N: np.ndarray  # int64, index into domains
    split_N: np.ndarray  # int8
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    fingerprint: str  # of the content: equal pools have equal fingerprints
    skipped: int = 0  # unreadable images left out on request

    def __len__(self) -> int:
        return len(self.labels_N)
