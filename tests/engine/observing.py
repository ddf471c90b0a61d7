"""Observers for the tests of training."""

import os
import signal
from typing import Any


class Silent:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.steps_done, self.rows, self.names, self.notes = 0, [], [], []

    def start(self, num_epochs: int, num_steps: int, steps_done: int, title: str) -> None:
        self.num_steps, self.title = num_steps, title

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, steps_done: int, loss: float | None) -> None:
        self.steps_done = steps_done

    def epoch(self, row: dict[str, Any], name: str) -> None:
        self.rows.append(row)
        self.names.append(name)


class StopAfter(Silent):
    """Presses Ctrl-C when it has heard of progress so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times

    def progress(self, steps_done: int, loss: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


def lasting(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what depends on the machine's pace and on who else is in the process."""
    return {key: value for key, value in result.items() if key not in ("seconds", "memory_mb")}
