"""A stack: many independent members trained from one resident pool with pre-drawn randomness (Algorithm 1).

Members of several targets, seeds and recipes may share a stack, and a member of a stack equals the same member alone.
On a CPU they train side by side in threads; on a GPU as captured graphs on streams of their own or, where networks are
so small that launches would cost more than arithmetic, batched as one. Axes: M members, N images.
"""

import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from triplee.augment.style import StyleTable
from triplee.data.pool import MappedImages
from triplee.engine.epoch import EpochProgress, MemberSpec, MemberTensors, Resident, Share
from triplee.engine.threads import ThreadedMembers
from triplee.engine.windows import Windows, place_images
from triplee.settings import Recipe


class Executor(Protocol):
    """Trains some of a stack's members; members are told by their number in the stack."""

    note: str
    capture_seconds: float  # spent on compiling and capturing steps

    def train_epoch(
        self, shares: dict[int, Share], progress: EpochProgress, after_steps: Callable[[], bool]
    ) -> None: ...
    def end_epoch(self, weights: dict[int, float]) -> None: ...  # make what is tested; a weight: of the epoch in it
    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor: ...  # by averaged weights
    def tensors(self, member: int) -> MemberTensors: ...
    def load(self, member: int, tensors: MemberTensors) -> None: ...


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


def _style_tables(specs: Sequence[MemberSpec], images: Tensor | Windows, precision: str) -> dict[int, StyleTable]:
    """For the members whose views may be restyled; those with the same stylizer share a table."""
    users: dict[int, list[int]] = {}
    for k, spec in enumerate(specs):
        if spec.stylizer is not None:
            users.setdefault(id(spec.stylizer), []).append(k)
    tables: dict[int, StyleTable] = {}
    for members in users.values():
        stylizer = specs[members[0]].stylizer
        index_R = np.unique(np.concatenate([specs[k].train_N for k in members]))
        assert stylizer is not None
        tables |= dict.fromkeys(members, StyleTable(stylizer, images, index_R, precision))
    return tables


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
        started = time.perf_counter()
        self.specs, self.device = list(specs), device
        images = place_images(images_NCHW, device)
        styles = _style_tables(self.specs, images, precision)
        resident = Resident(images, labels_N, device, precision, styles)
        numbered = dict(enumerate(self.specs))
        if device.type == "cpu":
            self.executors: dict[int, Executor] = dict.fromkeys(numbered, ThreadedMembers(numbered, resident))
        else:
            from triplee.engine.gpu import make_executors  # needs a GPU, and Triton where there is one

            self.executors = make_executors(numbered, resident)
        self._drawing = ThreadPoolExecutor(1, "draw")
        self._drawn: dict[tuple[int, int], Future[Share]] = {}
        self._seconds = {"build": time.perf_counter() - started, "train": 0.0, "statistics": 0.0, "evaluate": 0.0}

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time went: building networks, compiling and capturing steps, training, statistics, evaluating.

        A GPU may still be at the statistics when their clock stops; what is left counts as evaluating.
        """
        capture = sum(executor.capture_seconds for executor in dict.fromkeys(self.executors.values()))
        return {**self._seconds, "train": self._seconds["train"] - capture, "compile": capture}

    @property
    def peak_megabytes(self) -> int:
        """The most memory there was so far: of the GPU, or of this process. Whoever else trains here is counted in."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self.device) >> 20  # captured graphs keep theirs between replays
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit >> 20

    def close(self) -> None:
        """Draw no further ahead."""
        self._drawing.shutdown(wait=False, cancel_futures=True)

    @property
    def note(self) -> str:
        """A line for people on how the members are trained, or nothing."""
        return "; ".join(dict.fromkeys(executor.note for executor in self.executors.values() if executor.note))

    def train_epoch(
        self, epoch_M: Sequence[int | None], progress: EpochProgress, after_steps: Callable[[], bool]
    ) -> None:
        """Train the rest of each member's epoch (none: it rests); stop early when `after_steps` says so.

        `progress` is kept up to date; `after_steps` is called every now and then, after a step or many. A member whose
        loss was not finite is noted there and trains no further.
        """
        started = time.perf_counter()
        shares = self._shares(epoch_M)
        stopping = threading.Event()

        def after_steps_of_any() -> bool:
            if after_steps():
                stopping.set()
            return stopping.is_set()

        for executor in dict.fromkeys(self.executors.values()):
            own = {
                k: share
                for k, share in shares.items()
                if self.executors[k] is executor and k not in progress.failed and progress.steps[k] < share.num_steps
            }
            if own and not stopping.is_set():
                executor.train_epoch(own, progress, after_steps_of_any)
                done = [k for k, share in own.items() if progress.steps[k] == share.num_steps]
                trained = time.perf_counter()
                executor.end_epoch({k: own[k].weight for k in done})
                self._seconds["statistics"] += time.perf_counter() - trained
                started += time.perf_counter() - trained
        self._seconds["train"] += time.perf_counter() - started

    def _shares(self, epoch_M: Sequence[int | None]) -> dict[int, Share]:
        """What each member does in its epoch; the epoch after that is drawn meanwhile."""
        wanted = {(k, epoch) for k, epoch in enumerate(epoch_M) if epoch is not None}
        ahead = {(k, epoch + 1) for k, epoch in wanted if epoch + 1 < self.specs[k].recipe.epochs}
        drawn = {}
        for key in (*sorted(wanted), *sorted(ahead)):
            k, epoch = key
            drawn[key] = self._drawn.get(key) or self._drawing.submit(Share.of, self.specs[k], epoch)
        self._drawn = drawn
        return {k: drawn[k, epoch].result() for k, epoch in sorted(wanted)}

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        """Softmax outputs (M, N, num_classes) of some members on clean images; a GPU may be at it until `wait`."""
        started = time.perf_counter()
        outputs: dict[int, Tensor] = {}
        for executor in dict.fromkeys(self.executors[k] for k in members):
            own = [k for k in members if self.executors[k] is executor]
            outputs.update(zip(own, executor.probabilities(own, index_N), strict=True))
        self._seconds["evaluate"] += time.perf_counter() - started
        return torch.stack([outputs[k] for k in members])

    def wait(self) -> None:
        """Until a GPU has computed what it was asked for: the other half of evaluating."""
        started = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._seconds["evaluate"] += time.perf_counter() - started

    def member_weights(self, member: int) -> dict[str, Tensor]:
        """The network that a member is tested by, as a state dict."""
        tensors = self.executors[member].tensors(member)
        return tensors.average or tensors.network

    def member_tensors(self, member: int) -> dict[str, Tensor]:
        """Weights, buffers, momentum and averages of a member, by name: what a checkpoint holds."""
        kinds = self.executors[member].tensors(member)._asdict()
        return {f"{kind}.{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}

    def load_member_tensors(self, member: int, tensors: dict[str, Tensor]) -> None:
        """Take over a checkpoint; missing momenta are zero, and without averages the weights stand for them."""
        kinds: dict[str, dict[str, Tensor]] = {kind: {} for kind in MemberTensors._fields}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            kinds[kind][rest] = tensor
        self.executors[member].load(member, MemberTensors(**kinds))
