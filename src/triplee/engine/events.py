"""TensorBoard events of a run: an epoch's row in, a record appended to the run folder out."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from triplee.runfolder import RunFolder, unwritable


def open_events(folder: RunFolder, first_epoch: int) -> Callable[[dict[str, Any]], None]:
    """A function that appends an epoch's row to a new file of events.

    Not torch's SummaryWriter: it writes from a thread of its own, which meets a full disk with a traceback.
    """
    # Slow to import, and only training needs it.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    path = folder.events_path / f"events.out.tfevents.{time.time_ns()}"

    def append(event: Event) -> None:
        event.wall_time = time.time()
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("ab") as file:
                RecordWriter(file).write(event.SerializeToString())
        except OSError as error:
            raise unwritable(path, error) from None

    def append_row(row: dict[str, Any]) -> None:
        means = {name: float(np.mean(value)) for name, value in row.items() if name != "epoch"}
        values = [Summary.Value(tag=name, simple_value=mean) for name, mean in means.items()]
        append(Event(step=row["epoch"], summary=Summary(value=values)))

    append(Event(file_version="brain.Event:2"))
    if first_epoch:  # hides later epochs that an earlier start wrote
        append(Event(step=first_epoch + 1, session_log=SessionLog(status=SessionLog.START)))
    return append_row
