"""The rivals of a stack: the usual loop (Pillow views in worker processes, an eager step) and one eager member.

Each is a function that takes some steps of one member and waits for the device.
"""

import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, Subset

from measuring import DEVICE
from pillow_style import pillow_view
from triplee import SupConLoss
from triplee.augment import apply_draw
from triplee.augment.style import StyleTable
from triplee.engine.epoch import MemberSpec, Share
from triplee.engine.member import Member
from triplee.engine.stack import native_precision
from triplee.nets.network import build_network
from triplee.settings import Recipe

WORKERS = 12 if DEVICE.type == "cuda" else 0  # on two cores the loop's own process is as quick
ENDLESS = 1 << 40  # samples


class PillowViews(Dataset[tuple[Tensor, Tensor]]):
    """r views of a sample, each cropped, flipped, put through one of the 14 ops and normalised by itself."""

    def __init__(self, images_NCHW: Tensor, labels_N: np.ndarray, recipe: Recipe) -> None:
        self.pixels = images_NCHW.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels_N, self.recipe = labels_N, recipe

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor]:
        picture, r = Image.fromarray(self.pixels[k]), self.recipe.replay
        views = torch.stack([pillow_view(self._crop_and_flip(picture)) for _ in range(r)])
        return views, torch.full((r,), int(self.labels_N[k]))

    def _crop_and_flip(self, picture: Image.Image) -> Image.Image:
        if self.recipe.crop_area < 1:
            side = random.uniform(self.recipe.crop_area, 1) ** 0.5 * picture.width
            left, top = (random.uniform(0, picture.width - side) for _ in range(2))
            box = (left, top, left + side, top + side)
            picture = picture.resize(picture.size, Image.Resampling.BILINEAR, box=box)
        if self.recipe.flip and random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return picture


def join_samples(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    views, labels = zip(*samples, strict=True)
    return torch.cat(views), torch.cat(labels)


def pillow_batches(
    images_NCHW: Tensor, labels_N: np.ndarray, train_N: np.ndarray, recipe: Recipe
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of b·r views; the workers start here, and fill their queues while nobody asks."""
    dataset = Subset(PillowViews(images_NCHW, labels_N, recipe), train_N.tolist())
    workers = {"num_workers": WORKERS, "persistent_workers": True, "timeout": 60} if WORKERS else {}
    return iter(
        DataLoader(
            dataset,
            recipe.batch_size,
            sampler=RandomSampler(dataset, replacement=True, num_samples=ENDLESS),
            collate_fn=join_samples,
            pin_memory=DEVICE.type == "cuda",
            **workers,
        )
    )


def torchvision_backbone(name: str) -> nn.Module:
    """A ResNet up to its features."""
    import torchvision  # pyright: ignore[reportMissingImports]

    backbone = torchvision.models.get_model(name, weights=None)
    backbone.fc = nn.Identity()
    return backbone


def usual_loop(
    batches: Iterator[tuple[Tensor, Tensor]], recipe: Recipe, num_classes: int, steps: int, bfloat16: bool
) -> Callable[[], None]:
    """Eager steps as most people write them; `bfloat16`: as those do who care, autocast and channels-last."""
    memory_format = torch.channels_last if bfloat16 else torch.contiguous_format
    network = build_network(recipe, num_classes, 0, 0)
    if recipe.backbone.startswith("resnet"):
        network.backbone = torchvision_backbone(recipe.backbone)  # pyright: ignore[reportAttributeAccessIssue]  # not with our kernels
    network = network.to(DEVICE, memory_format=memory_format)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(network.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
    contrast = SupConLoss(recipe.temperature)

    def take() -> None:
        for _ in range(steps):
            views, labels = next(batches)
            views = views.to(DEVICE, non_blocking=True, memory_format=memory_format)
            labels = labels.to(DEVICE, non_blocking=True)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=bfloat16):
                features = network.backbone(views)
                logits, projections = network.classifier(features), network.head(features)  # pyright: ignore[reportOptionalCall]
            loss = F.cross_entropy(logits.float(), labels) + contrast(projections, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wait()

    return take


def eager_member(images_NCHW: Tensor, labels_N: np.ndarray, spec: MemberSpec, steps: int) -> Callable[[], None]:
    """The engine's own step, eagerly and for one member: resident images, the views of a batch at a time."""
    precision = native_precision(spec.recipe, DEVICE)
    member = Member(spec, DEVICE, precision)
    images, labels = images_NCHW.to(DEVICE), torch.from_numpy(labels_N).to(DEVICE)
    styles = StyleTable(spec.stylizer, images, spec.train_N, precision) if spec.stylizer else None
    share = Share.of(spec, 0)

    def take() -> None:
        for start, stop in zip(share.bounds[:steps], share.bounds[1 : steps + 1], strict=True):
            index_V = share.index_V[start:stop]
            views = apply_draw(images, index_V, share.draw[start:stop], styles)
            member.step(views, labels[torch.from_numpy(index_V).to(DEVICE)])
        wait()

    return take


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
