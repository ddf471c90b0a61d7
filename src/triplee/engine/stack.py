"""A stack: many independent members trained from one resident pool with pre-drawn randomness (Algorithm 1).

A member is told by its recipe, seed, number and training indices, never by its neighbours, so members of several
targets and seeds may share a stack, and a member of a stack equals the same member alone.
Here members train side by side in threads of a CPU, or in turn on a GPU; `train_epoch` and `probabilities` are the
whole seam to an executor that runs them as one. Axes: M members, N images, V views.
"""

import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from triplee.augment import Draw, apply_draw, draw_views
from triplee.data.pool import MappedImages
from triplee.engine.losses import replay_loss
from triplee.engine.windows import place_images
from triplee.nets.network import build_network
from triplee.plan import EpochPlan, plan_epoch
from triplee.seeding import generator
from triplee.settings import Recipe

# Pixels augmented at once: enough views to spread each op's fixed cost, few enough to stay in cache and in step. A GPU
# has no such cache, and pays for each kernel it is told to start.
AUGMENT_BYTES = {"cpu": 2 << 20, "cuda": 64 << 20}
EVALUATE_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}


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


@dataclass(frozen=True)
class _Share:
    """What one member does in one epoch: its plan, and the image and draw of every view."""

    epoch: int
    plan: EpochPlan
    index_V: np.ndarray
    draw: Draw

    @classmethod
    def of(cls, spec: MemberSpec, epoch: int) -> "_Share":
        plan = spec.plan(epoch)
        index_V = np.repeat(plan.order_S, spec.recipe.replay)
        rng = generator(spec.seed, "views", spec.index, epoch)
        return cls(epoch, plan, index_V, draw_views(spec.recipe, rng, len(index_V), spec.train_N))


class Stack:
    """The members of one or more runs over one pool."""

    def __init__(
        self,
        specs: Sequence[MemberSpec],
        images_NCHW: Tensor | MappedImages,
        labels_N: np.ndarray,
        device: torch.device,
        precision: str,
    ) -> None:
        self.specs = list(specs)
        self.device = device
        self.images_NCHW = place_images(images_NCHW, device)
        self.image_bytes = math.prod(images_NCHW.shape[1:])
        self.labels_N = torch.from_numpy(labels_N).to(device)
        self.precision = precision
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
        shares = [_Share.of(spec, epoch) for spec in self.specs]
        stopping, one_at_a_time = threading.Event(), threading.Lock()

        def after_step_of_any() -> bool:
            with one_at_a_time:
                if after_step():
                    stopping.set()
                return stopping.is_set()

        def train_some(member: int) -> bool:
            if stopping.is_set():
                return True
            try:
                self._train_some(member, shares[member], progress, after_step_of_any)
            except BaseException:
                stopping.set()
                raise
            return progress.steps[member] == shares[member].plan.num_steps

        unfinished = [k for k, share in enumerate(shares) if progress.steps[k] < share.plan.num_steps]
        self._side_by_side(train_some, unfinished)

    def _train_some(
        self, member: int, share: "_Share", progress: EpochProgress, after_step: Callable[[], bool]
    ) -> None:
        """As many steps as are augmented at once, or fewer when the epoch ends or `after_step` says stop."""
        spec, network, optimizer = self.specs[member], self.networks[member], self.optimizers[member]
        recipe, first = spec.recipe, progress.steps[member]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(share.epoch)
        network.train()
        steps_at_once = AUGMENT_BYTES[self.device.type] // (recipe.batch_size * recipe.replay * self.image_bytes)
        bounds = share.plan.bounds[first : first + max(1, steps_at_once) + 1] * recipe.replay
        index_V = share.index_V[bounds[0] : bounds[-1]]
        views = apply_draw(self.images_NCHW, index_V, share.draw[bounds[0] : bounds[-1]])
        labels = self.labels_N[torch.from_numpy(index_V).to(self.device)]
        losses = []
        for start, stop in zip((bounds - bounds[0])[:-1], (bounds - bounds[0])[1:], strict=True):
            loss = replay_loss(network, views[start:stop], labels[start:stop], recipe, self._autocast())
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            losses.append(torch.stack(loss).detach())
            if after_step():
                break
        for total, cross_entropy, contrast in torch.stack(losses).tolist():  # the only wait for the device
            progress.steps[member] += 1
            if not np.isfinite(total):
                raise LossNotFinite(share.epoch + 1, progress.steps[member], spec.index + 1)
            progress.cross_entropy[member] += cross_entropy
            progress.contrast[member] += contrast

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        """Softmax outputs (M, N, num_classes) of some members on clean images, on the host."""
        outputs: dict[int, Tensor] = {}

        def predict(member: int) -> bool:
            outputs[member] = self._predict(member, index_N)
            return True

        self._side_by_side(predict, members)
        return torch.stack([outputs[member] for member in members])

    @torch.inference_mode()
    def _predict(self, member: int, index_N: np.ndarray) -> Tensor:
        batch = max(1, EVALUATE_BYTES[self.device.type] // self.image_bytes)
        network = self.networks[member].eval()
        parts = []
        for start in range(0, len(index_N), batch):
            images = self.images_NCHW[torch.from_numpy(index_N[start : start + batch]).to(self.device)]
            with self._autocast():
                parts.append(network(images))
        return torch.cat(parts).float().softmax(1).cpu()

    def _autocast(self) -> torch.autocast:
        # A new one each time: it remembers what to go back to, so threads cannot share it.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def _side_by_side(self, work: Callable[[int], bool], members: Sequence[int]) -> None:
        """Call `work(member)` for each member until it says that the member is done, members side by side.

        A small step leaves two threads waiting for each other, and for whatever else runs on the machine; two members
        on a thread each do not wait (bench/step.py). How many threads a member has decides in which order numbers are
        added up, so it follows from its recipe, never from who else is in the stack or already done.
        """
        num_threads = torch.get_num_threads()
        threads_M = [max(1, num_threads // spec.recipe.members) for spec in self.specs]
        num_workers = min(num_threads // min(threads_M), len(members)) if self.device.type == "cpu" else 1
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for member in members:
            waiting.put(member)

        def worker() -> None:
            while True:
                try:
                    member = waiting.get_nowait()
                except queue.Empty:
                    return
                torch.set_num_threads(threads_M[member])
                if not work(member):
                    waiting.put(member)

        try:
            if num_workers <= 1:
                worker()
            else:
                with ThreadPoolExecutor(num_workers) as threads:
                    for future in [threads.submit(worker) for _ in range(num_workers)]:
                        future.result()
        finally:
            torch.set_num_threads(num_threads)

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
