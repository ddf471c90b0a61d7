"""A worker process of the local engine: groups come in on standard input, a line each; endings go out the same way.

An empty line is the end; a polite kill lets a run save before.
When the sweep is gone, however it went, its end of the pipe closes and the worker ends at once: no orphans.
"""

import os
import queue
import sys
import threading

from triplee.engine.train import Interrupted
from triplee.sweep.work import Group, train_group


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is not an answer
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    while line := tasks.get().strip():
        try:
            ending = train_group(Group.from_json(line))
        except Interrupted:
            break
        print(ending.to_json(), file=answers, flush=True)
    os._exit(0)  # a usual end would wait for whoever reads standard input


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
