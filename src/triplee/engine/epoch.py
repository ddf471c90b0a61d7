"""What a member is told, what it does in an epoch, and how far it has come (Algorithm 1).

A member is told by its recipe, seed, number and training indices, never by its neighbours.
Axes: M members, N images, V views.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from triplee.augment import Draw, draw_views
from triplee.augment.style import Images, StyleTable
from triplee.nets.network import Network, build_network
from triplee.nets.stylizer import Stylizer
from triplee.plan import EpochPlan, plan_epoch
from triplee.seeding import generator
from triplee.settings import Recipe


@dataclass(frozen=True)
class MemberSpec:
    """All that a member's training depends on, apart from pixels."""

    recipe: Recipe
    seed: int
    index: int  # which of the recipe's members, from 0
    train_N: np.ndarray  # pool indices of the source domains' training images
    num_classes: int
    labels_N: np.ndarray | None = None  # of the pool: the style op takes its partners from the same class
    stylizer: Stylizer | None = None
    teacher: Callable[[Tensor], Tensor] | None = None  # whose outputs on views are learned instead of labels
    threads: int | None = None  # of a step on a CPU; none: the members of a run share all there are

    @property
    def views_per_step(self) -> int:
        return self.recipe.batch_size * self.recipe.replay

    def plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.train_N, self.recipe, self.seed, self.index, epoch)

    def build(self) -> Network:
        """The member's network, ready to train."""
        return build_network(self.recipe, self.num_classes, self.seed, self.index)


class MemberTensors(NamedTuple):
    """A member by name: its network's state dict, momenta, and the averaged state dict where its recipe has one."""

    network: dict[str, Tensor]
    momentum: dict[str, Tensor]
    average: dict[str, Tensor]


@dataclass(frozen=True)
class Resident:
    """What lies ready for all members of a stack, where, and in which precision they compute."""

    images: Images
    labels_N: np.ndarray
    device: torch.device
    precision: str
    styles: Mapping[int, StyleTable]  # of the members whose views may be restyled


@dataclass(frozen=True)
class Share:
    """What one member does in one epoch: the learning rate, its steps, and the image and draw of every view."""

    epoch: int
    rate: float
    bounds: np.ndarray  # of the steps, in views
    index_V: np.ndarray
    draw: Draw
    weight: float  # of the epoch's last weights in the average

    @property
    def num_steps(self) -> int:
        return len(self.bounds) - 1

    @classmethod
    def of(cls, spec: MemberSpec, epoch: int) -> "Share":
        plan, recipe = spec.plan(epoch), spec.recipe
        index_V = np.repeat(plan.order_S, recipe.replay)
        rng = generator(spec.seed, "views", spec.index, epoch)
        labels = None if spec.labels_N is None else (spec.labels_N[index_V], spec.labels_N[spec.train_N])
        draw = draw_views(recipe, rng, len(index_V), spec.train_N, labels)
        bounds, rate = plan.bounds * recipe.replay, recipe.learning_rate(epoch)
        return cls(epoch, rate, bounds, index_V, draw, recipe.average_weight(epoch))


@dataclass
class EpochProgress:
    """How far each member has come in the epoch: what a resumed run needs to go on in the middle of it."""

    steps: list[int]
    cross_entropy: list[float] = field(default_factory=list)  # sums over the steps done
    contrast: list[float] = field(default_factory=list)
    failed: dict[int, int] = field(default_factory=dict)  # member to the step (from 1) whose loss was not finite

    @classmethod
    def start(cls, num_members: int) -> "EpochProgress":
        return cls([0] * num_members, [0.0] * num_members, [0.0] * num_members)

    def add(self, member: int, losses: Tensor) -> None:
        """Take in the losses (steps, 2) of a member's next steps, up to the first that is not finite."""
        if member in self.failed:
            return
        is_bad = ~losses.isfinite().all(1)
        if is_bad.any():
            losses = losses[: int(is_bad.int().argmax()) + 1]
            self.failed[member] = self.steps[member] + len(losses)
        self.steps[member] += len(losses)
        for sums, column in ((self.cross_entropy, 0), (self.contrast, 1)):
            # One after the other, however many come at once: a run that is stopped in between has the same sum.
            values = losses[:, column].double().numpy()
            sums[member] = float(np.add.accumulate(np.append(sums[member], values))[-1])
