"""Changes: which image files are as they were when they were stored, judged by their times as far as these vouch.

Comes in: an ImageFolder and a Manifest (data/store.py). Goes out: file times, digests of content, how much still holds.
Axes: N images, T file times.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from triplee.data.decode import BadImage, read_content
from triplee.data.folder import ImageFolder
from triplee.data.store import UNKNOWN, FileTimes, Manifest
from triplee.data.threads import in_threads

SETTLED_NS = 2 * 10**9  # file times are as coarse as two seconds: a change may not show in a younger one


def file_times(path: str | Path) -> FileTimes:
    """Taken before the file is read, so that a change after that shows in them."""
    now = time.time_ns()
    try:
        status = os.stat(path)  # noqa: PTH116 – half a million paths: a Path each takes seconds
    except OSError:
        return UNKNOWN
    if max(status.st_mtime_ns, status.st_ctime_ns) > now - SETTLED_NS:
        return UNKNOWN
    return FileTimes(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def all_file_times(folder: ImageFolder, start: int, stop: int) -> np.ndarray:
    """The times of a stretch of files, (N,T)."""
    names, root = folder.names[start:stop], f"{folder.root}/"

    def take() -> Iterator[FileTimes]:
        begin = time.perf_counter()
        for place, name in enumerate(names, 1):
            yield file_times(root + name)
            # Threads only where each call waits long, as over a network: on a local disk they halve the speed.
            if place == 1000 and time.perf_counter() - begin > 0.1:
                yield from in_threads(lambda later: file_times(root + names[1000 + later]), len(names) - 1000)
                return

    return np.fromiter(chain.from_iterable(take()), np.int64).reshape(-1, len(UNKNOWN))


def digest_of(content: bytes | BadImage) -> bytes:
    """A hash of the file, or of the reason why it cannot be read."""
    hashed = f"unreadable: {content.reason}".encode() if isinstance(content, BadImage) else content
    return hashlib.blake2b(hashed, digest_size=16).digest()


def read_or_bad(source: Path) -> bytes | BadImage:
    try:
        return read_content(source)
    except BadImage as bad:
        return bad


def count_unchanged(folder: ImageFolder, stored: Manifest) -> tuple[int, np.ndarray]:
    """How many images at the start of `stored` the folder still has in the same place, and their file times."""
    pairs = zip(stored.names, folder.names, strict=False)
    num_same = next(
        (place for place, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(stored.names), len(folder))
    )
    times_NT = all_file_times(folder, 0, num_same)
    vouched_N = (times_NT == stored.times_NT[:num_same]).all(1) & (times_NT[:, 0] >= 0)
    doubtful = np.flatnonzero(~vouched_N).tolist()
    digests = in_threads(lambda place: digest_of(read_or_bad(folder.path(doubtful[place]))), len(doubtful))
    with contextlib.closing(digests):
        for index, digest in zip(doubtful, digests, strict=True):
            if digest != stored.digests_ND[index].tobytes():
                return index, times_NT
    return num_same, times_NT
