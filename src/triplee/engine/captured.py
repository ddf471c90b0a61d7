"""Members as captured graphs on parallel streams: for networks whose layers keep a good part of a GPU busy.

One ResNet step of 16 views leaves most of a large GPU idle, six side by side do not (docs/performance.md). A lane is a
stream with memory of its own for activations; members of one lane take turns. Axes: M members, V views.
"""

import gc
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from triplee.engine.epoch import MemberSpec, MemberTensors, Resident, Share
from triplee.engine.gpu import Chunk, GpuMembers, activation_bytes
from triplee.engine.member import Member
from triplee.settings import counted

MOST_LANES = 12
EVALUATE_BYTES = 64 << 20
WARM_UP = 3  # steps


class CapturedMembers(GpuMembers):
    def __init__(self, specs: dict[int, MemberSpec], resident: Resident) -> None:
        super().__init__(specs, resident)
        self.members = {k: Member(spec, self.device, resident.precision) for k, spec in specs.items()}
        # Views are picked in words of eight bytes where they consist of such: torch picks word by word.
        flat = self.views.flatten(1)
        self.words = flat.view(torch.int64) if flat.shape[1] % 8 == 0 else flat
        self.rows = {k: torch.zeros(1, dtype=torch.int64, device=self.device) for k in specs}
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._make_lanes(-(-len(specs) // -(-len(specs) // MOST_LANES)))

    def _make_lanes(self, count: int) -> None:
        self.lanes = [torch.cuda.Stream(self.device) for _ in range(count)]
        self.pools = [torch.cuda.graph_pool_handle() for _ in range(count)]
        self.lane_of = {k: place % count for k, place in self.place.items()}

    def begin_epoch(self, shares: dict[int, Share]) -> None:
        for k, share in shares.items():
            with torch.cuda.stream(self.lanes[self.lane_of[k]]):
                self.members[k].set_rate(share.rate)

    def enqueue(self, chunk: Chunk) -> list[torch.cuda.Event]:
        self._capture_all(chunk)
        turns: dict[int, list[int]] = {}
        for k in chunk.steps:
            turns.setdefault(self.lane_of[k], []).append(k)
        for lane, members in turns.items():
            self.lanes[lane].wait_event(chunk.ready)
            with torch.cuda.stream(self.lanes[lane]):
                for k in members:
                    self.rows[k].fill_(chunk.first_row)
        # Lane by lane in turn, so that all of them have work at once.
        queues = [[(k, size) for k in members for size in chunk.sizes[k].tolist()] for members in turns.values()]
        streams = [self.lanes[lane] for lane in turns]
        for turn in range(max(map(len, queues))):
            for stream, queue in zip(streams, queues, strict=True):
                if turn < len(queue):
                    with torch.cuda.stream(stream):
                        self.graphs[queue[turn]].replay()
        events = []
        for stream in streams:
            events.append(torch.cuda.Event())
            events[-1].record(stream)
        return events

    def _capture_all(self, chunk: Chunk) -> None:
        """Capture what is missing, on as many lanes as memory reaches for."""
        wanted = {(k, size) for k, sizes in chunk.sizes.items() for size in np.unique(sizes).tolist()}
        if wanted <= self.graphs.keys():
            return
        torch.cuda.synchronize(self.device)  # the views that graphs are warmed up on, and all lanes
        started = time.perf_counter()
        while missing := sorted(wanted - self.graphs.keys(), key=lambda pair: (-pair[1], pair[0])):
            try:
                if not self.graphs:  # the largest step tells what a lane takes
                    self._fit_lanes(activation_bytes(self.device) // self._warm_up(*missing[0]))
                for k, size in missing:
                    self._capture(k, size)
            except torch.OutOfMemoryError:  # of a warm-up: a capture takes what its warm-up gave back
                if len(self.lanes) == 1:
                    raise
                self.graphs.clear()
                gc.collect()
                torch.cuda.empty_cache()
                self._fit_lanes(len(self.lanes) // 2)
        self.capture_seconds += time.perf_counter() - started

    def _fit_lanes(self, count: int) -> None:
        if count < len(self.lanes):
            self._make_lanes(max(1, count))
            lanes = counted(len(self.lanes), "stream")
            self.note = f"{len(self.members)} members on {lanes}: the GPU's memory holds no more"

    def _warm_up(self, k: int, size: int) -> int:
        """Steps that leave no trace, in which cuDNN tries out its algorithms; gives the bytes that a step takes."""
        member, stream = self.members[k], self.lanes[self.lane_of[k]]
        member.training_network.train()
        written = member.written()
        with torch.cuda.stream(stream), _cudnn(benchmark=True):
            kept = [tensor.clone() for tensor in written]
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            try:
                for _ in range(WARM_UP):
                    self.rows[k].fill_(self.spare_row)
                    self._step(k, size)
            finally:
                for tensor, old in zip(written, kept, strict=True):
                    tensor.copy_(old)
                stream.synchronize()
        taken = torch.cuda.max_memory_allocated(self.device) - before
        del kept
        torch.cuda.empty_cache()  # a graph has memory of its own
        return taken

    def _capture(self, k: int, size: int) -> None:
        self._warm_up(k, size)
        graph, lane = torch.cuda.CUDAGraph(), self.lane_of[k]
        with _cudnn(benchmark=True), torch.cuda.graph(graph, pool=self.pools[lane], stream=self.lanes[lane]):
            self._step(k, size)
        self.graphs[k, size] = graph

    def _step(self, k: int, size: int) -> None:
        row, column = self.rows[k], self.place[k]
        index = self.index[:, column].index_select(0, row)[0, :size]
        views = self.words.index_select(0, index).view(torch.uint8).view(size, *self.images.shape[1:])
        teacher = self.specs[k].teacher
        labels = teacher(views) if teacher else self.labels[:, column].index_select(0, row)[0, :size]
        losses = self.members[k].step(views, labels)
        self.losses[:, column].index_copy_(0, row, losses[None])
        row.add_(1)

    def end_epoch(self, weights: dict[int, float]) -> None:
        with _cudnn(benchmark=False):
            for k, weight in weights.items():
                self.members[k].end_epoch(weight, self.images)

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        batch = max(1, EVALUATE_BYTES // math.prod(self.images.shape[1:]))
        parts = torch.from_numpy(index_N).to(self.device).split(batch)
        outputs = []
        with _cudnn(benchmark=False):
            for k in members:
                self.members[k].averaged.eval()
                outputs.append(torch.cat([self.members[k].predict(self.images[part]) for part in parts]))
        return torch.stack(outputs)

    def tensors(self, member: int) -> MemberTensors:
        return self.members[member].tensors()

    def load(self, member: int, tensors: MemberTensors) -> None:
        self.members[member].load(tensors)


def _cudnn(benchmark: bool) -> AbstractContextManager[None]:
    """cuDNN's choices: float32 is meant to be float32."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False)
