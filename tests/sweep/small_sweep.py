"""What the tests of sweeps share: an experiment on three small domains, and reading off what a sweep left."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from triplee.sweep.experiment import Experiment
from triplee.sweep.grid import Grid, PlannedRun, plan_grid
from triplee.sweep.run import Standing, SweepFolder

# Of the embedded digits' kind and small, whatever a folder would be trained with.
SMALL = {"backbone": "digit-cnn", "weights": "none", "image_size": 16, "crop_area": 1.0, "lr": 0.01, "epochs": 2}

EXPERIMENT = {
    "about": "one member against two",
    "data": "digits",
    "seeds": 2,
    "baseline": "one",
    "rows": {"one": {"method": "vanilla"}, "two": {"set": {"members": 2}}},
}


def small_grid(data: Path, **changes: object) -> Grid:
    """Twelve runs: two rows, three targets, two seeds."""
    experiment = Experiment.model_validate(EXPERIMENT)
    return plan_grid("small", experiment, data=str(data), changes={**SMALL, **changes})


class Watching:
    """An observer that keeps what it is told, and does something each time."""

    def __init__(self, act: Callable[[Standing], None] = lambda _: None) -> None:
        self.act, self.standings = act, []

    def update(self, standing: Standing) -> None:
        self.standings.append(standing)
        self.act(standing)


def outcomes(runs: Sequence[PlannedRun], folder: SweepFolder) -> dict[str, dict[str, bytes]]:
    """By run, every file that says something of it but the clock: weights, metrics, configuration and result."""
    found: dict[str, dict[str, bytes]] = {}
    for run in runs:
        path = folder.run_folder(run).path
        files = {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}
        kept = {name: content for name, content in files.items() if not name.startswith(("events", "state"))}
        kept["result.json"] = json.dumps({**json.loads(kept["result.json"]), "seconds": 0, "memory_mb": 0}).encode()
        found[run.name] = kept
    return found
