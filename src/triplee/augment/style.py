"""The style op (§ "Style-based augmentation"): AdaIN, which gives an image's features another image's statistics.

Comes in: uint8 views, and for each an image to take the style from; goes out: the views restyled, in place. The
statistics of all images that may lend their style are taken once, so that a view costs one encode and one decode.
Axes: V views, M of them restyled, R images with statistics, C channels of the encoder.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

EPSILON = 1e-5  # of a channel's variance: a plain image has none
# Pixels encoded at once. On a CPU that is one photo or 16 digits: always as many, because other numbers of images
# are added up in another order, and a resumed run would see other views.
CHUNK_PIXELS = {"cpu": 16 * 32 * 32, "cuda": 64 * 224 * 224}


class Restyler(Protocol):
    """An encoder and its decoder, on the device of the images; images are floats from 0 to 1."""

    def encode(self, images: Tensor) -> Tensor: ...
    def decode(self, features: Tensor, height: int, width: int) -> Tensor: ...


class Images(Protocol):
    """What views are made of: a uint8 tensor (N,3,H,W), or what stands in for one that fits no memory."""

    @property
    def device(self) -> torch.device: ...
    @property
    def shape(self) -> torch.Size: ...
    def __getitem__(self, index: Tensor, /) -> Tensor: ...


def channel_statistics(features: Tensor) -> Tensor:
    """Mean and standard deviation of each channel of features (V,C,h,w), as float32 (V,2,C)."""
    variance, mean = torch.var_mean(features.float(), (2, 3), correction=0)
    return torch.stack([mean, (variance + EPSILON).sqrt()], 1)


def move_statistics(features: Tensor, target_V2C: Tensor, strength_V: Tensor) -> Tensor:
    """AdaIN: features with the target's mean and deviation by channel; a strength below 1 stops on the way there."""
    mean, std = channel_statistics(features)[..., None, None].unbind(1)
    target_mean, target_std = target_V2C[..., None, None].unbind(1)
    moved = (features - mean) / std * target_std + target_mean
    return torch.lerp(features.float(), moved, strength_V.view(-1, 1, 1, 1))


class StyleTable:
    """A stylizer, and the statistics of the images that lend their style."""

    def __init__(
        self, stylizer: Restyler, images_NCHW: Images, index_R: np.ndarray, precision: str = "float32"
    ) -> None:
        self.stylizer, self.device, self.precision = stylizer, images_NCHW.device, precision
        self.row_N = np.full(images_NCHW.shape[0], -1)
        self.row_N[index_R] = np.arange(len(index_R))
        statistics = []
        for chunk in self._chunks(index_R, images_NCHW.shape[2:]):
            features = self._encode(images_NCHW[torch.from_numpy(chunk).to(self.device)])
            statistics.append(channel_statistics(features))
        self.statistics_R2C = torch.cat(statistics)[: len(index_R)]

    @torch.inference_mode()
    def restyle_views(
        self, views_VCHW: Tensor, where_M: np.ndarray, partner_M: np.ndarray, strength_M: np.ndarray
    ) -> None:
        """The op in place on the views `where_M`, each in the style of an image and with a strength of its own."""
        height, width = views_VCHW.shape[2:]
        places = np.stack([where_M, self.row_N[partner_M]])
        assert places.min(initial=0) >= 0, "an image lends its style without statistics"
        for chunk in self._chunks(np.arange(len(where_M)), views_VCHW.shape[2:]):
            where, row = torch.from_numpy(places[:, chunk]).to(self.device)
            strength = torch.from_numpy(strength_M[chunk]).to(self.device, torch.float32)
            moved = move_statistics(self._encode(views_VCHW[where]), self.statistics_R2C[row], strength)
            with self._autocast():
                images = self.stylizer.decode(moved, height, width)
            views_VCHW[where] = (images.float() * 255).round_().clamp_(0, 255).to(torch.uint8)

    @torch.inference_mode()
    def _encode(self, images_u8: Tensor) -> Tensor:
        with self._autocast():
            return self.stylizer.encode((images_u8.float() / 255).contiguous(memory_format=torch.channels_last))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def _chunks(self, index: np.ndarray, size: torch.Size) -> Iterator[np.ndarray]:
        """The index in pieces; on a CPU the last is filled up with its own first entries, to the others' length."""
        length = max(1, CHUNK_PIXELS.get(self.device.type, CHUNK_PIXELS["cpu"]) // size.numel())
        for start in range(0, len(index), length):
            piece = index[start : start + length]
            yield piece if self.device.type != "cpu" else np.resize(piece, length)
