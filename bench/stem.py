"""What the fused stem saves a ResNet-18 at 224 px, by its step alone, and what a queue to the GPU for each stream does.

Twelve members with torch's stem and with ours, in turn in one process; how many queues there are is said to a process
as it starts, so each number of them has one of its own, and they take turns too.

    python bench/stem.py    # on a GPU, some two minutes; writes bench/results/stem-gpu.json
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np

from measuring import Report, ratios, summary, time_in_turn
from step import CASES, NUM_CLASSES, Trained, smooth_images
from triplee.nets import network
from triplee.recipes import find_recipe
from triplee.settings import make_recipe

QUEUES, TURNS, ROUNDS = (8, 32), 2, 5  # eight are CUDA's own choice
CASE = next(case for case in CASES if case.name == "ResNet-18, 224 px")


def milliseconds(rounds: int) -> dict[str, list[float]]:
    """Of a member-step by either stem, in this process."""
    recipe = make_recipe({"members": CASE.compared, **CASE.values}, find_recipe("digits-triplee-fourier"))
    images = smooth_images(recipe.image_size)
    labels_N = np.random.default_rng(0).integers(0, NUM_CLASSES, len(images))
    fits_stem = network.fits_stem
    calls: dict[str, Callable[[], None]] = {}
    for name, fits in (("torch's stem", lambda *_: False), ("our stem", fits_stem)):
        network.fits_stem = fits  # pyright: ignore[reportPrivateImportUsage]
        trained = Trained(images, labels_N, np.arange(len(images)), recipe, CASE.steps)
        trained()  # captures its steps
        calls[name], steps = trained.step_alone(CASE.steps)
    each = 1000 / (steps * CASE.compared)
    return {name: [each * value for value in values] for name, values in time_in_turn(calls, rounds).items()}


def in_own_process(queues: int) -> dict[str, list[float]]:
    environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": str(queues)}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", action="store_true", help="measure with as many queues as there are, and print")
    if parser.parse_args().child:
        print(json.dumps(milliseconds(ROUNDS)))
        return
    report = Report("stem")
    measured: dict[tuple[int, str], list[float]] = {}
    with report.section("stem"):
        for _ in range(TURNS):
            for queues in QUEUES:
                for stem, values in in_own_process(queues).items():
                    measured.setdefault((queues, stem), []).extend(values)
        (_, before), *_ = measured.items()
        for (queues, stem), values in measured.items():
            row = {"what": f"{CASE.compared} × {CASE.name}, step alone", "queues": queues, "stem": stem}
            report.add({**row, "ms per member-step": summary(values), "times as fast": ratios(before, values)})


if __name__ == "__main__":
    main()
