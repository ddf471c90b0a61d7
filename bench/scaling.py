"""What a step costs against the number of images, members, pixels, views and classes: one of them at a time.

    python bench/scaling.py    # about a minute; writes bench/results/scaling.json, on a GPU scaling-gpu.json

Digit networks, b = 4, TripleE-Fourier. On a GPU every new shape compiles kernels: most of the minute goes there.
"""

import gc
from collections.abc import Callable

import numpy as np
import torch

from measuring import DEVICE, Report, summary, time_in_turn
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack, native_precision
from triplee.settings import Recipe, make_recipe

STEPS, ROUNDS = (1200, 5) if DEVICE.type == "cuda" else (40, 5)
GPU_BASE = {"images": 10_000, "members": 12, "pixels": 32, "r": 4, "classes": 10}
GPU_AXES = {
    "members": [1, 3, 12, 36, 108],
    "r": [2, 4, 16],
    "classes": [10, 65, 345],
    "pixels": [32, 64, 128],
    "images": [1_000, 10_000, 1_000_000],
}
CPU_BASE = {**GPU_BASE, "members": 2}
CPU_AXES = {
    "members": [1, 2, 4],
    "images": [1_000, 100_000],
    "r": [1, 4, 16],
    "classes": [2, 10, 345],
    "pixels": [16, 32, 64],
}


def make_epoch(images: int, members: int, pixels: int, r: int, classes: int) -> Callable[[], None]:
    """An epoch of STEPS steps for every member of a stack, on images of noise."""
    recipe = make_recipe({"image_size": pixels, "replay": r, "members": members, "lr": 1e-4}, Recipe())
    rng = np.random.default_rng(0)
    pool = torch.randint(0, 256, (images, 3, pixels, pixels), dtype=torch.uint8, device=DEVICE)
    train_N = rng.integers(0, images, members * STEPS * recipe.batch_size)
    specs = [MemberSpec(recipe, 0, k, train_N, classes) for k in range(members)]
    stack = Stack(specs, pool, rng.integers(0, classes, images), DEVICE, native_precision(recipe, DEVICE))
    epoch = 0

    def train() -> None:
        nonlocal epoch
        progress = EpochProgress.start(members)
        stack.train_epoch([epoch] * members, progress, lambda: False)
        assert progress.steps == [STEPS] * members
        epoch += 1

    return train


def measure_axis(report: Report, axis: str, values: list[int], base: dict[str, int]) -> None:
    seconds = time_in_turn({str(value): make_epoch(**{**base, axis: value}) for value in values}, ROUNDS)
    cheapest = seconds[str(values[0])]
    for value in values:
        own = seconds[str(value)]
        num_members = value if axis == "members" else base["members"]
        report.add(
            {
                "what": f"{axis} {value:,}",
                "ms per step": summary([1000 * s / STEPS for s in own]),
                "µs per member-step": summary([1e6 * s / STEPS / num_members for s in own], 1),
                "times the first of its kind": summary([s / c for s, c in zip(own, cheapest, strict=True)], 2),
            }
        )


def main() -> None:
    base, axes = (GPU_BASE, GPU_AXES) if DEVICE.type == "cuda" else (CPU_BASE, CPU_AXES)
    report = Report("scaling")
    report.add({"what": "where nothing else is said", **base})
    for axis, values in axes.items():
        with report.section(axis):
            measure_axis(report, axis, values, base)
        gc.collect()


if __name__ == "__main__":
    main()
