"""Members as captured graphs on parallel streams: for networks whose layers keep a good part of a GPU busy.

One ResNet step of 16 views leaves most of a large GPU idle, six side by side do not (docs/performance.md). A lane is a
stream with memory of its own for activations; members of one lane take turns. Axes: M members, V views.
"""

import gc
import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from triplee.engine.gpu import Chunk, GpuMembers
from triplee.engine.member import Member, MemberSpec, Share
from triplee.engine.windows import Windows

MOST_LANES = 12
EVALUATE_BYTES = 64 << 20
WARM_UP = 3  # steps before a capture, in which cuDNN tries out its algorithms


class CapturedMembers(GpuMembers):
    def __init__(
        self,
        specs: dict[int, MemberSpec],
        images: Tensor | Windows,
        labels_N: np.ndarray,
        device: torch.device,
        precision: str,
    ) -> None:
        super().__init__(specs, images, labels_N, device)
        self.members = {k: Member(spec, device, precision) for k, spec in specs.items()}
        self.rows = {k: torch.zeros(1, dtype=torch.int64, device=device) for k in specs}
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._make_lanes(-(-len(specs) // -(-len(specs) // MOST_LANES)))

    def _make_lanes(self, count: int) -> None:
        self.lanes = [torch.cuda.Stream(self.device) for _ in range(count)]
        self.pools = [torch.cuda.graph_pool_handle() for _ in range(count)]
        self.lane_of = {k: place % count for k, place in self.place.items()}

    def begin_epoch(self, shares: dict[int, Share]) -> None:
        for k, share in shares.items():
            with torch.cuda.stream(self.lanes[self.lane_of[k]]):
                self.members[k].rate.fill_(share.rate)

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
        """Capture what is missing, with fewer lanes where memory does not reach for as many."""
        wanted = {(k, size) for k, sizes in chunk.sizes.items() for size in np.unique(sizes).tolist()}
        if wanted <= self.graphs.keys():
            return
        torch.cuda.synchronize(self.device)  # the views that graphs are warmed up on, and all lanes
        started = time.perf_counter()
        while True:
            try:
                for k, size in sorted(wanted - self.graphs.keys()):
                    self._capture(k, size)
                self.capture_seconds += time.perf_counter() - started
                return
            except torch.OutOfMemoryError:
                if len(self.lanes) == 1:
                    raise
            self.graphs.clear()
            gc.collect()
            torch.cuda.empty_cache()
            self._make_lanes(len(self.lanes) // 2)
            self.note = f"{len(self.members)} members on {len(self.lanes)} streams: the GPU's memory holds no more"

    def _capture(self, k: int, size: int) -> None:
        member, stream = self.members[k], self.lanes[self.lane_of[k]]
        member.network.train()
        weights, momenta = member.tensors()
        kept = [tensor.clone() for tensor in (*weights.values(), *momenta.values())]
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
                with torch.cuda.stream(stream):
                    for _ in range(WARM_UP):
                        self.rows[k].fill_(self.spare_row)
                        self._step(k, size)
                stream.synchronize()
                torch.cuda.empty_cache()  # what the warm-up took: the graph has memory of its own
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self.pools[self.lane_of[k]], stream=stream):
                    self._step(k, size)
        finally:
            with torch.cuda.stream(stream):
                for tensor, old in zip((*weights.values(), *momenta.values()), kept, strict=True):
                    tensor.copy_(old)
            stream.synchronize()
        self.graphs[k, size] = graph

    def _step(self, k: int, size: int) -> None:
        row, column = self.rows[k], self.place[k]
        index = self.index[:, column].index_select(0, row)[0, :size]
        labels = self.labels[:, column].index_select(0, row)[0, :size]
        losses = self.members[k].step(self.views.index_select(0, index), labels)
        self.losses[:, column].index_copy_(0, row, losses[None])
        row.add_(1)

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        batch = max(1, EVALUATE_BYTES // math.prod(self.images.shape[1:]))
        parts = torch.from_numpy(index_N).to(self.device).split(batch)
        outputs = []
        for k in members:
            self.members[k].network.eval()
            outputs.append(torch.cat([self.members[k].predict(self.images[part]) for part in parts]))
        return torch.stack(outputs).cpu()

    def tensors(self, member: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.members[member].tensors()

    def load(self, member: int, weights: dict[str, Tensor], momenta: dict[str, Tensor]) -> None:
        self.members[member].load(weights, momenta)
