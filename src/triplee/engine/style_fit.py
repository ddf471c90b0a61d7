"""Fits a stylizer on some images (§ "Style-based augmentation").

A decoder (and an encoder where none is pretrained) learns to undo AdaIN: what it makes shall have the features that
were moved, and at every stage the style's statistics; from features left alone it shall make the image again.
Comes in: images and which of them may be read; goes out: a Stylizer. Axes: N images, B images of a step.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from triplee.augment.style import channel_statistics, move_statistics
from triplee.data.pool import MappedImages
from triplee.nets.mobilenet import MobileNetV2
from triplee.nets.network import make_backbone
from triplee.nets.resnet import ResNet
from triplee.nets.stylizer import ENCODERS, Encoder, MobileNetEncoder, ResNetEncoder, SmallEncoder, Stylizer, VGGEncoder
from triplee.nets.stylizer_file import freeze, load_vgg
from triplee.nets.weights import load_weights
from triplee.runfolder import digest_tensors
from triplee.seeding import generator, torch_seed
from triplee.settings import WEIGHT_SUFFIXES, InputError, Recipe, make_recipe, nearest

STEPS = 600
CROP = 96  # the part of larger images that a step looks at: a stylizer has no fixed size
BATCH_PIXELS, MOST_IMAGES = 8 * CROP * CROP, 16
RATE = 1e-3  # falls to a tenth
STYLE_WEIGHT, PIXEL_WEIGHT = 1.0, 5.0  # beside the content's 1
JUDGED_IMAGES = 64

Progress = Callable[[int, int], bool]  # steps done and in all; gives whether to stop


class FitStopped(Exception):
    """The fit was asked to stop; nothing of it is kept."""


@dataclass(frozen=True)
class StyleFit:
    """What a fit depends on, apart from the images."""

    encoder: str  # one of ENCODERS
    weights: str  # of the encoder
    steps: int  # of the decoder; an encoder that learns takes half as many first
    seed: int = 0

    @classmethod
    def for_recipe(cls, recipe: Recipe) -> "StyleFit":
        """On the recipe's own backbone where that is pretrained and has one; else a small encoder learns too."""
        if recipe.weights != "none" and recipe.backbone in ENCODERS:
            return cls(recipe.backbone, recipe.weights, STEPS)
        return cls("small", "none", STEPS)

    def build(self) -> Stylizer:
        """The stylizer as it is before the first step."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.seed, "stylizer"))
            return Stylizer(self.encoder, self._build_encoder())

    def _build_encoder(self) -> Encoder:
        if self.encoder == "small":
            return SmallEncoder()
        if self.encoder not in ENCODERS:
            raise InputError(f"unknown encoder {self.encoder!r}: {nearest(self.encoder, ENCODERS)}")
        if self.encoder == "vgg19":
            if not self.weights.endswith(WEIGHT_SUFFIXES):
                raise InputError("the vgg19 encoder needs vgg_normalised.pth: name it with --weights FILE")
            vgg = VGGEncoder()
            load_vgg(vgg, Path(self.weights))
            return vgg
        recipe = make_recipe({"backbone": self.encoder, "weights": self.weights, "image_size": 224})
        backbone = make_backbone(recipe)
        load_weights(backbone, recipe)
        if isinstance(backbone, MobileNetV2):
            return MobileNetEncoder(backbone)
        assert isinstance(backbone, ResNet)
        return ResNetEncoder(backbone)

    def fingerprint(self) -> dict[str, Any]:
        """What tells one fit from another: of the weights what is in them, not where they lie."""
        return {**asdict(self), "weights": digest_tensors(self.build().encoder.state_dict(), {})}


def fit_stylizer(
    images_NCHW: Tensor | MappedImages, index_N: np.ndarray, fit: StyleFit, device: torch.device, on_progress: Progress
) -> Stylizer:
    """A stylizer for images like those of `index_N`; no others are read."""
    stylizer = fit.build().to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    stylizer.encoder.requires_grad_(stylizer.encoder.learns).eval()
    encoder_steps = fit.steps // 2 if stylizer.encoder.learns else 0
    rng = generator(fit.seed, "stylizer images")
    side = min(CROP, *images_NCHW.shape[2:])
    num_images = min(MOST_IMAGES, BATCH_PIXELS // side**2)
    done = 0

    def batch() -> Tensor:
        images = images_NCHW[torch.from_numpy(rng.choice(index_N, num_images))]
        top, left = (int(rng.integers(whole - side + 1)) for whole in images_NCHW.shape[2:])
        return _floats(images[:, :, top : top + side, left : left + side], device)

    def learn(network: nn.Module, steps: int, loss: Callable[[], Tensor]) -> None:
        nonlocal done
        optimizer = torch.optim.Adam(network.parameters(), RATE)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = RATE * (1 - 0.9 * step / steps)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            done += 1
            if on_progress(done, encoder_steps + fit.steps):
                raise FitStopped

    learn(stylizer, encoder_steps, lambda: _pixel_loss(stylizer, batch()))
    stylizer.encoder.requires_grad_(False)
    learn(stylizer.decoder, fit.steps, lambda: _decoder_loss(stylizer, batch(), batch()))
    return freeze(stylizer)


def _floats(images_u8: Tensor, device: torch.device) -> Tensor:
    return (images_u8.to(device).float() / 255).contiguous(memory_format=torch.channels_last)


def _pixel_loss(stylizer: Stylizer, images: Tensor) -> Tensor:
    return (stylizer.decode(stylizer.encode(images), *images.shape[2:]) - images).abs().mean()


def _decoder_loss(stylizer: Stylizer, content: Tensor, style: Tensor) -> Tensor:
    with torch.no_grad():
        features = stylizer.encode(content)
        targets = [channel_statistics(stage) for stage in stylizer.encoder(style)]
        moved = move_statistics(features, targets[-1], torch.ones(len(content), device=content.device))
    made, again = stylizer.decode(torch.cat([moved, features]), *content.shape[2:]).chunk(2)
    stages = stylizer.encoder(made)
    content_loss = (stages[-1] - moved).square().mean() / moved.var()
    style_loss = torch.stack(
        [
            (channel_statistics(stage) - target).square().mean() / target.square().mean()
            for stage, target in zip(stages, targets, strict=True)
        ]
    ).sum()
    return content_loss + STYLE_WEIGHT * style_loss + PIXEL_WEIGHT * (again - content).abs().mean()


@torch.inference_mode()
def judge_stylizer(
    stylizer: Stylizer, images_NCHW: Tensor | MappedImages, index_N: np.ndarray, device: torch.device
) -> dict[str, float]:
    """How well it works on some of the images, each in the style of the next.

    `psnr`: of images that were encoded and decoded, in dB, mean; `style_error`: how far the statistics of restyled
    images are from the style's, and `style_distance` how far those of the images were, as shares of their length.
    """
    chosen = generator(0, "judged images").choice(index_N, min(JUDGED_IMAGES, len(index_N)), replace=False)
    images = [_floats(images_NCHW[torch.from_numpy(one)], device) for one in chosen.reshape(-1, 1)]
    height, width = images_NCHW.shape[2:]
    psnr, distances = [], {"style_error": 0.0, "style_distance": 0.0, "length": 0.0}
    for content, style in zip(images, [*images[1:], images[0]], strict=True):
        features, target = stylizer.encode(content), channel_statistics(stylizer.encode(style))
        again = stylizer.decode(features, height, width).clamp(0, 1)
        psnr.append(-10 * (again - content).square().mean().clamp_min(1e-10).log10().item())
        moved = move_statistics(features, target, torch.ones(1, device=device))
        made = (stylizer.decode(moved, height, width) * 255).round().clamp(0, 255) / 255
        for name, other in (("style_error", stylizer.encode(made)), ("style_distance", features)):
            distances[name] += (channel_statistics(other) - target).square().sum().item()
        distances["length"] += target.square().sum().item()
    length = distances.pop("length")
    shares = {name: round((distance / length) ** 0.5, 4) for name, distance in distances.items()}
    return {"psnr": round(float(np.mean(psnr)), 2), **shares}
