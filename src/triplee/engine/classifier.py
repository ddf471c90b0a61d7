"""A trained run as one module: preprocessing, members, calibration and class names (§ "EReplayD", its prediction).

Comes in: uint8 images of any size, files or Pillow images; goes out: calibrated probabilities, or a Prediction of each.
Axes: M members, N images, C channels or classes, H height, W width.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from triplee.data.decode import decode_image, decode_picture
from triplee.data.pool import MappedImages
from triplee.engine.calibration import temper
from triplee.engine.ensemble import Ensemble
from triplee.nets.network import Network
from triplee.settings import InputError, Recipe, make_recipe

BATCH_BYTES = 4 << 20

ImageLike = str | Path | Image.Image | Tensor


@dataclass(frozen=True)
class Prediction:
    """What the ensemble says of one image. `disagreement`: the share of members that would say another class."""

    label: str
    confidence: float  # calibrated, where the run was
    disagreement: float


class Classifier(nn.Module):
    """The ensemble of a run's selected epoch. As a module: uint8 images (N,3,H,W) in, probabilities (N,C) out."""

    def __init__(
        self,
        networks: Sequence[nn.Module],
        recipe: Recipe,
        config: dict[str, Any],
        *,
        epoch: int,
        temperature: float = 1.0,
        precision: str = "float32",
        result: dict[str, Any] | None = None,
    ) -> None:
        """`result`: what the run measured, where it has been finished."""
        super().__init__()
        self.ensemble = Ensemble(networks)
        self.recipe, self.config, self.epoch = recipe, config, epoch
        self.temperature, self.precision, self.result = temperature, precision, result
        self.eval()

    @property
    def precision(self) -> str:
        """float32 or bfloat16; may be set."""
        return self._precision

    @precision.setter
    def precision(self, precision: str) -> None:
        if precision not in ("float32", "bfloat16"):
            raise InputError(f"precision is float32 or bfloat16, not {precision!r}")
        self._precision = precision

    @property
    def classes(self) -> list[str]:
        return self.config["classes"]

    @property
    def networks(self) -> list[Network]:
        return list(self.ensemble.models)  # pyright: ignore[reportReturnType]

    @property
    def num_members(self) -> int:
        return len(self.ensemble.models)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def member(self, index: int) -> "Classifier":
        """One member by itself, uncalibrated: the temperature is the ensemble's."""
        if not 0 <= index < self.num_members:
            raise InputError(f"member {index} does not exist: members are counted from 0 to {self.num_members - 1}")
        recipe = make_recipe({"members": 1}, self.recipe)
        networks = [self.ensemble.models[index]]
        return Classifier(networks, recipe, self.config, epoch=self.epoch, precision=self.precision)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Calibrated probabilities; images that are not of the network's size are squashed to it, as files are."""
        _check_pixels(images_NCHW, 4, "a model takes images as a uint8 tensor of shape (N,3,H,W)")
        with self.autocast():
            probabilities_NC = self.ensemble(self.resize(images_NCHW.to(self.device)))
        return temper(probabilities_NC, self.temperature)

    def resize(self, images_NCHW: Tensor) -> Tensor:
        """To image_size², within one grey level of what Pillow makes of them; not rounded, which would jump at ties."""
        size = (self.recipe.image_size, self.recipe.image_size)
        return F.interpolate(images_NCHW.float(), size, mode="bilinear", antialias=True)

    @torch.no_grad()
    def teach(self, views_NCHW: Tensor) -> Tensor:
        """The mean softmax (N,C) of the members on views of the right size: what a student learns."""
        with self.autocast():
            return self.ensemble(views_NCHW)

    @torch.inference_mode()
    def probabilities(self, images_NCHW: Tensor | MappedImages, index_N: np.ndarray) -> Tensor:
        """Each member's softmax (M,N,C) on the images `index_N`, which have the right size, in batches, on the host."""
        batches = torch.from_numpy(index_N).split(max(1, BATCH_BYTES // math.prod(images_NCHW.shape[1:])))
        return torch.cat([self.member_probabilities(images_NCHW[batch]) for batch in batches], 1)

    @torch.inference_mode()
    def member_probabilities(self, images_NCHW: Tensor) -> Tensor:
        """Each member's softmax (M,N,C) on one batch of images of the right size, uncalibrated, on the host."""
        with self.autocast():
            return self.ensemble.member_probabilities(images_NCHW.to(self.device)).cpu()

    def predict(self, images: ImageLike | Sequence[ImageLike]) -> list[Prediction]:
        """A Prediction for every image, in order.

        An image is a path, a Pillow image or a uint8 tensor (3,H,W), of any size; several are a sequence of such, each
        of its own kind and size, or a tensor (N,3,H,W).
        """
        if isinstance(images, str | Path | Image.Image) or (isinstance(images, Tensor) and images.ndim == 3):
            images = [images]
        predictions: list[Prediction] = []
        for start in range(0, len(images), self.batch_size):
            batch = torch.stack([self._to_pixels(image) for image in images[start : start + self.batch_size]])
            predictions += self.judge(batch)
        return predictions

    @property
    def batch_size(self) -> int:
        """Images predicted at once: few enough for decoding to keep ahead, and for a result to appear soon."""
        return max(1, min(64, BATCH_BYTES // (3 * self.recipe.image_size**2)))

    def judge(self, images_NCHW: Tensor) -> list[Prediction]:
        """Predictions for one batch of images of the right size."""
        members_MNC = self.member_probabilities(images_NCHW)
        confidence, chosen = temper(members_MNC.mean(0), self.temperature).max(1)
        disagreement = (members_MNC.argmax(2) != chosen).double().mean(0)
        rows = zip(chosen.tolist(), confidence.tolist(), disagreement.tolist(), strict=True)
        return [Prediction(self.classes[c], p, d) for c, p, d in rows]

    def _to_pixels(self, image: ImageLike) -> Tensor:
        if not isinstance(image, str | Path | Image.Image):
            _check_pixels(image, 3, "images are uint8 tensors of shape (3,H,W) or (N,3,H,W), Pillow images or files")
            return self.resize(image[None])[0].round().to("cpu", torch.uint8)
        size = self.recipe.image_size
        pixels = decode_picture(image, size) if isinstance(image, Image.Image) else decode_image(Path(image), size)
        return torch.from_numpy(pixels)

    def autocast(self) -> AbstractContextManager[object]:
        """Where the networks compute, in the classifier's precision."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def _check_pixels(images: object, num_axes: int, wanted: str) -> None:
    """Floats and grey would pass through the networks, and come out as probabilities that mean nothing."""
    if not isinstance(images, Tensor):
        raise InputError(f"{wanted}, not {type(images).__name__}")
    if images.dtype != torch.uint8 or images.ndim != num_axes or images.shape[-3] != 3:
        raise InputError(f"{wanted}, not {images.dtype} {tuple(images.shape)}")
