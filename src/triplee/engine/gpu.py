"""Members on a GPU: views are made a chunk ahead on a stream of their own, steps are replayed from captured graphs.

Nothing in a step waits for the host: which views, labels and how many of them a step has lies in tables on the device,
and a counter there says which row is next. Losses are read a chunk at a time, while the next chunk already trains.
Axes: M members, V views of a step, S rows of the tables: two chunks of steps, filled in turn, and a spare one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from triplee.augment import Draw, apply_draw
from triplee.augment.style import StyleTable
from triplee.engine.epoch import EpochProgress, MemberSpec, Resident, Share
from triplee.engine.windows import free_bytes
from triplee.settings import InputError

if TYPE_CHECKING:
    from triplee.engine.stack import Executor

# Views kept ready: enough to spread the cost of making them, few enough to answer Ctrl-C within a second.
CHUNK_BYTES = 512 << 20
SHARE_OF_MEMORY = 1 / 16  # where that would be too much of a small GPU
MOST_STEPS = 1024


def make_executors(specs: Mapping[int, MemberSpec], resident: Resident) -> "dict[int, Executor]":
    """Who trains which member: members that fit together are batched, the others are captured one by one."""
    from triplee.engine.batched import BatchedMembers, batch_key
    from triplee.engine.captured import CapturedMembers

    groups: dict[object, list[int]] = {}
    for k, spec in specs.items():
        groups.setdefault(batch_key(spec, resident), []).append(k)
    executors: dict[int, Executor] = {}
    for key, members in groups.items():
        kind = CapturedMembers if key is None else BatchedMembers
        own = {k: specs[k] for k in members}
        executors |= dict.fromkeys(members, kind(own, resident))
    return executors


def activation_bytes(device: torch.device) -> int:
    """What training may take for activations: a quarter of the free memory is left for the rest."""
    return free_bytes(device) * 3 // 4


@dataclass
class Chunk:
    """Some steps of some members, lying ready in one half of the tables."""

    first_row: int
    steps: dict[int, int]  # member to its number of steps here, the longest first
    sizes: dict[int, np.ndarray]  # views in each of them
    ready: torch.cuda.Event
    trained: list[torch.cuda.Event]


class GpuMembers:
    """What both kinds of executor share: the tables, the feeding, and the loop over chunks."""

    note = ""
    capture_seconds = 0.0

    def __init__(self, specs: dict[int, MemberSpec], resident: Resident) -> None:
        self.specs, self.images, self.device = specs, resident.images, resident.device
        self.labels_N, self.styles = resident.labels_N, resident.styles
        self.place = {k: place for place, k in enumerate(specs)}  # a member's column in the tables
        self.feeding = torch.cuda.Stream(self.device)
        self.views_M = [spec.views_per_step for spec in specs.values()]
        image_bytes = math.prod(self.images.shape[1:])
        chunk_bytes = min(
            CHUNK_BYTES, int(SHARE_OF_MEMORY * torch.cuda.get_device_properties(self.device).total_memory)
        )
        self.steps_at_once = max(1, min(MOST_STEPS, chunk_bytes // (sum(self.views_M) * image_bytes)))
        self.spare_row = 2 * self.steps_at_once  # for steps that only warm up
        rows, columns, most_views = self.spare_row + 1, len(specs), max(self.views_M)
        self.half_views = self.steps_at_once * sum(self.views_M)
        self.views = torch.zeros((2 * self.half_views, *self.images.shape[1:]), dtype=torch.uint8, device=self.device)
        self.index = torch.zeros(rows, columns, most_views, dtype=torch.int64, device=self.device)
        self.labels = torch.zeros_like(self.index)
        self.counts = torch.tensor(self.views_M, dtype=torch.int32, device=self.device).repeat(rows, 1)
        self.losses = torch.zeros(rows, columns, 2, device=self.device)

    def begin_epoch(self, shares: dict[int, Share]) -> None:
        """Set the learning rates."""
        raise NotImplementedError

    def enqueue(self, chunk: Chunk) -> list[torch.cuda.Event]:
        """Have a chunk trained once it is ready, without waiting for it; the events tell when it is."""
        raise NotImplementedError

    def train_epoch(self, shares: dict[int, Share], progress: EpochProgress, after_steps: Callable[[], bool]) -> None:
        torch.cuda.synchronize(self.device)  # whatever other streams did to the weights
        self.begin_epoch(shares)
        first = {k: progress.steps[k] for k in shares}
        longest = max(share.num_steps - first[k] for k, share in shares.items())
        training: Chunk | None = None
        stopping = False
        try:
            for number, done in enumerate(range(0, longest, self.steps_at_once)):
                parts = {
                    k: (first[k] + done, share)
                    for k, share in shares.items()
                    if first[k] + done < share.num_steps and k not in progress.failed
                }
                if not parts:
                    break
                chunk = self._feed(parts, number % 2)
                chunk.trained = self.enqueue(chunk)
                if training is not None:
                    self._collect(training, progress)
                    stopping = after_steps()
                training = chunk
                if stopping:
                    break
            if training is not None:
                self._collect(training, progress)
            after_steps()
        except torch.OutOfMemoryError:
            recipe = max(self.specs.values(), key=lambda spec: spec.views_per_step).recipe
            size = f"{recipe.batch_size} × {recipe.replay} views of {recipe.image_size} px with {recipe.backbone}"
            advice = "lower batch_size, replay or image_size"
            raise InputError(f"a step of {size} does not fit the GPU's memory: {advice}") from None
        finally:
            torch.cuda.synchronize(self.device)  # nothing may still train when an exception frees its memory

    def _feed(self, parts: dict[int, tuple[int, Share]], half: int) -> Chunk:
        """Make the views of the next steps of each member and fill one half of the tables."""
        rows = slice(half * self.steps_at_once, (half + 1) * self.steps_at_once)
        index = np.zeros((self.steps_at_once, len(self.specs), self.index.shape[2]), dtype=np.int64)
        labels, counts = np.zeros_like(index), np.ones(index.shape[:2], dtype=np.int32)
        next_view = half * self.half_views
        # Draws that are carried out at once are of one kind, with styles from one table.
        kind_of = {k: (share.draw.kind, id(self.styles.get(k))) for k, (_, share) in parts.items()}
        alike: dict[object, list[tuple[np.ndarray, Draw, StyleTable | None]]] = {}
        sizes: dict[int, np.ndarray] = {}
        for k in sorted(parts, key=lambda k: (kind_of[k], k)):
            step, share = parts[k]
            bounds = share.bounds[step : step + self.steps_at_once + 1]
            cut = slice(bounds[0], bounds[-1])
            alike.setdefault(kind_of[k], []).append((share.index_V[cut], share.draw[cut], self.styles.get(k)))
            sizes[k] = np.diff(bounds)
            within = np.arange(self.specs[k].views_per_step)
            place = np.minimum((bounds - bounds[0])[:-1, None] + within, bounds[-1] - bounds[0] - 1)
            column, steps = self.place[k], len(sizes[k])
            index[:steps, column, : len(within)] = next_view + place
            labels[:steps, column, : len(within)] = self.labels_N[share.index_V[cut]][place]
            counts[:steps, column] = sizes[k]
            next_view += bounds[-1] - bounds[0]
        with torch.cuda.stream(self.feeding):
            next_view = half * self.half_views
            for group in alike.values():
                index_V = np.concatenate([index_V for index_V, *_ in group])
                views = apply_draw(self.images, index_V, Draw.join([draw for _, draw, _ in group]), group[0][2])
                self.views[next_view : next_view + len(views)].copy_(views)
                next_view += len(views)
            for table, values in ((self.index, index), (self.labels, labels), (self.counts, counts)):
                table[rows].copy_(torch.from_numpy(values), non_blocking=True)
            ready = torch.cuda.Event()
            ready.record()
        longest_first = sorted(sizes, key=lambda k: (-len(sizes[k]), k))
        return Chunk(rows.start, {k: len(sizes[k]) for k in longest_first}, sizes, ready, [])

    def _collect(self, chunk: Chunk, progress: EpochProgress) -> None:
        """Wait for a chunk, and add its losses to the members' progress."""
        for event in chunk.trained:
            event.synchronize()
        with torch.cuda.stream(self.feeding):
            losses = self.losses[chunk.first_row : chunk.first_row + self.steps_at_once].cpu()
        for k, steps in chunk.steps.items():
            progress.add(k, losses[:steps, self.place[k]])
