"""Work on many images in threads, results in order: for what waits, for files or for other processes."""

import os
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

MAX_PENDING = 2  # tasks handed over for each thread, done or not

T = TypeVar("T")


def in_threads(
    work: Callable[[int], T], num_items: int, per_task: int = 16, num_threads: int | None = None
) -> Generator[T, None, None]:
    """work(0), work(1), … in order. Few tasks are under way at a time, so that results do not fill the memory.

    `per_task`: items a thread is handed at once, as handing over a small one costs more than the work itself.
    `num_threads`: as many as there are cores, unless told.
    """

    def do_task(start: int) -> list[T]:
        return [work(index) for index in range(start, min(start + per_task, num_items))]

    num_threads = num_threads or num_cores()
    pending: deque[Future[list[T]]] = deque()
    threads = ThreadPoolExecutor(num_threads)
    try:
        for start in range(0, num_items, per_task):
            pending.append(threads.submit(do_task, start))
            if len(pending) > MAX_PENDING * num_threads:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    finally:  # where the results are no longer wanted, nobody waits for what has begun, and the rest is not done
        threads.shutdown(wait=False, cancel_futures=True)


def num_cores() -> int:
    """Cores this process may use, which a batch system may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
