"""What the verbs share in talking to people: tables, bars for waiting, lines on standard error."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 30.0


class Stopped(Exception):
    """Ctrl-C, after which everything was put in order: what to say, and exit code 130."""


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere, so that `cut` and `grep` work."""
    if not sys.stdout.isatty():
        for row in [columns, *rows]:
            print("\t".join(row))
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")  # a name or a link that is cut cannot be used
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def percentages(values: Iterable[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def warn(line: str) -> None:
    print(f"triplee: warning: {line}", file=sys.stderr, flush=True)


@contextmanager
def image_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal for work on images, told `(done, total)`; elsewhere, where it takes long, a line at times."""
    if not sys.stderr.isatty():
        yield _lines(title)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # rich would send to the terminal what is meant for a file
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(title: str) -> Callable[[int, int], None]:
    said = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal said
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            print(f"{title}: {done:,} of {total:,}", file=sys.stderr, flush=True)
            said = time.monotonic()

    return tell


class DownloadBar:
    """Shows what is fetched and unpacked: a bar on a terminal, notes as lines everywhere."""

    def __enter__(self) -> "DownloadBar":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        console = Console(stderr=True)
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not sys.stderr.isatty())
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def start(self, what: str, total: int | None) -> None:
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        self.task = self.bar.add_task(what, total=total)

    def advance(self, num: int) -> None:
        self.bar.advance(self.task, num)

    def note(self, line: str) -> None:
        self.bar.console.print(f"triplee: {line}", markup=False, highlight=False, soft_wrap=True)
