"""Values of a recipe by leaving out one source more: the way digits recipes were chosen, in which no target is seen.

For target T each other domain H is held out in turn, members train on the rest, and the ensemble's accuracy on H after
the last epoch counts; T's images take no part, not even in fitting stylizers. All settings train in one stack. For a
GPU and digit networks; writes a table of accuracies and, with --cross, what to take for each target.

    python bench/choose.py DIGITS_DG --epochs 60 --try lr=0.002 --try lr=0.003,lr_gamma=1   # bench/results/choose.json
"""

import argparse
import json
import statistics
import tempfile
import time
from itertools import permutations, product
from pathlib import Path
from typing import Any

from measuring import DEVICE, save
from triplee.cli.choices import choose_recipe
from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.ensemble import accuracies
from triplee.engine.epoch import EpochProgress
from triplee.engine.run_state import Run
from triplee.engine.stack import Stack, native_precision
from triplee.engine.stylizers import find_stylizer
from triplee.nets.stylizer import Stylizer
from triplee.settings import Recipe, make_recipe


class Averages:
    """Running averages of batched members' weights, with several windows beside each other."""

    def __init__(self, stack: Stack, windows: list[int], epochs: int) -> None:
        networks: list[Any] = [executor.stack for executor in dict.fromkeys(stack.executors.values())]  # pyright: ignore[reportAttributeAccessIssue]
        self.recipes = {w: make_recipe({"epochs": epochs, "average_share": w / epochs}) for w in windows}
        self.averages = {window: [(one, one.weights.clone()) for one in networks] for window in windows}

    def take_in(self, epoch: int) -> None:
        for window, averages in self.averages.items():
            for networks, average in averages:
                average.lerp_(networks.weights, self.recipes[window].average_weight(epoch))

    def choose(self, window: int) -> None:
        """What the stack predicts by from now on."""
        for networks, average in self.averages[window]:
            networks.averages.copy_(average)


def stylizer_of(run: Run, pool: Pool) -> Stylizer | None:
    """The stylizer of a run that restyles views; fits are cached by their sources."""
    if not run.recipe.restyles:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        own_file = Path(scratch) / "stylizer.safetensors"
        return find_stylizer(run.recipe, pool, run.split.source_domains, own_file, DEVICE, lambda *_: False)


def take_best(rows: list[dict[str, Any]], target: str, epochs: int) -> dict[str, Any]:
    """For one target: the window, then each key's value, with the highest mean in its column over all settings.

    Of equal ones the first.
    """
    windows = dict.fromkeys(row["averaged epochs"] for row in rows)
    means = {f"window {window}": mean_of(rows, target, window) for window in windows}
    window = max(windows, key=lambda one: means[f"window {one}"])
    by_key: dict[str, dict[str, float]] = {}
    for change in dict.fromkeys(change for row in rows for change in row["what"].split(",")):
        by_key.setdefault(change.partition("=")[0], {})[change] = mean_of(rows, target, window, change)
    best = [max(changes, key=lambda change: changes[change]) for changes in by_key.values()]
    means |= {change: mean for changes in by_key.values() for change, mean in changes.items()}
    rounded = {name: round(mean, 2) for name, mean in means.items()}
    return {"chosen for": target, "changes": [f"average_share={window / epochs:g}", *best], "means": rounded}


def mean_of(rows: list[dict[str, Any]], target: str, window: int, change: str | None = None) -> float:
    """Of a target's column, over all settings with this window and this change."""
    own = [row for row in rows if row["averaged epochs"] == window]
    return statistics.mean(row[target] for row in own if change is None or change in row["what"].split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder <domain>/<class>/<image>, a benchmark's name or digits")
    parser.add_argument("--root", type=Path, help="folder that holds the benchmarks")
    parser.add_argument("--recipe", default="digits-triplee-fourier")
    parser.add_argument("--epochs", type=int, default=100, help="decays come as early as these are fewer than 100")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--windows", default="1,5,10,20,40", help="epochs that weights are averaged over")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--try", action="append", default=[], metavar="KEY=VALUE,...", dest="settings")
    which.add_argument(
        "--cross",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE,...",
        dest="crossed",
        help="every value with every other, and what they come to for each target, by its own column alone",
    )
    parser.add_argument("--beside", type=Path, metavar="JSON", help="of another --cross, to choose from with this one")
    parser.add_argument("--name", default="choose", help="of the JSON file")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    windows = [int(window) for window in options.windows.split(",")]
    crossed = []
    for change in options.crossed:
        key, _, values = change.partition("=")
        crossed.append([f"{key}={value}" for value in values.split(",")])
    how = {"recipe": options.recipe, "epochs": options.epochs, "seeds": list(seeds), "windows": windows}
    beside = json.loads(options.beside.read_text())["rows"] if options.beside else []
    if beside and (not crossed or beside[0] != how):
        parser.error(f"--beside goes with --cross and a search of the same kind: {how}")
    settings: dict[str, Recipe] = {}
    for setting in options.settings or [",".join(changes) for changes in product(*crossed)]:
        recipe, _ = choose_recipe(options.recipe, [change for change in setting.split(",") if change])
        steps = {"epochs": options.epochs, "lr_step": max(1, recipe.lr_step * options.epochs // 100)}
        settings[setting] = make_recipe(steps, recipe)
    any_recipe = next(iter(settings.values()))
    pool = load_data(options.data, any_recipe.image_size, root=options.root)
    stylizers: dict[object, Stylizer | None] = {}  # one object for all runs with the same: they share its table
    runs, specs = [], []
    for (setting, recipe), seed in product(settings.items(), seeds):
        for target, held_out in permutations(pool.domains, 2):
            run = Run(split_pool(pool, held_out, seed, left_out=target), recipe, Path(), setting, seed)
            runs.append((run, target, range(len(specs), len(specs) + recipe.members)))
            key = recipe.restyles, recipe.stylizer, run.split.source_domains
            if key not in stylizers:
                stylizers[key] = stylizer_of(run, pool)
            specs += run.member_specs(pool, stylizers[key])
    stack = Stack(specs, pool.images_NCHW, pool.labels_N, DEVICE, native_precision(any_recipe, DEVICE))
    averaged, began = Averages(stack, windows, options.epochs), time.monotonic()
    for epoch in range(options.epochs):
        progress = EpochProgress.start(len(specs))
        stack.train_epoch([epoch] * len(specs), progress, lambda: False)
        averaged.take_in(epoch)
        if progress.failed or epoch % 10 == 9:
            print(f"epoch {epoch + 1}: {time.monotonic() - began:.0f} s, failed {progress.failed}", flush=True)
    stack.close()
    rows = [row for row in beside if "averaged epochs" in row]
    for window in windows:
        averaged.choose(window)
        for setting in settings:
            found: dict[str, list[float]] = {}
            by_seed: dict[str, list[float]] = {}
            for run, target, members in runs:
                if run.recipe_name == setting:
                    images_N = run.split.target_N
                    accuracy, _ = accuracies(stack.probabilities(members, images_N), pool.labels_N[images_N])
                    found.setdefault(target, []).append(accuracy)
                    by_seed.setdefault(f"seed {run.seed}", []).append(accuracy)
            by_seed = by_seed if len(by_seed) > 1 else {}
            row = {name: round(statistics.mean(values), 2) for name, values in {**found, **by_seed}.items()}
            mean = round(statistics.mean(row[target] for target in found), 2)
            rows.append({"what": setting or "the recipe", "averaged epochs": window, **row, "mean": mean})
            print(rows[-1], flush=True)
    chosen = [take_best(rows, target, options.epochs) for target in pool.domains] if crossed else []
    for row in chosen:
        print(row)
    save(options.name, [how, *rows, *chosen])


if __name__ == "__main__":
    main()
