"""Seconds until something happens: `triplee --help`, `import triplee`, the first training step; each in new processes.

Cold means with empty caches of compiled code; files have been read before.

    python bench/startup.py            # a minute or two; writes bench/results/startup.json, on a GPU startup-gpu.json
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 7
COMMANDS = {
    "python": ["-c", ""],
    "import torch": ["-c", "import torch"],
    "import triplee": ["-c", "import triplee"],
    "import torch and triplee's five pieces": [
        "-c",
        "import torch; from triplee import ESAug, Ensemble, PartSampler, ReplayCollate, SupConLoss",
    ],
    "triplee --help": ["-m", "triplee.cli", "--help"],
    "triplee train --help": ["-m", "triplee.cli", "train", "--help"],
}
CACHES = ("TRIPLEE_CACHE", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def first_step() -> None:
    """In a process of its own: print the seconds from import to the end of a small run's first step."""
    marks = {"start": time.perf_counter()}
    import numpy as np
    import torch

    marks["import torch"] = time.perf_counter()
    from triplee.engine.epoch import EpochProgress, MemberSpec
    from triplee.engine.stack import Stack, native_precision
    from triplee.recipes import find_recipe

    marks["import the engine"] = time.perf_counter()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = find_recipe("digits-triplee-fourier")
    images = torch.randint(0, 256, (600, 3, 32, 32), dtype=torch.uint8)
    specs = [MemberSpec(recipe, 0, k, np.arange(600), 10) for k in range(recipe.members)]
    stack = Stack(specs, images, np.arange(600) % 10, device, native_precision(recipe, device))
    marks["build"] = time.perf_counter()
    stack.train_epoch([0] * len(specs), EpochProgress.start(len(specs)), lambda: True)
    marks["first step"] = time.perf_counter()
    names, times = list(marks), list(marks.values())
    print(json.dumps({name: times[k + 1] - times[k] for k, name in enumerate(names[1:])}))


def measure_first_step(caches: Path) -> dict[str, float]:
    environment = {**os.environ, **{name: str(caches / name) for name in CACHES}}
    command = [sys.executable, __file__, "first-step"]
    start = time.perf_counter()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return {**json.loads(answer.splitlines()[-1]), "whole process": time.perf_counter() - start}


def main() -> None:
    from measuring import Report, save, summary, time_in_turn  # brings torch, which the first step waits for by itself

    report = Report("startup")
    rivals = {
        name: lambda words=words: subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
        for name, words in COMMANDS.items()
    }
    seconds = time_in_turn(rivals, ROUNDS)
    for name, values in seconds.items():
        report.add({"what": name, "seconds": summary(values)})
    beyond = zip(seconds["import torch and triplee's five pieces"], seconds["import torch"], strict=True)
    report.add({"what": "the five pieces beyond torch", "seconds": summary([a - b for a, b in beyond])})
    cold, warm = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as caches:
            cold.append(measure_first_step(Path(caches)))
            warm += [measure_first_step(Path(caches)) for _ in range(2)]
    for name, measured in (("cold", cold), ("warm", warm)):
        phases = {phase: summary([one[phase] for one in measured]) for phase in measured[0]}
        report.add({"what": f"first step of a small run, {name}", "seconds": phases})
    save(report.name, report.rows)


if __name__ == "__main__":
    first_step() if sys.argv[1:] == ["first-step"] else main()
