"""A member's network: backbone, linear classifier, and the projection head of the supervised contrast (§ "EReplayB").

Comes in: uint8 images (V,3,H,W), normalised here; goes out: logits, and in training also the head's output.
The head is dropped at test time: `forward` never touches it.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from triplee.nets.digit_cnn import DigitCNN
from triplee.nets.fused import fits_stem, fused_stem
from triplee.nets.mobilenet import MobileNetV2
from triplee.nets.resnet import ResNet, resnet18, resnet50
from triplee.nets.timm_backbone import TimmBackbone
from triplee.nets.weights import load_weights
from triplee.seeding import torch_seed
from triplee.settings import InputError, Recipe

PROJECTION_SIZE = 128


class ProjectionHead(nn.Sequential):
    """linear → batch norm → ReLU → linear to 128; the loss normalises to length 1."""

    def __init__(self, num_features: int) -> None:
        super().__init__(
            nn.Linear(num_features, num_features),
            nn.BatchNorm1d(num_features),
            nn.ReLU(inplace=True),
            nn.Linear(num_features, PROJECTION_SIZE),
        )


def make_backbone(recipe: Recipe) -> DigitCNN | ResNet | MobileNetV2 | TimmBackbone:
    """The recipe's backbone with random weights."""
    if recipe.backbone.startswith("timm:"):
        return TimmBackbone(recipe.backbone.removeprefix("timm:"), recipe.image_size)
    low, high = {"digit-cnn": DigitCNN, "mobilenet-v2": MobileNetV2}.get(recipe.backbone, ResNet).sizes
    if not low <= recipe.image_size <= high:
        raise InputError(f"image_size {recipe.image_size} does not fit {recipe.backbone}: {low} to {high}")
    if recipe.backbone == "digit-cnn":
        return DigitCNN(recipe.image_size)
    return {"resnet18": resnet18, "resnet50": resnet50, "mobilenet-v2": MobileNetV2}[recipe.backbone]()


class Network(nn.Module):
    """uint8 images in, logits out. Its weights are random: `build_network` adds pretrained ones."""

    def __init__(self, recipe: Recipe, num_classes: int) -> None:
        super().__init__()
        self.backbone = make_backbone(recipe)
        self.classifier = nn.Linear(self.backbone.num_features, num_classes)
        # Near zero, so that training starts from "all classes alike". With torch's larger default, batches of four
        # samples stay near chance (cross-entropy above 2.2) for 1,600 steps on digits, against 400 (lr 0.01, r = 4).
        nn.init.normal_(self.classifier.weight, std=0.001)
        nn.init.zeros_(self.classifier.bias)
        self.head = ProjectionHead(self.backbone.num_features) if recipe.supcon_weight > 0 else None
        # Scale and shift so that normalising is one multiply-add on 0..255.
        mean, std = torch.tensor(self.backbone.mean), torch.tensor(self.backbone.std)
        self.register_buffer("scale", (1 / (255 * std)).view(3, 1, 1), persistent=False)
        self.register_buffer("shift", (-mean / std).view(3, 1, 1), persistent=False)
        batch_norms = [module for module in self.backbone.modules() if isinstance(module, _BatchNorm)]
        # Those that train: frozen ones are tested with the statistics that they came with.
        self.frozen, self.batch_norms = (batch_norms, []) if recipe.batch_norm == "frozen" else ([], batch_norms)
        for layer in self.frozen:
            layer.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> "Network":
        """As ever, but frozen batch norm stays with its running statistics."""
        super().train(mode)
        for layer in self.frozen:
            layer.eval()
        return self

    @torch.no_grad()
    def estimate_statistics(self, batches: Iterable[Tensor]) -> None:
        """Have batch norm normalise by the statistics of these images' features: their mean over the batches.

        What it gathers in training is of other features: those of small batches, each normalised by itself in every
        layer before. With b = 4 networks lose up to 10 points of source validation by that (docs/results.md).
        """
        if not self.batch_norms:
            return
        for layer in self.batch_norms:
            layer.reset_running_stats()  # a NaN of before would stay
        momenta = [layer.momentum for layer in self.batch_norms]
        self.train()
        for count, images_u8 in enumerate(batches, start=1):
            for layer in self.batch_norms:
                layer.momentum = 1 / count
            self.features(images_u8)
        for layer, momentum in zip(self.batch_norms, momenta, strict=True):
            layer.momentum = momentum

    def features(self, images_u8: Tensor) -> Tensor:
        """Pooled features (V, num_features) of clean or augmented images."""
        backbone = self.backbone
        if isinstance(backbone, ResNet) and fits_stem(backbone.conv1, backbone.bn1, images_u8):
            pixels = fused_stem(backbone.conv1, backbone.bn1, images_u8, self.scale, self.shift)  # pyright: ignore[reportArgumentType]
            return backbone.after_stem(pixels)
        images = torch.addcmul(self.shift, images_u8.float(), self.scale)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return backbone(images.contiguous(memory_format=torch.channels_last))

    def forward(self, images_u8: Tensor) -> Tensor:
        return self.classifier(self.features(images_u8))

    def forward_train(self, images_u8: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and, where the recipe contrasts and the batch norm has two views to average, the projection."""
        if len(images_u8) > 1:
            features = self.features(images_u8)
        else:  # one view has no spread: batch norm falls back on its running statistics
            self.backbone.eval()
            features = self.features(images_u8)
            self.train()
        project = self.head is not None and len(features) > 1
        return self.classifier(features), self.head(features) if project else None  # pyright: ignore[reportOptionalCall]


def build_network(recipe: Recipe, num_classes: int, seed: int, member: int) -> Network:
    """A member's network, built on the CPU so that devices agree: what is not pretrained comes from (seed, member)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "weights", member))
        network = Network(recipe, num_classes)
        if recipe.weights != "none":
            load_weights(network.backbone, recipe)
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
