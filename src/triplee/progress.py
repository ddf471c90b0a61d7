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

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None:
        self.num_epochs, self.epoch_now = num_epochs, num_epochs * steps_done // num_steps
        for task in self.bar.task_ids:  # of folds that are done
            self.bar.remove_task(task)
        self.loss = self.val = ""
        self.note(f"{self.title}: {title}" if title else self.title)  # above the bar, which has 80 columns for the rest
        self.task = self.bar.add_task(self._description(), total=num_steps, completed=steps_done, status="")

    def note(self, text: str) -> None:
        self.bar.console.print(text, markup=False)

    def _description(self) -> str:
        return f"epoch {min(self.epoch_now + 1, self.num_epochs)}/{self.num_epochs}" if self.num_epochs else ""

    def progress(self, steps_done: int, loss: float | None) -> None:
        if time.monotonic() - self.last_drawn > 0.1:
            self.last_drawn = time.monotonic()
            self.loss = self.loss if loss is None else f"loss {loss:.3f}"
            self.bar.update(self.task, completed=steps_done, status=self.loss + self.val)

    def epoch(self, row: dict[str, Any], name: str) -> None:
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

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None:
        self.num_epochs, self.num_steps = num_epochs, num_steps
        self.first_step = self.steps_done = steps_done
        self.started = time.monotonic()

    def note(self, text: str) -> None:
        print(f"{self.title}: {text}", file=sys.stderr, flush=True)

    def progress(self, steps_done: int, loss: float | None) -> None:
        self.steps_done = steps_done

    def epoch(self, row: dict[str, Any], name: str) -> None:
        seconds_per_step = (time.monotonic() - self.started) / max(1, self.steps_done - self.first_step)
        left = seconds_per_step * (self.num_steps - self.steps_done)
        title = f"{self.title} ({name})" if name else self.title
        line = f"{title}  epoch {row['epoch']}/{self.num_epochs}  {describe_epoch(row)}  {left:.0f} s left"
        print(line, file=sys.stderr, flush=True)


def make_observer(title: str) -> BarObserver | LineObserver:
    return BarObserver(title) if sys.stderr.isatty() else LineObserver(title)
