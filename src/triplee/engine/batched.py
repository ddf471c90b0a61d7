"""Digit members batched as one network: for steps so small that a GPU would wait for launches most of the time.

One captured step trains all members that have work; a member that is done with its epoch is left out of the launch,
so unequal epochs cost nothing. Axes: M members, V views.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from triplee.augment.available import find_kernels
from triplee.engine.epoch import MemberSpec, MemberTensors, Resident, Share
from triplee.engine.gpu import Chunk, GpuMembers, activation_bytes

MOST_VIEWS = 128  # more do not fit the registers of a program, and keep a GPU busy without a stack
EVALUATE_BYTES = 256 << 20  # of the first layer's outputs


def batch_key(spec: MemberSpec, resident: Resident) -> object:
    """Members of equal keys may be batched; none: this member may not."""
    recipe = spec.recipe
    fits = recipe.backbone == "digit-cnn" and resident.precision == "bfloat16" and find_kernels("cuda") is not None
    smallest = np.diff(spec.plan(0).bounds).min() * recipe.replay
    # Our kernels learn labels, and a single view has nothing to contrast with.
    if not fits or spec.teacher or smallest < 2 or spec.views_per_step > MOST_VIEWS:
        return None
    return recipe.image_size, spec.num_classes, spec.views_per_step, recipe.supcon_weight > 0


def slot_bytes(spec: MemberSpec) -> int:
    """About what a member takes while it is at work: its layers' outputs with gradients and codes."""
    side, features = spec.recipe.image_size // 2, 64 * (spec.recipe.image_size // 16) ** 2
    return spec.views_per_step * (7 * 64 * side**2 + 12 * features + 2048)  # 5 bytes; later layers a third more


class BatchedMembers(GpuMembers):
    def __init__(self, specs: dict[int, MemberSpec], resident: Resident) -> None:
        from triplee.nets.digit_stack import DigitStack  # needs Triton

        super().__init__(specs, resident)
        networks = [spec.build() for spec in specs.values()]
        first = next(iter(specs.values()))
        slots = max(1, activation_bytes(self.device) // slot_bytes(first))
        if slots < len(specs):
            self.note = f"{len(specs)} members, {slots} at a time: the GPU's memory holds no more"
        size, views = first.recipe.image_size, first.views_per_step
        self.stack = DigitStack(networks, size, views, torch.bfloat16, self.device, slots)
        self.stream = torch.cuda.Stream(self.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def begin_epoch(self, shares: dict[int, Share]) -> None:
        rates = torch.zeros(self.stack.rates.shape)
        for k, share in shares.items():
            recipe = self.specs[k].recipe
            values = (share.rate, recipe.momentum, recipe.weight_decay, recipe.supcon_weight, 1 / recipe.temperature)
            rates[self.place[k]] = torch.tensor(values)
        with torch.cuda.stream(self.stream):
            self.stack.rates.copy_(rates)

    def enqueue(self, chunk: Chunk) -> list[torch.cuda.Event]:
        # The longest come first, so that the members at work are at all times the first so many of the list.
        steps = np.array(list(chunk.steps.values()))
        at_work = [int((steps > step).sum()) for step in range(steps[0])]
        self._capture_all(sorted(set(at_work)))
        self.stream.wait_event(chunk.ready)
        order = torch.tensor([self.place[k] for k in chunk.steps]).pin_memory()
        with torch.cuda.stream(self.stream):
            self.stack.active[: len(order)].copy_(order, non_blocking=True)
            self.stack.step_number.fill_(chunk.first_row)
            for members in at_work:
                self.graphs[members].replay()
            trained = torch.cuda.Event()
            trained.record()
        for k, count in chunk.steps.items():
            self.stack.batches_M[self.place[k]] += count
        return [trained]

    def _capture_all(self, wanted: list[int]) -> None:
        missing = [members for members in wanted if members not in self.graphs]
        if not missing:
            return
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        stack = self.stack
        written = (stack.weights, stack.momenta, stack.copies, stack.running)
        with torch.cuda.stream(self.stream):
            kept = [tensor.clone() for tensor in written]
            try:
                for members in missing:
                    stack.step_number.fill_(self.spare_row)
                    self._step(members)  # compiles the kernels
                    self.stream.synchronize()
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, stream=self.stream):
                        self._step(members)
                    self.graphs[members] = graph
            finally:
                for tensor, old in zip(written, kept, strict=True):
                    tensor.copy_(old)
                self.stream.synchronize()
        self.capture_seconds += time.perf_counter() - started

    def _step(self, members: int) -> None:
        self.stack.step(self.views, self.index, self.labels, self.counts, self.losses, members)

    def end_epoch(self, weights: dict[int, float]) -> None:
        self.stack.average({self.place[k]: weight for k, weight in weights.items()})

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        places = [self.place[k] for k in members]
        height, width = self.images.shape[2:]
        batch = max(1, EVALUATE_BYTES // (len(places) * height * width * 32))
        outputs = []
        for part in torch.from_numpy(index_N).to(self.device).split(batch):
            images, index = self.images, part
            if not isinstance(images, Tensor):
                images, index = images[part], torch.arange(len(part), device=self.device)
            outputs.append(self.stack.predict(places, images, index).softmax(2))
        return torch.cat(outputs, 1)

    def tensors(self, member: int) -> MemberTensors:
        network, momentum, average = self.stack.state(self.place[member])
        return MemberTensors(network, momentum, average if self.specs[member].recipe.averages else {})

    def load(self, member: int, tensors: MemberTensors) -> None:
        self.stack.load(self.place[member], *tensors)
