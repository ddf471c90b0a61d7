"""Values of a recipe by leaving out one source more: the way digits recipes were chosen, in which no target is seen.

For target T each other domain H is held out in turn, members train on the rest, and the ensemble's accuracy on H after
the last epoch counts; T's images take no part. All settings train in one stack, and windows of averaged weights are
tried on the same training. For a GPU, and digit networks. Not a bench of speed: it writes a table of accuracies.

    python bench/choose.py DIGITS_DG --epochs 60 --try lr=0.002 --try lr=0.003,lr_gamma=1   # bench/results/choose.json
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from measuring import DEVICE, save
from triplee.cli.choices import choose_recipe
from triplee.data.load import load_data
from triplee.data.split import split_pool
from triplee.engine.ensemble import accuracies
from triplee.engine.epoch import EpochProgress
from triplee.engine.run_state import Run
from triplee.engine.stack import Stack, native_precision
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder <domain>/<class>/<image>, a benchmark's name or digits")
    parser.add_argument("--root", type=Path, help="folder that holds the benchmarks")
    parser.add_argument("--recipe", default="digits-triplee-fourier")
    parser.add_argument("--epochs", type=int, default=100, help="decays come as early as these are fewer than 100")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--windows", default="1,5,10,20,40", help="epochs that weights are averaged over")
    parser.add_argument("--try", action="append", default=[], metavar="KEY=VALUE,...", dest="settings")
    parser.add_argument("--name", default="choose", help="of the JSON file")
    options = parser.parse_args()
    windows = [int(window) for window in options.windows.split(",")]
    settings: dict[str, Recipe] = {}
    for setting in options.settings or [""]:
        recipe, _ = choose_recipe(options.recipe, [change for change in setting.split(",") if change])
        steps = {"epochs": options.epochs, "lr_step": max(1, recipe.lr_step * options.epochs // 100)}
        settings[setting] = make_recipe(steps, recipe)
    any_recipe = next(iter(settings.values()))
    pool = load_data(options.data, any_recipe.image_size, root=options.root)
    runs, specs = [], []
    for setting, recipe in settings.items():
        for target in pool.domains:
            for held_out in pool.domains:
                if held_out != target:
                    split = split_pool(pool, held_out, options.seed, left_out=target)
                    run = Run(split, recipe, Path(), setting, options.seed)
                    runs.append((setting, target, split, range(len(specs), len(specs) + recipe.members)))
                    specs += run.member_specs(pool)
    stack = Stack(specs, pool.images_NCHW, pool.labels_N, DEVICE, native_precision(any_recipe, DEVICE))
    averaged, began = Averages(stack, windows, options.epochs), time.monotonic()
    for epoch in range(options.epochs):
        progress = EpochProgress.start(len(specs))
        stack.train_epoch([epoch] * len(specs), progress, lambda: False)
        averaged.take_in(epoch)
        if progress.failed or epoch % 10 == 9:
            print(f"epoch {epoch + 1}: {time.monotonic() - began:.0f} s, failed {progress.failed}", flush=True)
    stack.close()
    rows: list[dict[str, Any]] = []
    for window in windows:
        averaged.choose(window)
        for setting in settings:
            found: dict[str, list[float]] = {}
            for name, target, split, members in runs:
                if name == setting:
                    outputs = stack.probabilities(members, split.target_N)
                    found.setdefault(target, []).append(accuracies(outputs, pool.labels_N[split.target_N])[0])
            row = {target: round(statistics.mean(values), 2) for target, values in found.items()}
            mean = round(statistics.mean(row.values()), 2)
            rows.append({"what": setting or "the recipe", "averaged epochs": window, **row, "mean": mean})
            print(rows[-1], flush=True)
    save(options.name, rows)


if __name__ == "__main__":
    main()
