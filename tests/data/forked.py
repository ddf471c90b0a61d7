"""Work in a process of its own, to be killed, to run beside another, or under limits."""

import multiprocessing
from collections.abc import Callable
from typing import Any

from triplee.settings import InputError


def in_process(work: Callable[[], Any]) -> tuple[multiprocessing.Process, Callable[[], Any]]:
    """Starts `work` in a process of its own; the function returned waits for its result, an InputError as its text."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(work())
        except InputError as error:
            sender.send(str(error))

    process = context.Process(target=run)
    process.start()
    sender.close()

    def result() -> Any:
        try:
            assert receiver.poll(20), "the process does not answer"
            return receiver.recv()
        finally:
            receiver.close()
            process.join(20)

    return process, result  # type: ignore[return-value]
