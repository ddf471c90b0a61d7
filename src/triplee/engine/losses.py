"""Where a batch becomes a loss: cross-entropy plus supervised contrast (Eq. 1 and 2).

Comes in: a network, uint8 views and their labels; goes out: one scalar with its two parts.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triplee.nets.network import Network
from triplee.settings import InputError, Recipe


class SupConLoss(nn.Module):
    """Supervised contrast (Eq. 1, mean over anchors): features (N,d), normalised here, and labels (N,) to a scalar.

    Positives of an anchor are all other views of its class; an anchor without one contributes zero.
    """

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        if not temperature > 0:
            raise InputError(f"the temperature is above 0, not {temperature}")
        self.temperature = temperature

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        if len(labels) < 2:
            return features.sum() * 0.0
        if features.dtype in (torch.bfloat16, torch.float16):
            features = features.float()
        directions = F.normalize(features, dim=1)
        similarity = directions @ directions.T / self.temperature
        itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        positive = (labels[:, None] == labels[None, :]) & ~itself
        log_probability = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
        total = log_probability.masked_fill(~positive, 0.0).sum(1)
        return -(total / positive.sum(1).clamp(min=1)).mean()


class Losses(NamedTuple):
    total: Tensor
    cross_entropy: Tensor
    contrast: Tensor


def replay_loss(network: Network, views_u8: Tensor, labels: Tensor, recipe: Recipe, autocast: torch.autocast) -> Losses:
    """EReplayB's objective (Eq. 2): both losses see all b·r views."""
    with autocast:
        logits, projection = network.forward_train(views_u8)
    cross_entropy = F.cross_entropy(logits.float(), labels)
    if projection is None:
        return Losses(cross_entropy, cross_entropy, torch.zeros_like(cross_entropy))
    contrast = SupConLoss(recipe.temperature)(projection, labels)
    return Losses(cross_entropy + recipe.supcon_weight * contrast, cross_entropy, contrast)
