"""What statistics a network with batch norm is tested with, each suspect alone, on the same weights (docs/results.md).

Members train in one stack; then each takes some more steps eagerly, whose batch means and variances are kept apart, so
that several running averages of the same steps can be put into the same last weights. After that the weights stand
still, and statistics of other batches are taken: with replay or without, small or large, clean or augmented, with the
fused kernels or torch's own batch norm. For a GPU; writes bench/results/batch-norm.json.

    python bench/batch_norm.py pacs --root DATA --set weights=FILE --targets photo,cartoon
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from measuring import DEVICE, save
from triplee.augment import apply_draw
from triplee.cli.choices import choose_recipe
from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.ensemble import accuracies
from triplee.engine.epoch import EpochProgress, MemberSpec, Share
from triplee.engine.member import Member
from triplee.engine.run_state import Run
from triplee.engine.stack import Stack, native_precision
from triplee.nets import fused
from triplee.settings import make_recipe

STEPS = 600  # of the eager stretch: almost four windows of the running average
WINDOW = 0.1 * 4 / 64  # momentum of the running average that networks of b = 4 were tested with before
IMAGES_AT_ONCE = 256  # in tests
TRAIN_IMAGES = 1000  # of the clean training images that are tested

# The kinds of run that are compared; what is not said is the recipe's.
KINDS: dict[str, dict[str, Any]] = {
    "b = 4, r = 4, m = 1": {"members": 1},
    "b = 4, r = 4, m = 3": {"members": 3},
    "b = 16, r = 1, m = 1": {"members": 1, "batch_size": 16, "replay": 1},
    "b = 64, r = 1, m = 1, lr 0.01": {"members": 1, "batch_size": 64, "replay": 1, "lr": 0.01},
}


class Moments:
    """Means of what batches gave: their means, their variances, and the squares of their means."""

    def __init__(self) -> None:
        self.mean = self.variance = self.square = torch.zeros(())
        self.count = 0

    def add(self, mean: Tensor, variance: Tensor, weight: float | None = None) -> None:
        """Take in a batch with this weight; with none, all batches count alike."""
        self.count += 1
        weight = 1 / self.count if weight is None or self.count == 1 else weight
        for name, value in (("mean", mean), ("variance", variance), ("square", mean.square())):
            old = getattr(self, name).to(value)
            setattr(self, name, old + weight * (value - old))

    @property
    def within(self) -> tuple[Tensor, Tensor]:
        """As torch averages: what lies between batches is lost."""
        return self.mean, self.variance

    @property
    def total(self) -> tuple[Tensor, Tensor]:
        return self.mean, self.variance + self.square - self.mean.square()


class Watched:
    """A member whose batch norm hands over each batch's own statistics."""

    def __init__(self, spec: MemberSpec, tensors: dict[str, Tensor], pool: Pool, images: Tensor) -> None:
        self.spec, self.images = spec, images
        self.member = Member(spec, DEVICE, native_precision(spec.recipe, DEVICE))
        self.member.network.load_state_dict(tensors)
        assert self.member.flat is not None or DEVICE.type == "cpu"
        if self.member.flat:
            self.member.flat.round()
        self.labels_N = torch.from_numpy(pool.labels_N).to(DEVICE)
        self.layers: list[Any] = self.member.training_network.batch_norms
        for layer in self.layers:
            layer.momentum = 1.0

    def last(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the last batch, all layers end to end."""
        return torch.cat([n.running_mean for n in self.layers]), torch.cat([n.running_var for n in self.layers])

    def use(self, found: tuple[Tensor, Tensor]) -> None:
        sizes = [len(layer.running_mean) for layer in self.layers]
        for layer, mean, variance in zip(self.layers, found[0].split(sizes), found[1].split(sizes), strict=True):
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)

    def train(self, share: Share, averages: dict[str, tuple[Moments, float]]) -> None:
        """Some steps, which running averages follow."""
        self.member.training_network.train()
        self.member.set_rate(share.rate)
        for index_V, views in self.batches(share):
            self.member.step(views, self.labels_N[torch.from_numpy(index_V).to(DEVICE)])
            for moments, momentum in averages.values():
                moments.add(*self.last(), momentum)

    def batches(self, share: Share) -> Iterator[tuple[np.ndarray, Tensor]]:
        for start, stop in zip(share.bounds[:STEPS], share.bounds[1 : STEPS + 1], strict=False):
            index_V = share.index_V[start:stop]
            yield index_V, apply_draw(self.images, index_V, share.draw[start:stop])

    @torch.no_grad()
    def observe(self, batches: Iterable[Tensor]) -> Moments:
        """Statistics of batches, the weights standing still."""
        moments, network = Moments(), self.member.training_network
        network.train()
        for views in batches:
            with self.member._autocast():
                network.features(views)
            moments.add(*self.last())
        return moments

    def test(self, found: tuple[Tensor, Tensor], index_N: np.ndarray) -> Tensor:
        self.use(found)
        self.member.averaged.eval()
        index = torch.from_numpy(index_N).to(DEVICE)
        return torch.cat([self.member.predict(self.images[part]) for part in index.split(IMAGES_AT_ONCE)])


def views_of(watched: Watched, epoch: int, **changes: Any) -> Iterator[Tensor]:
    """Augmented views of an epoch, in other batches than the member's own."""
    recipe = make_recipe({**changes, "members": 1}, watched.spec.recipe)
    share = Share.of(replace(watched.spec, recipe=recipe, index=0), epoch)
    return (views for _, views in watched.batches(share))


def clean(watched: Watched, index_N: np.ndarray, size: int) -> Iterator[Tensor]:
    for part in torch.from_numpy(index_N).to(DEVICE).tensor_split(max(1, len(index_N) // size)):
        yield watched.images[part]


def with_torchs_own(observe: Callable[[], Moments]) -> Moments:
    """Without the fused kernels."""
    before, fused.find_kernels = fused.find_kernels, lambda _: None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        return observe()
    finally:
        fused.find_kernels = before


def kept_and_anew(watched: Watched, rng: np.random.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """What the engine gave the weights that it tested, and many more images in larger batches."""
    kept, index_N = watched.last(), rng.permutation(watched.spec.train_N)[:4096]
    return {
        "as kept by the run": kept,
        "taken anew, of the same weights": watched.observe(clean(watched, index_N, 256)).total,
    }


def statistics_of(watched: Watched, epoch: int, rng: np.random.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """By name: mean and variance for every layer, after some more steps."""
    averages = {
        "running, torch's (window 160 steps)": (Moments(), WINDOW),
        "running, torch's (window 10 steps)": (Moments(), 0.1),
    }
    share = Share.of(watched.spec, epoch)
    watched.train(share, averages)
    running = {name: moments.within for name, (moments, _) in averages.items()}
    running |= {name.replace("torch's", "E[x], E[x²]"): moments.total for name, (moments, _) in averages.items()}
    all_N, own_N = rng.permutation(watched.spec.train_N), np.unique(share.index_V)
    own_N = rng.permutation(own_N)
    replayed = watched.observe(views for _, views in watched.batches(share))
    plain = with_torchs_own(lambda: watched.observe(views for _, views in watched.batches(share)))
    large = watched.observe(views_of(watched, epoch, batch_size=64, replay=1))
    small_clean = watched.observe(clean(watched, all_N[: 4 * STEPS], 4))
    still = {
        "still, replayed batches, variance within": replayed.within,
        "still, replayed batches, torch's batch norm, variance within": plain.within,
        "still, replayed batches, all variance": replayed.total,
        "still, batches of 64 views, variance within": large.within,
        "still, batches of 64 views, all variance": large.total,
        "still, clean batches of 4, variance within": small_clean.within,
        "still, clean batches of 4, all variance": small_clean.total,
        "still, 1,024 clean images of the epoch's part, batches of 64": watched.observe(
            clean(watched, own_N[:1024], 64)
        ).total,
        "still, 4,096 clean images, batches of 256": watched.observe(clean(watched, all_N[:4096], 256)).total,
    }
    for count in (128, 256, 512, 1024, 2048, 4096):
        found = watched.observe(clean(watched, all_N[:count], 64)).total
        still[f"still, {count:,} clean images, batches of 64"] = found
    return running | still


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder <domain>/<class>/<image>, a benchmark's name or digits")
    parser.add_argument("--root", type=Path, help="folder that holds the benchmarks")
    parser.add_argument("--recipe", default="pacs-resnet18-short")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--targets", required=True, help="comma-separated")
    parser.add_argument("--kinds", default=";".join(KINDS), help="separated by semicolons")
    parser.add_argument("--kept-only", action="store_true", help="what a run keeps, against statistics taken anew")
    parser.add_argument("--name", default="batch-norm", help="of the JSON file")
    options = parser.parse_args()
    # The rate falls at 40 and 80 % of the epochs.
    base, _ = choose_recipe(options.recipe, [*options.changes, f"epochs={options.epochs + 1}"])
    base = make_recipe({"lr_step": max(1, options.epochs * 2 // 5)}, base)
    pool = load_data(options.data, base.image_size, root=options.root)
    runs = [
        (kind, Run(split_pool(pool, target, 0), make_recipe(changes, base), Path(tempfile.gettempdir()), kind, 0))
        for target in options.targets.split(",")
        for kind, changes in KINDS.items()
        if kind in options.kinds.split(";")
    ]
    specs = [run.member_specs(pool) for _, run in runs]
    flat = [spec for some in specs for spec in some]
    precision = native_precision(base, DEVICE)
    stack = Stack(flat, pool.images_NCHW, pool.labels_N, DEVICE, precision)
    for epoch in range(options.epochs):
        progress = EpochProgress.start(len(flat))
        stack.train_epoch([epoch] * len(flat), progress, lambda: False)
        print(f"epoch {epoch + 1}: {stack.seconds}", flush=True)
    stack.close()
    weights = [stack.executors[k].tensors(k).network for k in range(len(flat))]
    images, first = pool.images_NCHW[:].to(DEVICE), 0
    rows: list[dict[str, Any]] = []
    for (kind, run), some in zip(runs, specs, strict=True):
        rng = np.random.default_rng(0)
        train_N = rng.permutation(run.split.train_N)[:TRAIN_IMAGES]
        sets = {"train": train_N, "val": run.split.val_N, "target": run.split.target_N}
        index_N = np.concatenate(list(sets.values()))
        members = [Watched(spec, weights[first + k], pool, images) for k, spec in enumerate(some)]
        first += len(some)
        ways = [kept_and_anew] if options.kept_only else [kept_and_anew, partial(statistics_of, epoch=options.epochs)]
        for way in ways:
            found = [way(watched, rng=np.random.default_rng(0)) for watched in members]
            for name in found[0]:
                pairs = zip(members, found, strict=True)
                outputs_MNC = torch.stack([one.test(stats[name], index_N) for one, stats in pairs])
                row: dict[str, Any] = {"run": kind, "held out": run.split.target, "statistics": name}
                parts = outputs_MNC.split([len(some_N) for some_N in sets.values()], dim=1)
                for (which, some_N), part in zip(sets.items(), parts, strict=True):
                    together, alone = accuracies(part, pool.labels_N[some_N])
                    row[which] = round(together, 2)
                    row[f"{which}, members alone"] = round(statistics.mean(alone), 2)
                rows.append(row)
                figures = "  ".join(f"{row[which]:6.2f}" for which in sets)
                print(f"{kind:<32}{run.split.target:<14}{name:<66}{figures}", flush=True)
        save(options.name, rows)


if __name__ == "__main__":
    main()
