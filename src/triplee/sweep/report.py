"""From the run folders of a sweep to the tables: accuracies of finished runs by row, column, seed and selection method.

Comes in: a Grid and the sweep's folder; goes out: a Report, and its files in three formats.
"""

import statistics
from pathlib import Path
from typing import Any

from triplee.engine.selection import FALL, SELECTIONS, best_epoch, describe_fall, fall_of
from triplee.results.statistics import mean_by_seed
from triplee.results.tables import FAILED, FORMATS, NOT_ASKED, UNFINISHED, Cell, Report, Table
from triplee.runfolder import write_atomically
from triplee.settings import FILE_KEYS, InputError, counted, first_few
from triplee.sweep.experiment import AVERAGE
from triplee.sweep.grid import Grid, PlannedRun
from triplee.sweep.run import SweepFolder

_HEADINGS = {**{name: f"Epoch chosen by {title}" for name, (title, _) in SELECTIONS.items()}, "last": "Last epoch"}


def make_report(grid: Grid, folder: SweepFolder) -> Report:
    """All that is known so far."""
    folder.check(grid.runs)
    rows = {run: _read_rows(run, folder) for run in grid.runs if folder.is_done(run)}
    accuracies = {run: _accuracies(rows[run]) for run in rows}
    failed = {run for run in grid.runs if folder.failure(run)}
    # Leave-one-out trains folds, so only runs that were asked to have its figure.
    asked = any(run.recipe.selection == "leave-one-out" for run in grid.runs)
    tables = tuple(
        _table(grid, accuracies, failed, selection) for selection in _HEADINGS if asked or selection != "leave-one-out"
    )
    data = ", ".join(Path(name).name for name in grid.data)
    epochs = sorted({run.recipe.epochs for run in grid.runs})
    title = f"{grid.name} on {data}, epochs: {' or '.join(map(str, epochs))}"
    notes = [] if asked else ["Leave-one-domain-out cross-validation needs runs with `--set selection=leave-one-out`."]
    # Of a file its name: where it lay says nothing to whoever reads the table.
    told = {key: Path(value).name if key in FILE_KEYS else value for key, value in grid.changes.items()}
    changed = [f"`{key}={value}`" for key, value in told.items() if key != "epochs"]
    if changed:
        notes.insert(0, f"Changed in every row that does not say otherwise: {', '.join(changed)}.")
    if fallen := [f"{run.name} (after epoch {fall_of(rows[run])[0]})" for run in rows if describe_fall(rows[run])]:
        notes.append(
            f"{counted(len(fallen), 'training')} came apart, the last source validation more than {FALL:g} points under"
            f" the best: {first_few(fallen)}."
        )
    return Report(title, grid.seeds, grid.paper_label, tables, tuple(notes))


def _read_rows(run: PlannedRun, folder: SweepFolder) -> list[dict[str, Any]]:
    run_folder = folder.run_folder(run)
    rows = run_folder.read_metrics()
    if len(rows) != run.recipe.epochs:
        raise InputError(f"{run_folder.metrics_path} has lost lines: restore it, or remove the folder to train again")
    return rows


def _accuracies(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Target accuracy of the epoch that each selection method keeps."""
    found = {"last": rows[-1]["target_accuracy"]}
    for selection, (_, figure) in SELECTIONS.items():
        if figure in rows[0]:
            found[selection] = rows[best_epoch(rows, selection) - 1]["target_accuracy"]
    return found


def _table(
    grid: Grid, accuracies: dict[PlannedRun, dict[str, float]], failed: set[PlannedRun], selection: str
) -> Table:
    cells: dict[tuple[str, str], Cell] = {}
    for row in grid.rows:
        for column in dict.fromkeys(column for _, column, _ in grid.cells):
            runs_S = {seed: grid.cells[row, column, seed] for seed in grid.seeds}
            runs = {run for some in runs_S.values() for run in some}
            if runs & failed:
                cells[row, column] = Cell({}, FAILED)
            elif any(selection not in accuracies[run] for run in runs & accuracies.keys()):
                cells[row, column] = Cell({}, NOT_ASKED)
            elif runs - accuracies.keys():
                cells[row, column] = Cell({}, UNFINISHED)
            else:
                means = {s: statistics.fmean(accuracies[run][selection] for run in some) for s, some in runs_S.items()}
                cells[row, column] = Cell(means)
        own = [cell for (title, _), cell in cells.items() if title == row]
        missing = next((why for why in (FAILED, UNFINISHED, NOT_ASKED) if why in {c.missing for c in own}), "")
        cells[row, AVERAGE] = Cell({} if missing else mean_by_seed([cell.by_seed for cell in own]), missing)
    paper = grid.paper if selection == "source-val" else {}  # how the paper chooses
    return Table(selection, _HEADINGS[selection], grid.rows, grid.columns, cells, grid.baseline, paper)


def write_report(report: Report, path: Path) -> None:
    """The three formats beside each other: `path` with .md, .tex and .csv."""
    for suffix, write in FORMATS.items():
        write_atomically(path.with_name(f"{path.name}.{suffix}"), write(report).encode(errors="backslashreplace"))
