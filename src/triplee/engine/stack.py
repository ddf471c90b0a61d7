"""A stack: many independent members trained from one resident pool with pre-drawn randomness (Algorithm 1).

A member is told by its recipe, seed, number and training indices, never by its neighbours, so members of several
targets and seeds may share a stack, and a member of a stack equals the same member alone.
Here members run one after another, which a CPU does best; `train_epoch` and `probabilities` are the whole seam to an
executor that runs them together. Axes: M members, N images, V views.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from triplee.augment import apply_draw, draw_views
from triplee.engine.losses import replay_loss
from triplee.nets.network import build_network
from triplee.plan import EpochPlan, plan_epoch
from triplee.seeding import generator
from triplee.settings import Recipe

AUGMENT_BYTES = (
    8 << 20
)  # pixels augmented at once: enough views to spread each op's fixed cost, little enough to stay in cache
EVALUATE_BYTES = 4 << 20


class LossNotFinite(Exception):
    """A NaN or infinite loss, and where it appeared (all counted from 1)."""

    def __init__(self, epoch: int, step: int, member: int) -> None:
        super().__init__(f"the loss became NaN or infinite at epoch {epoch}, step {step}, member {member}")


@dataclass(frozen=True)
class MemberSpec:
    """All that a member's training depends on, apart from pixels."""

    recipe: Recipe
    seed: int
    index: int  # which of the recipe's members, from 0
    train_N: np.ndarray  # pool indices of the source domains' training images
    num_classes: int

    def plan(self, epoch: int) -> EpochPlan:
        return plan_epoch(self.train_N, self.recipe, self.seed, self.index, epoch)


@dataclass
class EpochProgress:
    """How far each member has come in the epoch: what a resumed run needs to go on in the middle of it."""

    steps: list[int]
    cross_entropy: list[float] = field(default_factory=list)  # sums over the steps done
    contrast: list[float] = field(default_factory=list)

    @classmethod
    def start(cls, num_members: int) -> "EpochProgress":
        return cls([0] * num_members, [0.0] * num_members, [0.0] * num_members)

    def mean_loss(self, supcon_weight: float) -> float | None:
        """The mean loss of the epoch so far (Eq. 2), or none before the first losses are in."""
        num_steps = sum(self.steps)
        return (sum(self.cross_entropy) + supcon_weight * sum(self.contrast)) / num_steps if num_steps else None


def native_precision(recipe: Recipe, device: torch.device) -> str:
    """`bfloat16` where the recipe says so or the chip multiplies it natively, else `float32`.

    On a CPU with AVX512-BF16 a digit step of 16 views takes half the time of float32; emulated it takes longer.
    """
    if recipe.precision != "auto":
        return recipe.precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    has_native = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return "bfloat16" if has_native else "float32"


class Stack:
    """The members of one or more runs over one pool."""

    def __init__(
        self,
        specs: Sequence[MemberSpec],
        images_NCHW: Tensor,
        labels_N: np.ndarray,
        device: torch.device,
        precision: str,
    ) -> None:
        self.specs = list(specs)
        self.device = device
        self.images_NCHW = images_NCHW.to(device)
        self.labels_N = torch.from_numpy(labels_N).to(device)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
        self.networks = [build_network(s.recipe, s.num_classes, s.seed, s.index).to(device) for s in self.specs]
        self.optimizers = [
            torch.optim.SGD(
                network.parameters(),
                lr=spec.recipe.lr,
                momentum=spec.recipe.momentum,
                weight_decay=spec.recipe.weight_decay,
                foreach=True,
            )
            for spec, network in zip(self.specs, self.networks, strict=True)
        ]

    def train_epoch(self, epoch: int, progress: EpochProgress, after_step: Callable[[], bool]) -> None:
        """Train the rest of `epoch`, keeping `progress` up to date; stop early when `after_step` says so."""
        for member in range(len(self.specs)):
            if not self._train_member(member, epoch, progress, after_step):
                return

    def _train_member(self, member: int, epoch: int, progress: EpochProgress, after_step: Callable[[], bool]) -> bool:
        spec, network, optimizer = self.specs[member], self.networks[member], self.optimizers[member]
        recipe, plan = spec.recipe, spec.plan(epoch)
        index_V = np.repeat(plan.order_S, recipe.replay)
        draw = draw_views(recipe, generator(spec.seed, "views", spec.index, epoch), len(index_V), spec.train_N)
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(epoch)
        network.train()
        views_per_step = recipe.batch_size * recipe.replay
        steps_at_once = max(1, AUGMENT_BYTES // (views_per_step * self.images_NCHW[0].numel()))

        while progress.steps[member] < plan.num_steps:
            first = progress.steps[member]
            bounds = plan.bounds[first : first + steps_at_once + 1] * recipe.replay
            views = apply_draw(self.images_NCHW, index_V[bounds[0] : bounds[-1]], draw[bounds[0] : bounds[-1]])
            labels = self.labels_N[torch.from_numpy(index_V[bounds[0] : bounds[-1]]).to(self.device)]
            losses, stopped = [], False
            for start, stop in zip((bounds - bounds[0])[:-1], (bounds - bounds[0])[1:], strict=True):
                loss = replay_loss(network, views[start:stop], labels[start:stop], recipe, self.autocast)
                optimizer.zero_grad()
                loss.total.backward()
                optimizer.step()
                losses.append(torch.stack(loss).detach())
                if stopped := after_step():
                    break
            for total, cross_entropy, contrast in torch.stack(losses).tolist():  # the only wait for the device
                progress.steps[member] += 1
                if not np.isfinite(total):
                    raise LossNotFinite(epoch + 1, progress.steps[member], spec.index + 1)
                progress.cross_entropy[member] += cross_entropy
                progress.contrast[member] += contrast
            if stopped:
                return False
        return True

    @torch.inference_mode()
    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        """Softmax outputs (M, N, num_classes) of some members on clean images, on the host."""
        batch = max(1, EVALUATE_BYTES // self.images_NCHW[0].numel())
        outputs = []
        for member in members:
            network = self.networks[member].eval()
            parts = []
            for start in range(0, len(index_N), batch):
                images = self.images_NCHW[torch.from_numpy(index_N[start : start + batch]).to(self.device)]
                with self.autocast:
                    parts.append(network(images))
            outputs.append(torch.cat(parts).float().softmax(1))
        return torch.stack(outputs).cpu()

    def member_tensors(self, member: int) -> dict[str, Tensor]:
        """Weights, buffers and momentum of a member, by name: what a checkpoint holds."""
        network, optimizer = self.networks[member], self.optimizers[member]
        tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
        for name, parameter in network.named_parameters():
            momentum = optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        return tensors

    def load_member_tensors(self, member: int, tensors: dict[str, Tensor]) -> None:
        network, optimizer = self.networks[member], self.optimizers[member]
        weights = {n.removeprefix("network."): t for n, t in tensors.items() if n.startswith("network.")}
        network.load_state_dict(weights)
        for name, parameter in network.named_parameters():
            if (momentum := tensors.get(f"momentum.{name}")) is not None:
                restored = torch.empty_like(parameter).copy_(momentum)  # keeps the parameter's memory format
                optimizer.state[parameter]["momentum_buffer"] = restored
