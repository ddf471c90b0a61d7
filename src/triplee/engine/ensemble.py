"""EReplayD's prediction: the mean of the members' softmax outputs (§ "EReplayD").

Comes in: any classifiers with equal inputs and outputs; goes out: class probabilities.
Axes: M members, N images, C classes.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from triplee.settings import InputError


def accuracies(probabilities_MNC: Tensor, labels_N: np.ndarray) -> tuple[float, list[float]]:
    """Top-1 of the ensemble and of each member alone, in percent, from the members' softmax outputs."""
    outputs = torch.cat([probabilities_MNC.mean(0, keepdim=True), probabilities_MNC])
    is_right = outputs.argmax(2) == torch.from_numpy(labels_N).to(outputs.device)
    ensemble, *members = (100 * is_right.double().mean(1)).tolist()
    return ensemble, members


class Ensemble(nn.Module):
    """Mean softmax over models: images in, probabilities (N, num_classes) out."""

    def __init__(self, models: Iterable[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        if not self.models:
            raise InputError("an ensemble has at least one model")

    def member_probabilities(self, images: Tensor) -> Tensor:
        """Each member's softmax: (M, N, num_classes)."""
        return torch.stack([model(images).float().softmax(1) for model in self.models])

    def forward(self, images: Tensor) -> Tensor:
        return self.member_probabilities(images).mean(0)
