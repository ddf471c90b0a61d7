"""A member's network: backbone, linear classifier, and the projection head of the supervised contrast (§ "EReplayB").

Comes in: uint8 images (V,3,H,W), normalised here; goes out: logits, and in training also the head's output.
The head is dropped at test time: `forward` never touches it.
"""

import torch
from torch import Tensor, nn

from triplee.nets.digit_cnn import DigitCNN
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


class Network(nn.Module):
    """uint8 images in, logits out."""

    def __init__(self, recipe: Recipe, num_classes: int) -> None:
        super().__init__()
        self.backbone = DigitCNN(recipe.image_size)
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

    def features(self, images_u8: Tensor) -> Tensor:
        """Pooled features (V, num_features) of clean or augmented images."""
        images = torch.addcmul(self.shift, images_u8.float(), self.scale)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self.backbone(images.contiguous(memory_format=torch.channels_last))

    def forward(self, images_u8: Tensor) -> Tensor:
        return self.classifier(self.features(images_u8))

    def forward_train(self, images_u8: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits and, where the recipe contrasts and the batch norm has two views to average, the projection."""
        features = self.features(images_u8)
        project = self.head is not None and len(features) > 1
        return self.classifier(features), self.head(features) if project else None  # pyright: ignore[reportOptionalCall]


def build_network(recipe: Recipe, num_classes: int, seed: int, member: int) -> Network:
    """A member's network with the initial weights of (seed, member), built on the CPU so that devices agree."""
    if not 16 <= recipe.image_size <= 128:  # its features, and with them its head, grow with the square of the size
        raise InputError(f"image_size {recipe.image_size} does not fit {recipe.backbone}: 16 to 128")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "weights", member))
        return Network(recipe, num_classes).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
