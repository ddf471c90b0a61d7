"""How a run shows its progress: a bar on a terminal, plain lines elsewhere (logs, pipes).

Comes in: the engine's Observer calls; goes out: text on standard error.
"""

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def describe_epoch(row: dict[str, Any]) -> str:
    """What an epoch's row says, in one line."""
    cross_entropy = sum(row["cross_entropy"]) / len(row["cross_entropy"])
    contrast = sum(row["contrast"]) / len(row["contrast"])
    loss = f"cross-entropy {cross_entropy:.3f}" + (f"  contrast {contrast:.3f}" if contrast else "")
    return f"{loss}  val {row['val_accuracy']:.1f} %"


class BarObserver:
    """A live bar with loss, validation accuracy and time left."""

    def __init__(self, title: str) -> None:
        self.title, self.loss, self.val, self.last_drawn = title, "", "", 0.0
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )

    def __enter__(self) -> "BarObserver":
        self.bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def start(self, first_epoch: int, num_epochs: int, steps_per_epoch: int, note: str = "") -> None:
        self.num_epochs, self.epoch_now = num_epochs, first_epoch
        total, done = num_epochs * steps_per_epoch, first_epoch * steps_per_epoch
        for task in self.bar.task_ids:  # of a fold that is done
            self.bar.remove_task(task)
        self.loss = self.val = ""
        title = f"{self.title}: {note}" if note else self.title
        self.bar.console.print(title, markup=False)  # above the bar, which has 80 columns for the rest
        self.task = self.bar.add_task(self._description(), total=total, completed=done, status="")

    def _description(self) -> str:
        return f"epoch {min(self.epoch_now + 1, self.num_epochs)}/{self.num_epochs}"

    def step(self, loss: float | None) -> None:
        self.bar.advance(self.task)
        if loss is not None and time.monotonic() - self.last_drawn > 0.1:
            self.last_drawn, self.loss = time.monotonic(), f"loss {loss:.3f}"
            self.bar.update(self.task, status=self.loss + self.val)

    def epoch(self, row: dict[str, Any]) -> None:
        self.epoch_now = row["epoch"]
        self.val = f"  val {row['val_accuracy']:.1f} %"
        self.bar.update(self.task, description=self._description(), status=self.loss + self.val)


class LineObserver:
    """One line per epoch, with the time left."""

    def __init__(self, title: str) -> None:
        self.title = title

    def __enter__(self) -> "LineObserver":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self, first_epoch: int, num_epochs: int, steps_per_epoch: int, note: str = "") -> None:
        self.first_epoch, self.num_epochs, self.started = first_epoch, num_epochs, time.monotonic()
        self.note = f" ({note})" if note else ""

    def step(self, loss: float | None) -> None:
        pass

    def epoch(self, row: dict[str, Any]) -> None:
        done = row["epoch"] - self.first_epoch
        left = (time.monotonic() - self.started) / done * (self.num_epochs - row["epoch"])
        line = (
            f"{self.title}{self.note}  epoch {row['epoch']}/{self.num_epochs}  {describe_epoch(row)}  {left:.0f} s left"
        )
        print(line, file=sys.stderr, flush=True)


def make_observer(title: str) -> BarObserver | LineObserver:
    return BarObserver(title) if sys.stderr.isatty() else LineObserver(title)
