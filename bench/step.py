"""Member-steps per second (TripleE-Fourier, b = 4, r = 4) of the stack as it trains: chunks, draws, views and all.

Against the usual loop, against one eager member, and against the step alone: the same steps again on views that are
already there. On a GPU also where a step's time goes and what it could be; on a CPU the share of augmentation.

    python bench/step.py       # a few minutes; writes bench/results/step.json, on a GPU step-gpu.json
"""

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from limits import ceilings, floors, kernel_times
from measuring import DEVICE, Report, ratios, summary, time_in_turn
from rivals import eager_member, pillow_batches, usual_loop, wait
from triplee.augment import apply_draw, draw_views
from triplee.data.load import load_data
from triplee.data.split import split_pool
from triplee.engine.epoch import EpochProgress, MemberSpec, Share
from triplee.engine.stack import Stack, native_precision
from triplee.engine.threads import AUGMENT_BYTES
from triplee.nets.stylizer import Stylizer
from triplee.recipes import find_recipe
from triplee.seeding import generator
from triplee.settings import Recipe, make_recipe

NUM_CLASSES, NUM_IMAGES = 10, 1000
ROUNDS, FEW_ROUNDS, LATE = 5, 3, 100  # seconds after which rounds are few
RIVAL_STEPS = 20


@dataclass(frozen=True)
class Case:
    """A network, the sizes of its stacks, and the steps of an epoch: at least two chunks where members are many."""

    name: str
    values: dict[str, Any]
    sizes: tuple[int, ...]
    compared: int  # the size that is set against the rivals
    profiled: int
    steps: int
    most_member_steps: int


RESNET = {"crop_area": 0.8, "flip": True, "lr": 1e-4}
CASES = [
    Case("ResNet-18, 224 px", {**RESNET, "backbone": "resnet18", "image_size": 224}, (1, 3, 12), 12, 1, 36, 432),
    Case("ResNet-50, 224 px", {**RESNET, "backbone": "resnet50", "image_size": 224}, (1, 3, 12), 12, 0, 36, 432),
    Case("ResNet-18, 160 px", {**RESNET, "backbone": "resnet18", "image_size": 160}, (1, 3, 12), 12, 0, 72, 864),
    Case("digit CNN, 32 px", {"lr": 1e-4}, (1, 3, 12, 36, 108), 36, 36, 1200, 43_200),
]


class Trained:
    """A stack, and its epochs of `steps` steps for every member."""

    def __init__(
        self,
        images: Tensor,
        labels_N: np.ndarray,
        train_N: np.ndarray,
        recipe: Recipe,
        steps: int,
        stylizer: Stylizer | None = None,
    ) -> None:
        chosen = np.random.default_rng(0).choice(train_N, recipe.members * steps * recipe.batch_size)
        told = (chosen, NUM_CLASSES, labels_N, stylizer)
        specs = [MemberSpec(recipe, 0, k, *told) for k in range(recipe.members)]
        self.stack = Stack(specs, images, labels_N, DEVICE, native_precision(recipe, DEVICE))
        self.steps, self.epoch = steps, 0

    @property
    def member_steps(self) -> int:
        return self.steps * len(self.stack.specs)

    def __call__(self) -> None:
        progress = EpochProgress.start(len(self.stack.specs))
        self.stack.train_epoch([self.epoch] * len(progress.steps), progress, lambda: False)
        assert sum(progress.steps) == self.member_steps, progress.failed
        self.epoch += 1

    def step_alone(self, steps: int) -> tuple[Callable[[], None], int]:
        """On a GPU: (about) so many steps as the engine replays them, without the feeding; and how many they are."""
        executor: Any = self.stack.executors[0]
        first = max(0, self.steps - steps)
        parts = {k: (first, Share.of(spec, 0)) for k, spec in enumerate(self.stack.specs)}
        chunk = executor._feed(parts, 0)
        wait()
        steps_of_chunk = max(chunk.steps.values())
        repeats = -(-steps // steps_of_chunk)

        def replay() -> None:
            for _ in range(repeats):
                executor.enqueue(chunk)
            wait()

        return replay, repeats * steps_of_chunk


def measure_feeding(report: Report, what: str, trained: Trained, epochs: int = 7) -> None:
    """What the views of a chunk take while nothing else runs: of the host, and until they are there."""
    executor: Any = trained.stack.executors[0]
    host, whole, views = [], [], 0
    for epoch in range(epochs):
        parts = {k: (0, Share.of(spec, epoch)) for k, spec in enumerate(trained.stack.specs)}
        wait()
        start = time.perf_counter()
        sizes = executor._feed(parts, 0).sizes
        host.append(1000 * (time.perf_counter() - start))
        wait()
        whole.append(1000 * (time.perf_counter() - start))
        views = sum(int(of_steps.sum()) for of_steps in sizes.values())
    times = {"host, ms": summary(host), "in all, ms": summary(whole)}
    report.add({"what": f"views of a chunk, {what}", "views": views, **times})


def smooth_images(size: int) -> Tensor:
    coarse = torch.rand(NUM_IMAGES, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    parts = [torch.nn.functional.interpolate(part, size=size, mode="bicubic") for part in coarse.split(100)]
    return torch.cat([(255 * part).clamp(0, 255).byte().cpu() for part in parts])


def measure_size(report: Report, case: Case, size: int, images: Tensor, labels_N: np.ndarray) -> None:
    """One stack on a GPU: as it trains, its step alone, and for one size the rivals, all in turn."""
    recipe = make_recipe({"members": size, **case.values}, find_recipe("digits-triplee-fourier"))
    everything = np.arange(len(images))
    calls: dict[str, Callable[[], None]] = {}
    if size == case.compared:  # first of all: worker processes are better started before there are threads
        batches = pillow_batches(images, labels_N, everything, recipe)
        next(batches)
        for name, bfloat16 in (("usual loop, float32", False), ("usual loop, bfloat16, channels-last", True)):
            calls[name] = usual_loop(batches, recipe, NUM_CLASSES, RIVAL_STEPS, bfloat16)
        spec = MemberSpec(recipe, 0, 0, np.resize(everything, size * 4 * RIVAL_STEPS), NUM_CLASSES)
        calls["one eager member"] = eager_member(images, labels_N, spec, RIVAL_STEPS)
    trained = Trained(images, labels_N, everything, recipe, min(case.steps, case.most_member_steps // size))
    trained()
    alone, steps = trained.step_alone(trained.steps)
    calls = {"stack": trained, "step alone": alone, **calls}
    member_steps = dict.fromkeys(calls, RIVAL_STEPS) | {
        "stack": trained.member_steps,
        "step alone": steps * size,
    }
    measured = time_in_turn(calls, ROUNDS if report.seconds < LATE else FEW_ROUNDS)
    seconds = {name: [value / member_steps[name] for value in values] for name, values in measured.items()}
    stack, step_alone = seconds.pop("stack"), seconds.pop("step alone")
    shares = [100 * a / s for a, s in zip(step_alone, stack, strict=True)]
    row = {"what": case.name, "members": size, "member-steps/s": summary([1 / s for s in stack], 1)}
    row |= {"ms per member-step": summary([1000 * s for s in stack])}
    row |= {"the step alone, member-steps/s": summary([1 / s for s in step_alone], 1)}
    row |= {"percent of the step alone": summary(shares, 1), "note": trained.stack.note}
    row |= {f"{name}, s": round(trained.stack.seconds[name], 2) for name in ("build", "compile")}
    report.add(row)
    for name, values in seconds.items():
        row = {
            "what": f"{case.name}, stack of {size}",
            "against": name,
            "its steps/s": summary([1 / s for s in values], 1),
        }
        report.add(
            {**row, "its ms": summary([1000 * s for s in values]), "stack, times as fast": ratios(values, stack)}
        )
    if size == case.compared:
        with report.section(f"feeding of {case.name}"):
            measure_feeding(report, f"{case.name}, {size} members", trained)
    if size == case.profiled:
        with report.section(f"profile of {case.name}"):
            some, steps = trained.step_alone(10)
            some()
            start = time.perf_counter()
            some()
            wall = 1e6 * (time.perf_counter() - start) / steps
            what = f"profile of a step, {case.name}, {size} members"
            report.add({"what": what, "wall, µs": round(wall, 1), **kernel_times(some, steps)})


def measure_floors(report: Report, case: Case, reached: dict[str, float]) -> None:
    recipe = make_recipe(case.values, find_recipe("digits-triplee-fourier"))
    row = {"what": f"floors of a member-step, {case.name}", **floors(recipe, NUM_CLASSES, reached)}
    measured = {(row["what"], row.get("members")): row for row in report.rows}
    if own := measured.get((case.name, case.compared)):
        alone = 1e6 / own["the step alone, member-steps/s"]["median"]
        highest = max(row["arithmetic floor, µs"], row["memory floor, µs"])
        row |= {"step alone, µs": round(alone, 1), "times the higher floor": round(alone / highest, 1)}
    report.add(row)


def on_gpu(report: Report) -> None:
    torch.backends.cudnn.benchmark = True  # for the rivals: the engine's captures set it themselves
    with report.section("ceilings"):
        reached = ceilings()
    for case in CASES:
        with report.section(case.name):
            images = smooth_images(case.values.get("image_size", 32))
            labels_N = np.random.default_rng(0).integers(0, NUM_CLASSES, len(images))
            for size in sorted(case.sizes, key=lambda size: (size != case.compared, size)):
                with report.section(f"{case.name}, {size} members"):
                    measure_size(report, case, size, images, labels_N)
                gc.collect()
                torch.cuda.empty_cache()
            measure_floors(report, case, reached)


def on_cpu(report: Report, steps: int = 100, rounds: int = 7) -> None:
    """Three members on the embedded digits."""
    pool = load_data("digits", 32)
    images, labels_N, train_N = pool.images_NCHW[:], pool.labels_N, split_pool(pool, "textured", 0).train_N

    def trained(members: int = 3, **values: object) -> Trained:
        recipe = make_recipe({"members": members, **values}, find_recipe("digits-triplee-fourier"))
        return Trained(images, labels_N, train_N, recipe, 3 * steps // members)

    recipe = find_recipe("digits-triplee-fourier")
    batches = pillow_batches(images, labels_N, train_N, recipe)
    calls: dict[str, Callable[[], None]] = {
        "usual loop": usual_loop(batches, recipe, NUM_CLASSES, 3 * steps, bfloat16=False),
        "stack float32": trained(precision="float32"),
        "stack": trained(),
        "stack without augmentation": trained(augment="none"),
        "one member alone": trained(1),
    }
    with report.section("digits"):
        seconds = time_in_turn(calls, rounds)
        for name, values in seconds.items():
            row = {"what": name, "steps/s": summary([3 * steps / v for v in values], 1)}
            report.add({**row, "times the usual loop": ratios(seconds["usual loop"], values)})
    with report.section("share of augmentation"):
        shares = summary(list(augmentation_shares(images, train_N, trained(1), rounds)), 1)
        report.add({"what": "share of augmentation in a step", "percent": shares})
    precision = native_precision(recipe, DEVICE)
    report.add({"what": "precision of the stack", "precision": precision, "threads": torch.get_num_threads()})


def augmentation_shares(images: Tensor, train_N: np.ndarray, trained: Trained, rounds: int) -> Iterator[float]:
    """Percent of a step's time spent on drawing and applying ESAug, in the engine's chunks and on one thread."""
    recipe, rng = trained.stack.specs[0].recipe, generator(0, "bench")
    views_per_step = recipe.batch_size * recipe.replay
    steps_at_once = AUGMENT_BYTES // (views_per_step * images[0].numel())

    def augment() -> None:
        num_views = steps_at_once * views_per_step
        apply_draw(images, rng.choice(train_N, num_views), draw_views(recipe, rng, num_views, train_N))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = time_in_turn({"augment": augment, "steps": trained}, rounds)
    torch.set_num_threads(threads)
    for augmenting, training in zip(seconds["augment"], seconds["steps"], strict=True):
        yield 100 * (augmenting / steps_at_once) / (training / trained.member_steps)


def main() -> None:
    report = Report("step")
    with report.section("all"):
        on_gpu(report) if DEVICE.type == "cuda" else on_cpu(report)


if __name__ == "__main__":
    main()
