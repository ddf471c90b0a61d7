"""The store of decoded images among others: processes that load at once or die, full disks, files that change."""

import multiprocessing
import os
import re
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from triplee.data.pool import Pool
from triplee.data.prepare import load_folder
from triplee.settings import InputError

SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Eight grey images, a/x/0.png to a/x/7.png, image i of grey 10·i."""
    for index in range(8):
        save(tmp_path / f"data/a/x/{index}.png", 10 * index)
    return tmp_path / "data"


def save(target: Path, grey: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (SIZE, SIZE), grey).save(target)


def assert_all_images(pool: Pool) -> None:
    expected = 10 * np.arange(8).reshape(8, 1, 1, 1)
    assert pool.images_NCHW.shape == (8, 3, SIZE, SIZE) and (pool.images_NCHW.numpy() == expected).all()


def leftovers(cache: Path) -> list[str]:
    return [file.name for file in (cache / "folders").iterdir() if file.suffix != ".lock"]


def in_process(work: Callable[[], Any]) -> Callable[[], Any]:
    """Starts `work` in a process of its own; the function returned waits for its result, an InputError as its text."""
    receiver, sender = multiprocessing.get_context("fork").Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send(work())
        except InputError as error:
            sender.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    sender.close()

    def result() -> Any:
        try:
            assert receiver.poll(20), "the process does not answer"
            return receiver.recv()
        finally:
            receiver.close()
            process.join(20)

    return result


def wait_for(flag: Path) -> None:
    end = time.monotonic() + 10
    while not flag.exists():
        assert time.monotonic() < end, f"{flag} does not come"
        time.sleep(0.01)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, cache: Path) -> None:
    num_images = 16 * (2 * (os.cpu_count() or 1) + 3)  # more than may be under way when the first is done
    save(tmp_path / "data/a/x/00000.png", 0)
    for index in range(1, num_images):
        shutil.copy(tmp_path / "data/a/x/00000.png", tmp_path / f"data/a/x/{index:05}.png")
    last = tmp_path / f"data/a/x/{num_images - 1:05}.png"
    with pytest.raises(InputError, match=re.escape(f"{last} changed while it was read")):
        load_folder(tmp_path / "data", SIZE, on_progress=lambda done, _: save(last, 1) if done == 1 else None)
    assert leftovers(cache) == []


def test_of_two_processes_one_decodes_and_the_other_waits_for_it(root: Path, tmp_path: Path) -> None:
    def load_first() -> tuple[str, int]:
        decoded: list[int] = []

        def slow(done: int, _: int) -> None:
            decoded.append(done)
            if done == 1:
                (tmp_path / "first is decoding").touch()
                wait_for(tmp_path / "second is loading")
                time.sleep(0.5)

        return load_folder(root, SIZE, on_progress=slow).fingerprint, len(decoded)

    def load_second() -> tuple[str, int]:
        decoded: list[int] = []
        wait_for(tmp_path / "first is decoding")
        (tmp_path / "second is loading").touch()
        return load_folder(root, SIZE, on_progress=lambda done, _: decoded.append(done)).fingerprint, len(decoded)

    first, second = in_process(load_first), in_process(load_second)
    (first_print, first_decoded), (second_print, second_decoded) = first(), second()
    assert (first_decoded, second_decoded) == (8, 0)
    assert first_print == second_print


def test_what_a_killed_process_leaves_is_never_taken_and_cleared_away(root: Path, cache: Path) -> None:
    def die(done: int, _: int) -> None:
        if done == 5:
            os._exit(1)

    with pytest.raises(EOFError):
        in_process(lambda: load_folder(root, SIZE, on_progress=die))()
    assert leftovers(cache) != []
    pool = load_folder(root, SIZE)
    assert_all_images(pool)
    assert leftovers(cache) == [pool.fingerprint]


def test_a_full_disk_is_one_line_and_leaves_nothing(root: Path, cache: Path) -> None:
    def load_with_little_room() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # Python ignores the signal: writing more is an OSError
        return load_folder(root, SIZE).fingerprint

    message = in_process(load_with_little_room)()
    assert "cannot keep decoded images in" in message and str(cache) in message and "TRIPLEE_CACHE" in message
    assert "File too large" in message and "\n" not in message
    assert leftovers(cache) == []
    assert_all_images(load_folder(root, SIZE))


def test_a_store_that_cannot_be_made(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(InputError) as refused:
        load_folder(root, SIZE)
    message = str(refused.value)
    assert str(tmp_path / "file/cache") in message and "Not a directory" in message and "TRIPLEE_CACHE" in message


def test_a_stored_pool_is_read_without_a_lock(root: Path, cache: Path) -> None:
    first = load_folder(root, SIZE)
    lock = cache / "folders" / f"{first.fingerprint}.lock"
    lock.unlink()
    lock.mkdir()  # nobody can lock a folder, as in a store that others may only read
    assert_all_images(load_folder(root, SIZE))
