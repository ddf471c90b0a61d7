"""A folder that fills: which of its images are new, and written to their end.

Comes in: a folder, looked at again and again; goes out: files that can be read. By polling, which works on every file
system, network drives included.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from triplee.data.folder import SUFFIXES, suffix_of
from triplee.settings import InputError

SETTLED_SECONDS = 1.0  # without a change, after which a file is read
PATIENCE_SECONDS = 10.0  # without a change, after which a file that cannot be read is taken to be broken


def images_below(folder: Path) -> Iterator[Path]:
    """Every image file under a folder, at any depth."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)  # noqa: PTH118 – a Path for every file of a large folder takes seconds
            if suffix_of(name) in SUFFIXES and os.path.isfile(path):  # noqa: PTH113
                yield Path(path)


@dataclass
class _Seen:
    size_and_time: tuple[int, int]
    since: float
    is_handed_out: bool = False


class Watch:
    """Hands every image of a folder out once it has settled, and again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[Path, _Seen] = {}

    def poll(self) -> list[Path]:
        """The images that have settled since the last call, the oldest first."""
        if not self.folder.is_dir():
            raise InputError(f"{self.folder} is not a folder: --watch takes one that exists")
        now, seen = time.monotonic(), {}
        for path in images_below(self.folder):
            try:
                status = path.stat()
            except OSError:  # gone again
                continue
            size_and_time = status.st_size, status.st_mtime_ns
            before = self._seen.get(path)
            unchanged = before is not None and before.size_and_time == size_and_time
            seen[path] = before if unchanged else _Seen(size_and_time, now)
        self._seen = seen
        ready = [p for p, s in seen.items() if not s.is_handed_out and now - s.since >= SETTLED_SECONDS]
        for path in ready:
            seen[path].is_handed_out = True
        return sorted(ready, key=lambda path: (seen[path].size_and_time[1], path))

    def put_back(self, path: Path) -> bool:
        """Whether a file that could not be read will be handed out again; not one that is as it is for long."""
        seen = self._seen[path]
        seen.is_handed_out = time.monotonic() - seen.since >= PATIENCE_SECONDS
        return not seen.is_handed_out
