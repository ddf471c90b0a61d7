"""EReplayD's prediction: the mean of the members' softmax outputs (§ "EReplayD").

Comes in: any classifiers with equal inputs and outputs; goes out: class probabilities.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Ensemble(nn.Module):
    """Mean softmax over models: images in, probabilities (N, num_classes) out."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def member_probabilities(self, images: Tensor) -> Tensor:
        """Each member's softmax: (M, N, num_classes)."""
        return torch.stack([model(images).float().softmax(1) for model in self.models])

    def forward(self, images: Tensor) -> Tensor:
        return self.member_probabilities(images).mean(0)
