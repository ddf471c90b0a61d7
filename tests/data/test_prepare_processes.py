"""The store of decoded images among others: processes that load at once or are killed, full disks, memory."""

import os
import resource
import signal
import time
from pathlib import Path

import pytest
from forked import in_process
from noise_images import SIZE, assert_images, load_folder, prepare_folder, save, save_many

from triplee.data.folder import list_images
from triplee.data.prepare import prepare
from triplee.data.store import BLOCK
from triplee.settings import InputError

pytestmark = pytest.mark.usefixtures("cache")

MANY = 3 * BLOCK + 10


def wait_for(flag: Path) -> None:
    end = time.monotonic() + 10
    while not flag.exists():
        assert time.monotonic() < end, f"{flag} does not come"
        time.sleep(0.01)


def kill_at(root: Path, num_images: int) -> Path:
    """Kills a process that prepares `root` once it is that far; the folder of what it leaves."""

    def kill(done: int, _: int) -> None:
        if done >= num_images:
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(EOFError):
        in_process(lambda: prepare(list_images(root), SIZE, kill))[1]()
    (unfinished,) = Path(os.environ["TRIPLEE_CACHE"]).glob("folders/*/unfinished.jsonl")
    assert not (unfinished.parent / "manifest.jsonl").exists()
    return unfinished.parent


def contents(entry: Path) -> list[str]:
    return sorted(file.name.split("-")[0] for file in entry.iterdir())


WHOLE = ["lock", "manifest.jsonl", "pixels"]


def test_of_two_processes_one_decodes_and_the_other_waits_for_it(root: Path, tmp_path: Path) -> None:
    def load_first() -> tuple[str, int]:
        def slow(done: int, _: int) -> None:
            (tmp_path / "first is decoding").touch()
            wait_for(tmp_path / "second is loading")
            time.sleep(0.5)

        prepared = prepare(list_images(root), SIZE, slow)
        return prepared.fingerprint, prepared.num_decoded

    def load_second() -> tuple[str, int]:
        wait_for(tmp_path / "first is decoding")
        (tmp_path / "second is loading").touch()
        prepared = prepare_folder(root)
        return prepared.fingerprint, prepared.num_decoded

    (_, first), (_, second) = in_process(load_first), in_process(load_second)
    (first_print, first_decoded), (second_print, second_decoded) = first(), second()
    assert (first_decoded, second_decoded) == (8, 0)
    assert first_print == second_print


def test_after_a_kill_prepare_goes_on_where_it_stopped(tmp_path: Path) -> None:
    root = save_many(tmp_path / "data", MANY)
    entry = kill_at(root, 2 * BLOCK + 16)
    calls: list[int] = []
    prepared = prepare(list_images(root), SIZE, lambda done, _: calls.append(done))
    assert prepared.num_decoded == MANY - 2 * BLOCK
    assert calls[0] == 2 * BLOCK + 16
    assert_images(load_folder(root), list(range(MANY)))
    assert contents(entry) == WHOLE


@pytest.mark.parametrize("num_lost", [1, 2])
@pytest.mark.parametrize("file", ["unfinished.jsonl", "pixels-*.u8"])
def test_what_a_power_cut_loses_is_decoded_again(tmp_path: Path, file: str, num_lost: int) -> None:
    root = save_many(tmp_path / "data", MANY)
    entry = kill_at(root, 2 * BLOCK + 16)
    (torn,) = entry.glob(file)
    if file.startswith("pixels"):
        with torn.open("r+b") as pixels:  # a hole, as a file system leaves it that had written the length alone
            pixels.seek((3 - num_lost) * BLOCK * SIZE * SIZE * 3 - 1)
            pixels.write(b"\0\0")
    else:
        lines = torn.read_bytes().splitlines(keepends=True)
        torn.write_bytes(b"".join(lines[:-num_lost]) + lines[-num_lost][:-2])
    assert prepare_folder(root).num_decoded == MANY - (2 - num_lost) * BLOCK
    assert_images(load_folder(root), list(range(MANY)))
    assert contents(entry) == WHOLE


def test_changes_since_a_kill_are_noticed(tmp_path: Path) -> None:
    root = save_many(tmp_path / "data", MANY)
    kill_at(root, 2 * BLOCK + 16)
    save(root / f"a/x/{BLOCK + 5:04}.bmp", 5000)
    assert prepare_folder(root).num_decoded == MANY - BLOCK
    assert_images(load_folder(root), [*range(BLOCK + 5), 5000, *range(BLOCK + 6, MANY)])


def test_a_kill_leaves_the_store_of_before_in_use(root: Path) -> None:
    before = prepare_folder(root)
    save(root / "a/x/2.png", 8)

    def kill(*_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(EOFError):
        in_process(lambda: prepare(list_images(root), SIZE, kill))[1]()
    (root / "a/x/2.png").unlink()
    assert (again := prepare_folder(root)).num_decoded == 0
    assert (again.fingerprint, again.manifest.pixels) == (before.fingerprint, before.manifest.pixels)
    save(root / "a/x/2.png", 8)
    assert_images(load_folder(root), [0, 1, 8, 2, 3, 4, 5, 6, 7])
    assert contents(before.entry) == WHOLE


def test_a_file_that_changes_meanwhile_is_noticed_next_time(tmp_path: Path) -> None:
    root = save_many(tmp_path / "data", 40)
    prepare(list_images(root), SIZE, lambda done, _: save(root / "a/x/0000.bmp", 5000) if done == 16 else None)
    assert prepare_folder(root).num_decoded == 1
    assert_images(load_folder(root), [5000, *range(1, 40)])


def test_a_full_disk_is_one_line_and_what_is_done_is_kept(tmp_path: Path, cache: Path) -> None:
    root = save_many(tmp_path / "data", MANY)
    room = 2 * BLOCK * 3 * SIZE * SIZE + 1000

    def prepare_with_little_room() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # Python ignores the signal: writing more is an OSError
        return prepare_folder(root).fingerprint

    message = in_process(prepare_with_little_room)[1]()
    assert "cannot keep decoded images in" in message and str(cache) in message and "TRIPLEE_CACHE" in message
    assert "File too large" in message and "\n" not in message
    assert not list(cache.rglob("manifest.jsonl"))
    assert prepare_folder(root).num_decoded == MANY - 2 * BLOCK
    assert_images(load_folder(root), list(range(MANY)))


def test_a_store_that_cannot_be_made(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "file/cache"))
    with pytest.raises(InputError) as refused:
        prepare_folder(root)
    message = str(refused.value)
    assert str(tmp_path / "file/cache") in message and "Not a directory" in message and "TRIPLEE_CACHE" in message


def test_a_stored_pool_is_read_from_a_cache_that_cannot_be_written(settled_root: Path) -> None:
    entry = prepare_folder(settled_root).entry
    os.utime(settled_root / "a/x/0.png", ns=(0, 10**18))
    time.sleep(0.15)  # its new times would now be kept
    (entry / "lock").unlink()
    (entry / "lock").mkdir()  # nobody can lock a folder, nor write anything that needs the lock
    assert_images(load_folder(settled_root), [0, 1, 2, 3, 4, 5, 6, 7])
    save(settled_root / "a/x/0.png", 8)
    with pytest.raises(InputError, match="cannot keep decoded images"):
        load_folder(settled_root)
