"""One member: its network and momenta, and one training step (Algorithm 1, the inner loop).

Comes in: what the member is told by its spec, and uint8 views with labels; goes out: the two losses of the step.
A member is told by its recipe, seed, number and training indices, never by its neighbours.
Axes: N images, V views.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triplee.augment import Draw, draw_views
from triplee.engine.losses import replay_loss
from triplee.nets.network import Network, build_network
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

    @property
    def views_per_step(self) -> int:
        return self.recipe.batch_size * self.recipe.replay

    def plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.train_N, self.recipe, self.seed, self.index, epoch)

    def build(self) -> Network:
        return build_network(self.recipe, self.num_classes, self.seed, self.index)


@dataclass(frozen=True)
class Share:
    """What one member does in one epoch: the learning rate, its steps, and the image and draw of every view."""

    epoch: int
    rate: float
    bounds: np.ndarray  # of the steps, in views
    index_V: np.ndarray
    draw: Draw

    @property
    def num_steps(self) -> int:
        return len(self.bounds) - 1

    @classmethod
    def of(cls, spec: MemberSpec, epoch: int) -> "Share":
        plan, recipe = spec.plan(epoch), spec.recipe
        index_V = np.repeat(plan.order_S, recipe.replay)
        rng = generator(spec.seed, "views", spec.index, epoch)
        draw = draw_views(recipe, rng, len(index_V), spec.train_N)
        return cls(epoch, recipe.learning_rate(epoch), plan.bounds * recipe.replay, index_V, draw)


class Member:
    """A network that trains by itself, eagerly or inside a captured graph."""

    def __init__(self, spec: MemberSpec, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = spec, device, precision
        self.network = spec.build().to(device)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.momenta = [torch.zeros_like(p) for p in self.parameters]
        self.rate = torch.tensor(spec.recipe.lr, device=device)  # on the device, where a captured graph reads it

    def step(self, views_u8: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch; gives cross-entropy and contrast, still on the device."""
        recipe = self.spec.recipe
        loss = replay_loss(self.network, views_u8, labels, recipe, self._autocast())
        for parameter in self.parameters:
            parameter.grad = None
        loss.total.backward()
        used = [(p, p.grad, m) for p, m in zip(self.parameters, self.momenta, strict=True) if p.grad is not None]
        # What torch.optim.SGD(fused=True) calls: one pass over all weights, on either kind of device.
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            *map(list, zip(*used, strict=True)),
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return torch.stack([loss.cross_entropy, loss.contrast]).detach()

    @torch.inference_mode()
    def predict(self, images_u8: Tensor) -> Tensor:
        """Softmax outputs on clean images; the network must be in evaluation mode."""
        with self._autocast():
            return self.network(images_u8).float().softmax(1)

    def _autocast(self) -> torch.autocast:
        # A new one each time: it remembers what to go back to, so threads cannot share it.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The network's state dict and the momenta by parameter name, not copied."""
        names = [name for name, parameter in self.network.named_parameters() if parameter.requires_grad]
        return dict(self.network.state_dict()), dict(zip(names, self.momenta, strict=True))

    def load(self, weights: dict[str, Tensor], momenta: dict[str, Tensor]) -> None:
        """Take over such tensors, in place: a captured graph knows the old ones by address."""
        self.network.load_state_dict(weights)
        for name, momentum in self.tensors()[1].items():
            momentum.copy_(momenta[name]) if name in momenta else momentum.zero_()
