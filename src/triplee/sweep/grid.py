"""From an experiment to runs: rows × columns × seeds, where a run that several cells ask for is planned once.

Comes in: an experiment and what the command line adapts. Goes out: a Grid: which runs there are, which of them a cell
of the table needs, and what the paper prints for it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from triplee.data.catalog import benchmark_names, find_benchmark
from triplee.data.load import EMBEDDED, default_recipe, list_data
from triplee.recipes import has_setting, method_recipe, nearest_recipe
from triplee.settings import InputError, Recipe, files_in_full, make_recipe, nearest, user_path
from triplee.sweep.experiment import AVERAGE, Experiment, Row, experiment_names, load_experiment

Ingredient = tuple[str, str, int]  # a kind of files, where they lie and who reads them, and at what image size


@dataclass(frozen=True)
class PlannedRun:
    """A run to be: its name is its folder's, and tells it from every other run whatever experiment asks for it."""

    data: str
    target: str
    seed: int
    recipe: Recipe

    def to_values(self) -> dict[str, Any]:
        return {"data": self.data, "target": self.target, "seed": self.seed, "recipe": self.recipe.model_dump()}

    @staticmethod
    def from_values(values: Mapping[str, Any]) -> "PlannedRun":
        return PlannedRun(**{**values, "recipe": make_recipe(values["recipe"])})

    @property
    def ingredients(self) -> dict[Ingredient, str]:
        """What a run's name tells only the place of; for each the key of its fingerprint in the run's config."""
        recipe = self.recipe
        found = {
            ("images", self.data, recipe.image_size): "data_fingerprint",
            ("weights", f"{recipe.weights} for {recipe.backbone}", recipe.image_size): "weights_fingerprint",
        }
        if recipe.restyles:
            found["stylizers", recipe.stylizer, 0] = "stylizer_fingerprint"
        return found

    @cached_property
    def recipe_name(self) -> str:
        """The nearest method in a setting of the data: rows that ask for the same recipe have one name for it."""
        return nearest_recipe(self.recipe, _setting(self.data).partition("-resnet")[0])

    @cached_property
    def name(self) -> str:
        # Only what differs from the defaults: a recipe key of a later version is no reason to train again.
        content = f"{self.data}\n{self.recipe.model_dump_json(exclude_defaults=True)}"
        digest = hashlib.blake2b(content.encode(errors="surrogateescape"), digest_size=4).hexdigest()
        return f"{Path(self.data).name}-{self.target}-{self.recipe_name}-{digest}-{self.seed}"


@dataclass(frozen=True)
class Grid:
    """The table to be. `cells`: for a row, a column and a seed the runs whose mean belongs there."""

    name: str
    data: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: tuple[int, ...]
    baseline: str
    paper_label: str
    paper: Mapping[tuple[str, str], float]
    cells: Mapping[tuple[str, str, int], tuple[PlannedRun, ...]]
    is_adapted: bool = False  # to fewer rows or targets, other seeds or recipe keys; or a file with a known name
    repeated: Mapping[str, str] = field(default_factory=dict)  # rows left out, each with the row that it repeats
    changes: Mapping[str, Any] = field(default_factory=dict)  # of recipe keys, for every row that does not set its own

    @property
    def file_name(self) -> str:
        """Of its tables, without the suffix: another for an adapted experiment, and for every folder of data."""
        words = [self.name, *([Path(self.data[0]).name] if len(self.data) == 1 else [])]
        if self.is_adapted or any(Path(data).is_absolute() for data in self.data):
            told = "\n".join([*self.rows, *sorted(run.name for run in self.runs)])
            words.append(hashlib.blake2b(told.encode(errors="surrogateescape"), digest_size=3).hexdigest())
        return "-".join(words)

    @cached_property
    def runs(self) -> list[PlannedRun]:
        return list({run.name: run for runs in self.cells.values() for run in runs}.values())


def plan_grid(
    name: str,
    experiment: Experiment,
    *,
    data: str | None = None,
    rows: Sequence[str] = (),
    targets: Sequence[str] = (),
    num_seeds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    root: Path | None = None,
) -> Grid:
    """The grid of an experiment, on other data, with fewer rows or targets, more seeds or changed recipe keys."""
    narrowed, sets = bool(rows), tuple(map(_in_full, (data,) if data else experiment.data))
    chosen = {row: experiment.rows[row] for row in _choose("row", rows, tuple(experiment.rows))}
    paper = experiment.paper_table(sets, _in_full)
    columns = _columns(sets, paper.columns if paper else None, targets, root)
    seeds = tuple(range(num_seeds or experiment.seeds))
    recipes = {(row, d): _recipe(row, chosen[row], d, changes or {}) for row in chosen for d in sets}
    repeated = _repeated(chosen, recipes)
    cells = {
        (row, column, seed): tuple(PlannedRun(d, target, seed, recipes[row, d]) for d, target in places)
        for row in chosen
        if row not in repeated
        for column, places in columns.items()
        for seed in seeds
    }
    rows = tuple(dict.fromkeys(row for row, _, _ in cells))
    figures = {
        (row, column): figure
        for row, printed in (paper.figures.items() if paper else ())
        if row in rows
        for column, figure in zip(paper.columns if paper else (), printed, strict=True)
        # The paper's average is over all columns, so it is no match for one over some.
        if column in columns or (column == AVERAGE and len(columns) == len(printed) - 1)
    }
    titles = [c for c in paper.columns if c in columns or c == AVERAGE] if paper else [*columns, AVERAGE]
    baseline = repeated.get(experiment.baseline, experiment.baseline)
    is_anothers_name = name in experiment_names() and load_experiment(name)[1] != experiment
    return Grid(
        name=name,
        data=sets,
        rows=rows,
        columns=tuple(titles if len(columns) > 1 else columns),
        seeds=seeds,
        baseline=baseline if baseline in rows else rows[0],
        paper_label=paper.label if paper and figures else "",
        paper=figures,
        cells=cells,
        is_adapted=bool(narrowed or targets or num_seeds or changes or is_anothers_name),
        repeated=repeated,
        changes=changes or {},
    )


def _in_full(data: str) -> str:
    """A folder with its whole path, so that the runs are the same from another working folder."""
    return data if data == EMBEDDED or data in benchmark_names() else str(user_path(data).absolute())


def _choose(kind: str, wanted: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Those wanted, in the order in which they are known; all of them where none is named."""
    for name in wanted:
        if name not in known:
            raise InputError(f"unknown {kind} {name!r}: {nearest(name, known)}")
    return tuple(name for name in known if name in wanted or not wanted)


def _columns(
    sets: tuple[str, ...], order: Sequence[str] | None, targets: Sequence[str], root: Path | None
) -> dict[str, list[tuple[str, str]]]:
    """For each column what it takes the mean over: (data, target)."""
    if len(sets) > 1:
        if targets:
            raise InputError(f"--targets needs one set of data, this experiment has {len(sets)}: choose it with --data")
        names = [Path(d).name for d in sets]
        titles = names if len(set(names)) == len(sets) else sets  # folders by their names, where these tell them apart
        return {title: [(d, target) for target in _domains(d, root)] for title, d in zip(titles, sets, strict=True)}
    data = next(iter(sets))
    known = _domains(data, root)
    domains = [column for column in order or known if column != AVERAGE]
    for column in domains:
        if column not in known:
            raise InputError(f"unknown column {column!r} of the paper's table: {nearest(column, known)}")
    return {target: [(data, target)] for target in _choose("target", targets, domains)}


def _domains(data: str, root: Path | None) -> tuple[str, ...]:
    if data in benchmark_names():
        return tuple(find_benchmark(data).domains)
    if data == EMBEDDED:
        from triplee.data.digits import DOMAINS  # draws in what draws digits

        return DOMAINS
    return tuple(list_data(data, root).domains)


def _setting(data: str) -> str:
    return default_recipe(data).removesuffix("-triplee-fourier")


def _recipe(title: str, row: Row, data: str, changes: Mapping[str, Any]) -> Recipe:
    """The row's method in the setting of the data; what the row itself changes stands above all other changes."""
    setting = _setting(data)
    if row.backbone and has_setting(f"{data}-{row.backbone}"):
        setting = f"{data}-{row.backbone}"
    try:
        return files_in_full(method_recipe(setting, row.method, {**changes, **row.changes}))
    except InputError as error:
        raise InputError(f"row {title!r}: {error}") from None


def _repeated(rows: Mapping[str, Row], recipes: Mapping[tuple[str, str], Recipe]) -> dict[str, str]:
    """Rows that are an earlier one again, as ResNet-50's where the data have no setting for it; and which."""
    first: dict[tuple[str, ...], str] = {}
    own = {row: tuple(r.model_dump_json() for (title, _), r in recipes.items() if title == row) for row in rows}
    return {row: earlier for row in rows if (earlier := first.setdefault(own[row], row)) != row}
