"""Finished runs as a report wants them: read from run folders, named by what tells them apart, grouped into methods.

Comes in: folders of runs, or folders that hold such; goes out: Records, and Methods: the runs that differ in nothing
but target and seed. What is unfinished or damaged is passed over with a line.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from triplee.recipes import DESCRIPTIONS, RECIPES
from triplee.results.statistics import Estimate, estimate
from triplee.runfolder import RunFolder, damaged, read_config, read_tensors, recipe_of
from triplee.settings import FILE_KEYS, InputError, Recipe, make_recipe

DEEPEST = 4  # folders below those named in which runs are looked for
TITLES = {
    "vanilla": "Vanilla",
    "baseline-jitter": "Baseline†",
    "baseline": "Baseline",
    **{letter: f"Model {letter}" for letter in "abcdef"},
    "triplee-style": "TripleE-Style",
    "triplee-fourier": "TripleE-Fourier",
    "triplee-both": "TripleE-both",
}
SYMBOLS = {"batch_size": "b", "replay": "r", "members": "m"}  # the paper's


@dataclass(frozen=True)
class Record:
    """A finished run."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]
    rows: list[dict[str, Any]]

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_of(self.config, self.path / "config.yaml")

    @cached_property
    def teacher_recipe(self) -> Recipe | None:
        """Of the run that this one was fused from; none where it is no longer there, or none was."""
        try:
            return make_recipe(read_config(Path(self.config["teacher"]))["recipe"]) if self.how else None
        except InputError:
            return None

    @property
    def how(self) -> str | None:
        """How the run was fused from its teacher; none for one that was trained by itself."""
        return (self.config.get("how") or "distill") if self.config.get("teacher") else None

    @cached_property
    def told(self) -> dict[str, Any]:
        """What the run was told apart from data, target and seed: its recipe, and its teacher's."""
        own = self.recipe.model_dump()
        if self.how is None:
            return own
        if self.teacher_recipe is None:
            return {**own, "how": self.how, "teacher": self.config["teacher"]}
        return {**own, "how": self.how, **{f"teacher {k}": v for k, v in self.teacher_recipe.model_dump().items()}}

    @property
    def target(self) -> str:
        return self.config["target"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def data(self) -> str:
        return Path(self.config["data"]).name

    @property
    def accuracy(self) -> float:
        return self.result["accuracy"]


@dataclass(frozen=True)
class Method:
    """Runs that differ only in target and seed, in the order of targets and seeds."""

    title: str
    records: tuple[Record, ...]

    @property
    def recipe(self) -> Recipe:
        return self.records[0].recipe

    @property
    def word(self) -> str:
        """The title without what tells the method from others of its kind."""
        return self.title.partition(" (")[0]

    def of(self, target: str) -> list[Record]:
        return [record for record in self.records if record.target == target]

    def accuracy(self, target: str) -> Estimate | None:
        runs = self.of(target)
        return estimate({record.seed: record.accuracy for record in runs}) if runs else None

    def average(self, targets: Sequence[str]) -> Estimate | None:
        """Over targets, for the seeds that have all of them; its spread is over those seeds."""
        whole = self.averages(targets)
        return estimate(whole) if whole else None

    def averages(self, targets: Sequence[str]) -> dict[int, float]:
        """The mean over targets by seed, of those that have all of them."""
        by_seed: dict[int, dict[str, float]] = {}
        for record in self.records:
            if record.target in targets:
                by_seed.setdefault(record.seed, {})[record.target] = record.accuracy
        return {seed: statistics.fmean(own.values()) for seed, own in by_seed.items() if len(own) == len(targets)}


def find_records(paths: Sequence[Path]) -> tuple[list[Record], list[str]]:
    """The finished runs in some folders, and lines on what was passed over."""
    records, notes = [], []
    known: dict[str, Path] = {}
    for folder in dict.fromkeys(run for path in paths for run in _run_folders(path)):
        try:
            run = RunFolder(folder)
            config = read_config(folder)
            if not run.result_path.exists():
                notes.append(f"{folder} is not finished")
                continue
            record = Record(folder, config, run.read_result(), run.read_metrics())
            _check_together(record, run)
            twin = known.setdefault(_identity(record), folder)
            if twin != folder:
                notes.append(f"{folder} is the same run as {twin}, and left out")
                continue
            records.append(record)
        except InputError as error:
            notes.append(str(error))
    if not records:
        reason = f": {notes[0]}" if notes else ""
        raise InputError(f"no finished run in {', '.join(map(str, paths))}{reason}")
    return records, notes


def _check_together(record: Record, run: RunFolder) -> None:
    """Refuse files that are whole but do not fit each other. A soup has neither metrics nor predictions."""
    if run.metrics_path.exists() and len(record.rows) != record.recipe.epochs:
        raise damaged(run.metrics_path)
    said = read_predictions(record)
    if said and max(said["label"].max(), said["chosen"].max()) >= len(record.config["classes"]):
        raise damaged(run.config_path)


def read_predictions(record: Record) -> dict[str, np.ndarray] | None:
    """What the run said of its target's images, in the pool's order; none of an earlier version, or damaged."""
    try:
        tensors, _ = read_tensors(RunFolder(record.path).predictions_path)
    except InputError:
        return None  # missing or damaged: as if there were none
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _identity(record: Record) -> str:
    """What a run was told: data, target, seed, recipe and teacher."""
    told = [record.config[key] for key in ("data_fingerprint", "target", "seed", "recipe_name")]
    return json.dumps([*told, record.told, record.config.get("left_out")])


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise InputError(f"{path} is no folder: name a run, or a folder of runs")
    if (path / "config.yaml").exists():
        return [path]
    found = [
        config.parent
        for depth in range(1, DEEPEST + 1)
        for config in path.glob("/".join(["*"] * depth) + "/config.yaml")
    ]
    # The folds of a run are part of it.
    return sorted(folder for folder in found if folder.parent.name != "folds")


def group_by_method(records: Sequence[Record]) -> list[Method]:
    """Methods in the order of the paper's ablation, then of b, r and m."""
    alike: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.target, record.seed)):
        alike.setdefault(json.dumps([record.told, record.config["recipe_name"]]), []).append(record)
    groups = sorted(alike.values(), key=lambda group: _rank(group[0]))
    titles = _titles([group[0] for group in groups])
    return [Method(title, tuple(group)) for title, group in zip(titles, groups, strict=True)]


def _rank(record: Record) -> tuple[Any, ...]:
    names = list(TITLES)
    method = _method_of(record.config["recipe_name"])
    order = names.index(method) if method in names else len(names)
    recipe = record.recipe
    return order, recipe.batch_size, recipe.replay, recipe.members, record.config["recipe_name"]


def _method_of(name: str) -> str:
    """`triplee-style` of `digits-triplee-style`."""
    known = [method for method in TITLES if name == method or name.endswith(f"-{method}")]
    return max(known, key=len) if known else name


def _titles(records: Sequence[Record]) -> list[str]:
    """The paper's word for each, and where several share it what this one was told and most of them were not."""
    words = [TITLES.get(method := _method_of(record.config["recipe_name"]), method) for record in records]
    titles = []
    for record, word in zip(records, words, strict=True):
        rivals = [other for other, its_word in zip(records, words, strict=True) if its_word == word]
        differing = []
        for key, value in record.told.items():
            is_unknown = key == "teacher" and len(rivals) > 1  # a teacher that is gone: no more to be said of it
            alike = sum(other.told.get(key, value) == value for other in rivals)
            if is_unknown or 2 * alike <= len(rivals):
                *owner, name = key.split()
                symbol = " ".join([*owner, SYMBOLS.get(name, name)])
                differing.append(f"{symbol}={Path(value).name if name in FILE_KEYS else value}")
        titles.append(f"{word} ({', '.join(differing)})" if differing else word)
    # The same recipe under two names.
    names = [record.config["recipe_name"] for record in records]
    return [f"{title}: {name}" if titles.count(title) > 1 else title for title, name in zip(titles, names, strict=True)]


def describe(record: Record) -> str:
    """What the recipe is, in words, where it has a name."""
    name = record.config["recipe_name"]
    changed = name in RECIPES and RECIPES[name] != record.recipe
    return DESCRIPTIONS.get(name, "a recipe of its own") + (", changed" if changed else "")
