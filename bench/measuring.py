"""What the benches share: rivals timed in turn in one process, the machine they ran on, results as JSON."""

import json
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import PIL
import torch

import triplee  # says how many queues to a GPU there are, which is heard only before anybody asks for one

RESULTS = Path(__file__).parent / "results"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def time_in_turn(rivals: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each rival, one call of each per round, so that a noisy neighbour slows all of them alike."""
    for call in rivals.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, call in rivals.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(values: list[float], digits: int = 3) -> dict[str, float]:
    """Median, and the middle half as the spread."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": round(median, digits), "low": round(low, digits), "high": round(high, digits)}


def ratios(slow: list[float], fast: list[float]) -> dict[str, float]:
    """How many times faster, round by round."""
    return summary([s / f for s, f in zip(slow, fast, strict=True)], 2)


def machine() -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        name = models[0] if models else name
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    packages = {"triplee": triplee, "torch": torch, "numpy": numpy, "pillow": PIL}
    versions = {package: module.__version__ for package, module in packages.items()}
    return {"cpu": name, "cores": os.cpu_count(), "gpu": gpu, "python": platform.python_version(), **versions}


def save(name: str, rows: list[dict[str, Any]]) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    print(f"saved {RESULTS / name}.json")


class Report:
    """Rows of a long bench: printed as they come, saved after every section, so that one failure costs one section."""

    def __init__(self, name: str) -> None:
        self.name = f"{name}-gpu" if DEVICE.type == "cuda" else name
        self.rows: list[dict[str, Any]] = []
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(f"{self.seconds:6.1f} s  {row}", flush=True)

    @contextmanager
    def section(self, what: str) -> Iterator[None]:
        """What fails inside becomes a row, and the bench goes on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add({"what": what, "error": f"{type(error).__name__}: {error}"[:300]})
        save(self.name, self.rows)
