"""Many files are read in processes, with the same answers in the same order as one by one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triplee.data import reading, threads
from triplee.data.reading import ReadImage, read_image, read_images
from triplee.settings import InputError


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """1,100 images, every hundredth of them bad in one way or another, one with a name that is not text."""
    folder, rng = tmp_path_factory.mktemp("many"), np.random.default_rng(0)
    found = []
    for number in range(1100):
        path = folder / (os.fsdecode(b"\xff.png") if number == 7 else f"{number:04}.png")
        if number % 100 == 50:
            path.write_bytes((b"", b"no image")[number // 100 % 2])
        elif number % 100 != 60:  # else: not there at all
            Image.fromarray(rng.integers(0, 256, (6, 5, 3), np.uint8)).save(path)
        found.append(str(path))
    return found


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "num_cores", lambda: 2)
    monkeypatch.setattr(threads, "num_cores", lambda: 2)


def settled(image: ReadImage) -> tuple[object, ...]:
    """All of it, pixels as bytes; but the times, which a file just written has not got yet."""
    return image.digest, None if image.pixels is None else bytes(image.pixels), image.checksum, image.bad


def processes_of(parent: int) -> list[int]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [int(stat.split()[0]) for stat in stats if int(stat.rsplit(")", 1)[1].split()[1]) == parent]


@pytest.mark.usefixtures("two_cores")
def test_processes_answer_as_one_by_one_does(paths: list[str]) -> None:
    before = processes_of(os.getpid())
    many = [settled(image) for image in read_images(paths, 8)]
    assert many == [settled(read_image(path, 8)) for path in paths]
    assert sum(bad is not None for *_, bad in many) == 22
    assert many[50][3] == "the file is empty" and "No such file" in str(many[60][3])
    assert processes_of(os.getpid()) == before


@pytest.mark.usefixtures("two_cores")
def test_whoever_stops_asking_leaves_no_process_behind(paths: list[str]) -> None:
    before = processes_of(os.getpid())
    images = read_images(paths, 8)
    next(images)
    assert len(processes_of(os.getpid())) == len(before) + 2
    images.close()
    assert processes_of(os.getpid()) == before


@pytest.mark.usefixtures("two_cores")
def test_a_process_that_is_killed_is_one_line(paths: list[str]) -> None:
    before = processes_of(os.getpid())
    images = read_images(paths, 8)
    next(images)
    for process in set(processes_of(os.getpid())) - set(before):
        os.kill(process, signal.SIGKILL)
    with pytest.raises(InputError, match="a process that decodes images ended"):
        list(images)


def test_content_that_is_known_is_not_decoded(paths: list[str]) -> None:
    first, second = (read_image(path, 8) for path in paths[:2])
    again, other = read_images(paths[:2], 8, known={first.digest})
    assert again.is_known and again.digest == first.digest
    assert not other.is_known and settled(other) == settled(second)


@pytest.mark.parametrize("end", ["killed", "interrupted while its processes hang"])
def test_a_script_without_a_guard_may_use_it_and_its_end_ends_the_processes(
    paths: list[str], tmp_path: Path, end: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from triplee.data import reading, threads\n"
        "reading.num_cores = threads.num_cores = lambda: 2\n"
        "images = reading.read_images(50 * open(sys.argv[1], errors='surrogateescape').read().split('\\n'), 8)\n"
        "next(images)\nprint('reading', flush=True)\nfor _ in images: pass\n"
    )
    (tmp_path / "list").write_text("\n".join(paths), errors="surrogateescape")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, script, tmp_path / "list"], text=True, **streams) as process:
        assert process.stdout and process.stdout.readline() == "reading\n"
        children = processes_of(process.pid)
        assert len(children) == 2
        if end == "killed":
            process.kill()
        else:
            for child in children:
                os.kill(child, signal.SIGSTOP)
            time.sleep(1)  # by now it waits for them
            process.send_signal(signal.SIGINT)
            try:
                _, errors = process.communicate(timeout=20)
            finally:
                process.kill()
            assert errors.endswith("KeyboardInterrupt\n")
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
