"""What the tests of the command line share: starting it, judging its answers, breaking images, a terminal."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from PIL import Image

Answer = subprocess.CompletedProcess[str]


Call = Callable[..., Answer]


# Four epochs of half a second each, saved after each: long enough to be stopped in the second.
RECIPE = {"image_size": 16, "epochs": 4, "members": 2, "batch_size": 1, "replay": 2, "lr": 0.01}


ONE_EPOCH = [
    "--recipe",
    "digits-triplee-fourier",
    "--set",
    "image_size=16",
    "--set",
    "epochs=1",
    "--set",
    "members=2",
    "--set",
    "batch_size=32",
]


def options(**changes: object) -> list[str]:
    return [word for key, value in {**RECIPE, **changes}.items() for word in ("--set", f"{key}={value}")]


def train_command(data: Path, out: Path, **changes: object) -> list[str]:
    recipe = ["--recipe", "digits-triplee-fourier"]
    return ["train", str(data), "--target", "blue", "--out", str(out), *recipe, *options(**changes)]


@contextmanager
def started(*arguments: object, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """The real command at work, ended when the test is done with it."""
    command = [sys.executable, "-m", "triplee.cli", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **changes}
    with subprocess.Popen(command, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr
    return process.stderr.readline()


@dataclass(frozen=True)
class TrainedRun:
    """A run folder made once for all tests (copy it before changing it), and what its command said."""

    path: Path
    answer: Answer


def copy_of(run: TrainedRun, where: Path) -> Path:
    return Path(shutil.copytree(run.path, where / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(answer: Answer, *words: str) -> None:
    """Exit code 2 and one line, which holds the words."""
    assert answer.returncode == 2 and answer.stdout == "", answer
    assert re.fullmatch(r"triplee: .+\n", answer.stderr), answer.stderr
    for word in words:
        assert word in answer.stderr, (word, answer.stderr)


def assert_same_run(path: Path, finished: TrainedRun) -> None:
    """Weights and metrics to the byte, the result apart from the time, and nothing unfinished beside them."""
    one, two = contents(path), contents(finished.path)
    one_result, two_result = (json.loads(files.pop("result.json")) for files in (one, two))
    varying = {"seconds": 0, "memory_mb": 0}
    assert one_result | varying == two_result | varying
    kept = {name for name in two if not name.startswith("events")}
    assert {name for name in one if not name.startswith("events")} == kept
    assert all(one[name] == two[name] for name in kept)


def break_image(path: Path, kind: str) -> None:
    if kind == "not an image":
        path.write_text("no image at all")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    elif kind == "absurdly large":
        Image.new("1", (20_000, 20_000)).save(path)
    else:
        path.unlink()
        path.symlink_to("nowhere")


BAD_IMAGES = {
    "not an image": "not an image",
    "empty": "the file is empty",
    "truncated": "truncated",
    "absurdly large": "20000 × 20000 is over 100 megapixels",
    "link to nowhere": "No such file or directory",
}


@contextmanager
def terminal() -> Iterator[tuple[IO[str], Callable[[], str]]]:
    """A real terminal of 80 columns to write to, and a function that closes it and gives what it was sent."""
    master, slave = pty.openpty()
    received = bytearray()

    def read() -> None:
        try:
            while block := os.read(master, 65_536):
                received.extend(block)
        except OSError:  # how Linux says that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    stream = os.fdopen(slave, "w")

    def close() -> str:
        if not stream.closed:
            stream.close()
        reader.join()
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", received.decode())

    try:
        yield stream, close
    finally:
        close()
        os.close(master)
