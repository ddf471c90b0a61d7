"""How a sweep shows how far it is: a live table on a terminal, a line for each run that has ended elsewhere.

Comes in: a Standing every second or so; goes out: text on standard error.
"""

import sys

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from triplee.sweep.grid import Grid, PlannedRun
from triplee.sweep.run import Standing, SweepFolder

MOST_AT_WORK = 12  # runs shown one by one: a GPU trains dozens at once


def describe(standing: Standing) -> str:
    """`12 of 40 runs done, 1 failed, 2 at work, about 3 min left`."""
    words = [f"{len(standing.done)} of {standing.num_runs} runs done"]
    words += [f"{len(standing.failed)} failed"] if standing.failed else []
    words += [f"{len(standing.epochs)} at work"] if standing.epochs else []
    words += [f"about {duration(standing.seconds_left)} left"] if standing.seconds_left else []
    return ", ".join(words)


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class LineDisplay:
    """One line per run that has ended."""

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder

    def __enter__(self) -> "LineDisplay":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, standing: Standing) -> None:
        for run in standing.news:
            if run in standing.failed:
                what = f"failed: {standing.failed[run]}"
            else:
                what = f"{self.folder.run_folder(run).read_result()['accuracy']:.1f} %"
            print(f"{run.name}  {what}  ({describe(standing)})", file=sys.stderr, flush=True)


class LiveDisplay:
    """The experiment's table filling up, and the runs at work below it."""

    def __init__(self, grid: Grid, folder: SweepFolder) -> None:
        self.grid, self.folder = grid, folder
        self.accuracies: dict[PlannedRun, float] = {}
        self.live = Live(console=Console(stderr=True), refresh_per_second=2, transient=True)

    def __enter__(self) -> "LiveDisplay":
        self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.live.stop()

    def update(self, standing: Standing) -> None:
        for run in standing.done:
            if run not in self.accuracies:
                self.accuracies[run] = self.folder.run_folder(run).read_result()["accuracy"]
        for run in standing.news:
            if run in standing.failed:
                self.live.console.print(f"{run.name} failed: {standing.failed[run]}", markup=False, highlight=False)
        self.live.update(Group(self._table(standing), *self._at_work(standing), describe(standing)))

    def _table(self, standing: Standing) -> Table:
        columns = list(dict.fromkeys(column for _, column, _ in self.grid.cells))
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("", *columns):
            table.add_column(escape(column))
        for row in self.grid.rows:
            table.add_row(escape(row), *(self._cell(row, column, standing) for column in columns))
        return table

    def _cell(self, row: str, column: str, standing: Standing) -> str:
        """The mean of what is done, and how much that is while it is not all."""
        runs = [run for seed in self.grid.seeds for run in self.grid.cells[row, column, seed]]
        done = [self.accuracies[run] for run in runs if run in self.accuracies]
        mean = f"{sum(done) / len(done):.1f}" if done else ""
        if any(run in standing.failed for run in runs):
            return f"[red]{mean} failed[/red]"
        if len(done) == len(runs):
            return mean
        style = "yellow" if any(run in standing.epochs for run in runs) else "dim"
        return f"[{style}]{mean} {len(done)}/{len(runs)}[/{style}]"

    def _at_work(self, standing: Standing) -> list[str]:
        lines = [f"{escape(run.name)}  epoch {n}/{run.recipe.epochs}" for run, n in standing.epochs.items()]
        more = len(lines) - MOST_AT_WORK
        return lines[:MOST_AT_WORK] + ([f"and {more} more at work"] if more > 0 else [])


def make_display(grid: Grid, folder: SweepFolder) -> LineDisplay | LiveDisplay:
    return LiveDisplay(grid, folder) if sys.stderr.isatty() else LineDisplay(folder)
