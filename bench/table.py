"""A whole table – targets × seeds × members – in one stack: wall time by what it went to, and the accuracies.

With --eager also the steps of one member in a plain eager loop, measured in the same run.

    python bench/table.py DIGITS_DG --eager    # the folder of Digits-DG; on a GPU; writes bench/results/table.json
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import torch

from measuring import DEVICE, save, summary, time_in_turn
from rivals import eager_member
from triplee.cli.choices import choose_recipe
from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import train as train_module
from triplee.engine.epoch import MemberSpec
from triplee.engine.run_state import Run
from triplee.engine.stack import Stack, native_precision
from triplee.engine.train import train_runs

ROUNDS, EAGER_STEPS = 7, 50


class WatchedStack(Stack):
    """The engine's stack, which is kept for its clocks when training is over."""

    built: ClassVar[list["WatchedStack"]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.member_steps_per_second: list[float] = []  # of each call of train_epoch
        self.built.append(self)

    def train_epoch(self, epoch_M: Any, progress: Any, after_steps: Any) -> None:
        steps, seconds = sum(progress.steps), self.seconds["train"]
        super().train_epoch(epoch_M, progress, after_steps)
        self.member_steps_per_second.append((sum(progress.steps) - steps) / (self.seconds["train"] - seconds))


class EveryTenEpochs:
    """A line per ten epochs: the mean over the runs."""

    def __init__(self, num_runs: int) -> None:
        self.num_runs = num_runs

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None:
        self.num_epochs, self.started, self.rows = num_epochs, time.monotonic(), []
        print(f"{num_steps:,} member-steps; {title}", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)

    def progress(self, steps_done: int, loss: float | None) -> None:
        pass

    def epoch(self, row: dict[str, Any], name: str) -> None:
        if self.rows and self.rows[0]["epoch"] != row["epoch"]:
            self.rows = []
        self.rows.append(row)
        if len(self.rows) == self.num_runs and (row["epoch"] % 10 == 0 or row["epoch"] == self.num_epochs):
            val, target = (statistics.mean(r[key] for r in self.rows) for key in ("val_accuracy", "target_accuracy"))
            seconds = time.monotonic() - self.started
            print(f"epoch {row['epoch']}: val {val:.1f}  target {target:.1f}  {seconds:.0f} s", flush=True)


def eager_steps_per_second(pool: Pool, spec: MemberSpec) -> list[float]:
    """Steps per second of one member by itself."""
    torch.backends.cudnn.benchmark = True  # as the engine's captures have it
    take = eager_member(pool.images_NCHW[:], pool.labels_N, spec, EAGER_STEPS)
    return [EAGER_STEPS / seconds for seconds in time_in_turn({"eager": take}, ROUNDS)["eager"]]


def accuracy_rows(runs: list[Run], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By target and on average: mean and standard deviation over seeds."""
    keys = ("accuracy", "val_accuracy", "members_alone", "last_accuracy", "oracle_accuracy")
    table: dict[str, dict[str, list[float]]] = {key: {} for key in keys}
    for run, result in zip(runs, results, strict=True):
        for key in table:
            value = statistics.mean(result["members"]) if key == "members_alone" else result[key]
            table[key].setdefault(run.split.target, []).append(value)
    rows = []
    targets = list(dict.fromkeys(run.split.target for run in runs))
    for target in [*targets, "average"]:
        row: dict[str, Any] = {"target": target}
        for key, by_target in table.items():
            values = by_target.get(target) or [statistics.mean(v) for v in zip(*by_target.values(), strict=True)]
            if key == "accuracy":
                row["seed by seed"] = [round(value, 2) for value in values]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            row[key] = {"mean": round(statistics.mean(values), 2), "sd": round(spread, 2)}
        rows.append(row)
        print(f"{target:<14}" + "  ".join(f"{key} {row[key]['mean']:.1f} ± {row[key]['sd']:.1f}" for key in table))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder <domain>/<class>/<image>, a benchmark's name or digits")
    parser.add_argument("--root", type=Path, help="folder that holds the benchmarks")
    parser.add_argument("--recipe", default="digits-triplee-fourier")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--targets", help="comma-separated (default: every domain)")
    parser.add_argument("--chosen", type=Path, metavar="JSON", help="of bench/choose.py --cross: values by target")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="measure one eager member as well")
    parser.add_argument("--out", type=Path, help="keep the run folders here")
    parser.add_argument("--name", default="table", help="of the JSON file")
    options = parser.parse_args()
    recipe, recipe_name = choose_recipe(options.recipe, options.changes)
    found = json.loads(options.chosen.read_text())["rows"] if options.chosen else []
    chosen = {row["chosen for"]: row["changes"] for row in found if "chosen for" in row}
    begin = time.perf_counter()
    pool = load_data(options.data, recipe.image_size, root=options.root)
    seconds = {"load": time.perf_counter() - begin}
    targets = options.targets.split(",") if options.targets else pool.domains
    if options.chosen and not chosen.keys() >= set(targets):
        parser.error(f"{options.chosen} has no values for each of {', '.join(targets)}: was it made with --cross?")
    recipes = {
        target: choose_recipe(options.recipe, [*options.changes, *chosen.get(target, [])])[0] for target in targets
    }
    train_module.Stack = WatchedStack
    with tempfile.TemporaryDirectory() as scratch:
        runs = [
            Run(
                split_pool(pool, target, seed),
                recipes[target],
                (options.out or Path(scratch)) / f"{target}-{seed}",
                recipe_name,
                seed,
            )
            for target in targets
            for seed in range(options.first_seed, options.first_seed + options.seeds)
        ]
        results = train_runs(pool, runs, observer=EveryTenEpochs(len(runs)), device=DEVICE)
    seconds["total"] = time.perf_counter() - begin
    stack = WatchedStack.built[-1]
    seconds |= stack.seconds
    measured = sum(value for name, value in seconds.items() if name != "total")
    seconds["files and the rest"] = seconds["total"] - measured
    speeds = stack.member_steps_per_second
    rows: list[dict[str, Any]] = [
        {
            "what": f"{len(runs)} runs of {recipe_name}, {len(stack.specs)} members, {recipe.epochs} epochs",
            "changes": options.changes,
            **({"changes by target": chosen} if chosen else {}),
            "seeds": list(dict.fromkeys(run.seed for run in runs)),
            "images": len(pool.labels_N),
            "precision": native_precision(recipe, DEVICE),
            "note": stack.note,
            "seconds": {key: round(value, 2) for key, value in seconds.items()},
            "member-steps/s by epoch": {"median": round(statistics.median(speeds)), "lowest": round(min(speeds))},
        }
    ]
    print(rows[0])
    accuracies = accuracy_rows(runs, results)
    if options.eager:
        eager = eager_steps_per_second(pool, stack.specs[0])
        times = [statistics.median(speeds) / speed for speed in eager]
        rows.append({"what": "one eager member", "steps/s": summary(eager, 1), "stack, times eager": summary(times, 1)})
        print(rows[-1])
    save(options.name, [*rows, *accuracies])


if __name__ == "__main__":
    main()
