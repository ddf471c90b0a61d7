"""Members on a CPU: side by side, one thread each or, where one alone leaves cores idle, as many as are quickest.

A small step leaves two threads waiting for each other, and for whatever else runs on the machine; two members on a
thread each do not wait (bench/step.py). Axes: M members, N images, V views.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from triplee.augment import apply_draw
from triplee.augment.style import Images
from triplee.engine.epoch import EpochProgress, MemberSpec, MemberTensors, Resident, Share
from triplee.engine.member import Member
from triplee.settings import Recipe

# Pixels augmented at once: enough views to spread each op's fixed cost, few enough to stay in cache and in step.
AUGMENT_BYTES = 2 << 20
EVALUATE_BYTES = 4 << 20
# To find out how many threads a step takes best.
TRIALS, LEAST_SECONDS, ENOUGH_SECONDS = 3, 0.1, 5.0
WORTH_WAITING = 0.85  # of one thread's time: more threads are at the mercy of whoever else runs, so they must save more


def most_threads(recipe: Recipe) -> int:
    """What a step may take when all members of a run train side by side."""
    return max(1, torch.get_num_threads() // recipe.members)


def quickest_threads(
    spec: MemberSpec, images: Images, precision: str, is_stopped: Callable[[], bool] = lambda: False
) -> int:
    """How many threads a member's step takes best, as things stand: tried out on a few real steps.

    The threads of a step wait for each other. On two idle cores two take 0.6 to 0.7 of one thread's time; where
    anything else wants one of the cores, two to three times as long (bench/threads.py). Long steps are tried once.
    """
    most, before = most_threads(spec.recipe), torch.get_num_threads()
    if most == 1:
        return 1
    counts = sorted({most >> halvings for halvings in range(most.bit_length())})
    member = Member(spec, torch.device("cpu"), precision)
    index = torch.from_numpy(np.resize(spec.train_N, spec.views_per_step))
    views, labels = images[index], torch.arange(spec.views_per_step) % spec.num_classes
    seconds: dict[int, float] = {}
    began = time.perf_counter()
    try:
        for trial in range(TRIALS + 1):  # the first warms up
            for count in counts:
                torch.set_num_threads(count)
                took = seconds_of_a_step(member, views, labels)
                seconds[count] = took if trial <= 1 else seconds[count] + took
                if is_stopped():
                    return 1
            if time.perf_counter() - began > ENOUGH_SECONDS:
                break
    finally:
        torch.set_num_threads(before)
    return choose_threads(seconds)


def choose_threads(seconds: Mapping[int, float]) -> int:
    """Of numbers of threads the quickest, if it is worth the risk of waiting for others."""
    quickest = min(seconds, key=lambda count: seconds[count])
    return quickest if seconds[quickest] < WORTH_WAITING * seconds[1] else 1


def seconds_of_a_step(member: Member, views: Tensor, labels: Tensor) -> float:
    """Of short steps the mean of several."""
    began, count, took = time.perf_counter(), 0, 0.0
    while took < LEAST_SECONDS:
        member.step(views, labels)
        count, took = count + 1, time.perf_counter() - began
    return took / count


class ThreadedMembers:
    note = ""
    capture_seconds = 0.0

    def __init__(self, specs: Mapping[int, MemberSpec], resident: Resident) -> None:
        self.images, self.labels_N = resident.images, torch.from_numpy(resident.labels_N)
        self.styles = resident.styles
        self.image_bytes = math.prod(self.images.shape[1:])
        self.members = {k: Member(spec, resident.device, resident.precision) for k, spec in specs.items()}

    def train_epoch(self, shares: dict[int, Share], progress: EpochProgress, after_steps: Callable[[], bool]) -> None:
        stopping, one_at_a_time = threading.Event(), threading.Lock()

        def after_step_of_any() -> bool:
            with one_at_a_time:
                if after_steps():
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
            return progress.steps[member] == shares[member].num_steps or member in progress.failed

        self._side_by_side(train_some, list(shares))

    def _train_some(self, k: int, share: Share, progress: EpochProgress, after_step: Callable[[], bool]) -> None:
        """As many steps as are augmented at once, or fewer when the epoch ends or `after_step` says stop."""
        member, first = self.members[k], progress.steps[k]
        member.set_rate(share.rate)
        member.training_network.train()
        steps_at_once = AUGMENT_BYTES // (member.spec.views_per_step * self.image_bytes)
        bounds = share.bounds[first : first + max(1, steps_at_once) + 1]
        index_V = share.index_V[bounds[0] : bounds[-1]]
        views = apply_draw(self.images, index_V, share.draw[bounds[0] : bounds[-1]], self.styles.get(k))
        labels = self.labels_N[torch.from_numpy(index_V)]
        losses, teacher = [], member.spec.teacher
        for start, stop in zip((bounds - bounds[0])[:-1], (bounds - bounds[0])[1:], strict=True):
            batch = views[start:stop]
            losses.append(member.step(batch, teacher(batch) if teacher else labels[start:stop]))
            if after_step():
                break
        progress.add(k, torch.stack(losses))

    def end_epoch(self, weights: dict[int, float]) -> None:
        def end(k: int) -> bool:
            self.members[k].end_epoch(weights[k], self.images)
            return True

        self._side_by_side(end, list(weights))

    def probabilities(self, members: Sequence[int], index_N: np.ndarray) -> Tensor:
        outputs: dict[int, Tensor] = {}

        def predict(k: int) -> bool:
            self.members[k].averaged.eval()
            batch = max(1, EVALUATE_BYTES // self.image_bytes)
            index = torch.from_numpy(index_N)
            outputs[k] = torch.cat([self.members[k].predict(self.images[part]) for part in index.split(batch)])
            return True

        self._side_by_side(predict, members)
        return torch.stack([outputs[k] for k in members])

    def tensors(self, member: int) -> MemberTensors:
        return self.members[member].tensors()

    def load(self, member: int, tensors: MemberTensors) -> None:
        self.members[member].load(tensors)

    def _side_by_side(self, work: Callable[[int], bool], members: Sequence[int]) -> None:
        """Call `work(member)` for each member until it says that the member is done, members side by side.

        How many threads a member has decides in which order numbers are added up, so its spec says it, never who else
        is in the stack or already done. Members with equal numbers of threads run together.
        """
        num_threads = torch.get_num_threads()
        alike: dict[int, list[int]] = {}
        for member in members:
            spec = self.members[member].spec
            alike.setdefault(spec.threads or most_threads(spec.recipe), []).append(member)
        try:
            for threads_each, some in alike.items():
                self._share_out(work, some, threads_each, min(max(1, num_threads // threads_each), len(some)))
        finally:
            torch.set_num_threads(num_threads)

    @staticmethod
    def _share_out(work: Callable[[int], bool], members: list[int], threads_each: int, num_workers: int) -> None:
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for member in members:
            waiting.put(member)

        def worker() -> None:
            torch.set_num_threads(threads_each)
            while True:
                try:
                    member = waiting.get_nowait()
                except queue.Empty:
                    return
                if not work(member):
                    waiting.put(member)

        if num_workers <= 1:
            worker()
            return
        with ThreadPoolExecutor(num_workers) as threads:
            for future in [threads.submit(worker) for _ in range(num_workers)]:
                future.result()
