"""Reads and decodes many image files on all cores: in processes, since Pillow holds Python's lock while it decodes.

Comes in: paths and a size. Goes out: of each file times, digest, and pixels or what is wrong with it (data/changes.py).
A process takes tasks on its input, leaves pixels in memory it shares with its caller, and ends when its input closes:
none outlives its caller, whose script is not imported again, as it would be by multiprocessing.
"""

import contextlib
import mmap
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Container, Generator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from triplee.data.changes import digest_of, file_times, read_or_bad
from triplee.data.decode import BadImage, decode_content
from triplee.data.store import UNKNOWN, FileTimes
from triplee.data.threads import MAX_PENDING, in_threads, num_cores
from triplee.settings import InputError

FEW = 1000  # images: decoded here before processes would have started

_PER_TASK = 32
_TASK_BYTES = 4 << 20


class ReadImage(NamedTuple):
    """One file as it was read. Without pixels it is bad, or its content was known already."""

    times: FileTimes
    digest: bytes
    pixels: bytes | memoryview | None  # (3,H,W) uint8; to be used before the next image is asked for
    checksum: int  # of the pixels
    bad: str | None

    @property
    def is_known(self) -> bool:
        return self.pixels is None and self.bad is None


def read_image(path: str, image_size: int, known: Container[bytes] = ()) -> ReadImage:
    """Read, hash and decode one file, unless its digest is `known`; never raises for what is wrong with it."""
    source, times = Path(path), file_times(path)
    content = read_or_bad(source)
    digest = digest_of(content)
    if digest in known:
        return ReadImage(times, digest, None, 0, None)
    if isinstance(content, BadImage):  # of no fault of its own, perhaps: its times do not vouch for that
        return ReadImage(UNKNOWN, digest, None, 0, content.reason)
    try:
        pixels = decode_content(source, content, image_size).data.cast("B")
    except BadImage as bad:
        return ReadImage(times, digest, None, 0, bad.reason)
    except MemoryError:
        return ReadImage(UNKNOWN, digest, None, 0, "there is not enough memory to decode it")
    return ReadImage(times, digest, pixels, zlib.crc32(pixels), None)


def read_images(
    paths: Sequence[str], image_size: int, known: Container[bytes] = ()
) -> Generator[ReadImage, None, None]:
    """`read_image` of every path, in order; many on all cores, and those without asking what is known."""
    if len(paths) < FEW or num_cores() == 1:
        yield from (read_image(path, image_size, known) for path in paths)
        return
    row_bytes = 3 * image_size**2
    per_task = max(1, min(_PER_TASK, _TASK_BYTES // row_bytes))
    tasks = [paths[start : start + per_task] for start in range(0, len(paths), per_task)]
    num_processes = min(num_cores(), len(tasks))
    processes = _Processes(num_processes, image_size, per_task * row_bytes)
    answers = in_threads(lambda number: processes.do_task(tasks[number]), len(tasks), 1, num_processes)
    with contextlib.closing(answers), processes:  # where processes end, threads that wait for them do
        for slot, images in answers:
            for place, image in enumerate(images):
                yield image if image.bad else image._replace(pixels=processes.pixels(slot, place))
            processes.free(slot)


class _Processes:
    """One for each core. A thread takes one that is idle and a free slot of the shared memory, and waits for it."""

    def __init__(self, num_processes: int, image_size: int, slot_bytes: int) -> None:
        num_slots = MAX_PENDING * num_processes + 2  # a task in every thread and place of the queue, and one being used
        self._row_bytes, self._slot_bytes = 3 * image_size**2, slot_bytes
        num_bytes = num_slots * slot_bytes
        with _shared_file(num_bytes) as file:
            self._memory = mmap.mmap(file.fileno(), num_bytes)
            settings = (file.fileno(), num_bytes, slot_bytes, image_size)
            code = f"from triplee.data.reading import answer_tasks; answer_tasks{settings}"
            path = os.pathsep.join(place or os.getcwd() for place in sys.path)  # noqa: PTH109
            one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            environment = {**os.environ, **one_thread, "PYTHONPATH": path}

            def start() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [sys.executable, "-P", "-c", code],  # -P: not from the working folder, unless the caller does
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # what it has to say is in its answers
                    env=environment,
                    pass_fds=[file.fileno()],
                    start_new_session=True,  # Ctrl-C is for the caller, who ends it in good order
                )

            self._all: list[subprocess.Popen[bytes]] = []
            try:
                for _ in range(num_processes):
                    self._all.append(start())
            except OSError as error:
                self.__exit__()
                raise InputError(f"cannot start processes to decode images: {error.strerror or error}") from None
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for process in self._all:
            self._idle.put(process)
        for slot in range(num_slots):
            self._slots.put(slot)

    def __enter__(self) -> "_Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()  # it holds nothing that would be lost
        for process in self._all:
            with contextlib.suppress(OSError):
                process.__exit__(None, None, None)

    def do_task(self, paths: Sequence[str]) -> tuple[int, list[ReadImage]]:
        """The slot where the pixels of the images lie, and the rest of what was read."""
        process, slot = self._idle.get(), self._slots.get()
        assert process.stdin and process.stdout
        try:
            pickle.dump((slot, paths), process.stdin)
            process.stdin.flush()
            return slot, pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise InputError(
                f"a process that decodes images ended at one of {paths[0]} … {paths[-1]}:"
                " see that there is memory, then try again"
            ) from None
        finally:
            self._idle.put(process)

    def pixels(self, slot: int, place: int) -> memoryview:
        start = slot * self._slot_bytes + place * self._row_bytes
        return memoryview(self._memory)[start : start + self._row_bytes]

    def free(self, slot: int) -> None:
        self._slots.put(slot)


def _shared_file(num_bytes: int) -> IO[bytes]:
    """A file without a name, in memory where the system has such."""
    file = open(os.memfd_create("triplee"), "r+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()  # noqa: PTH123, SIM115
    file.truncate(num_bytes)
    return file


def answer_tasks(descriptor: int, num_bytes: int, slot_bytes: int, image_size: int) -> None:
    """What a process does, until its input closes."""
    memory, row_bytes = mmap.mmap(descriptor, num_bytes), 3 * image_size**2
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            slot, paths = pickle.load(sys.stdin.buffer)
            images = []
            for place, path in enumerate(paths):
                image = read_image(path, image_size)
                if image.pixels is not None:
                    start = slot * slot_bytes + place * row_bytes
                    memory[start : start + row_bytes] = image.pixels
                images.append(image._replace(pixels=None))
            pickle.dump(images, sys.stdout.buffer)
            sys.stdout.buffer.flush()
