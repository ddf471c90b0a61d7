"""A folder that fills: every image is handed out once, and only when nothing changes in it any more."""

import os
import shutil
from pathlib import Path

import pytest

from triplee.data import watch
from triplee.data.watch import Watch, images_below
from triplee.settings import InputError


class Clock:
    """Time as the watch sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(watch.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_images_are_found_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("x.png", "a/y.JPG", "a/b/z.webp", "notes.txt", "a/x.png.part"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "gone.png").symlink_to("nowhere")
    assert {str(p.relative_to(tmp_path)) for p in images_below(tmp_path)} == {"x.png", "a/y.JPG", "a/b/z.webp"}


def test_a_file_is_handed_out_once_it_has_settled_and_again_when_it_changed(tmp_path: Path, clock: Clock) -> None:
    there, coming = tmp_path / "there.png", tmp_path / "coming.png"
    there.write_bytes(b"whole")
    arriving = Watch(tmp_path)
    assert arriving.poll() == []
    coming.write_bytes(b"ha")
    clock.now += 1
    assert arriving.poll() == [there]
    coming.write_bytes(b"half")
    clock.now += 0.9
    assert arriving.poll() == []  # it has grown
    clock.now += 0.9
    assert arriving.poll() == []  # not for long enough
    clock.now += 0.2
    assert arriving.poll() == [coming]
    clock.now += 60
    assert arriving.poll() == []
    os.utime(there, ns=(0, 1))
    arriving.poll()
    clock.now += 1
    assert arriving.poll() == [there]


def test_the_oldest_comes_first(tmp_path: Path, clock: Clock) -> None:
    names = ["c.png", "a.png", "b.png"]
    for age, name in enumerate(names):
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, ns=(0, age))
    arriving = Watch(tmp_path)
    arriving.poll()
    clock.now += 1
    assert arriving.poll() == [tmp_path / name for name in names]


def test_what_cannot_be_read_is_tried_again_for_a_while(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "x.png"
    file.write_bytes(b"half")
    arriving = Watch(tmp_path)
    arriving.poll()
    clock.now += 1
    assert arriving.poll() == [file] and arriving.put_back(file)
    assert arriving.poll() == [file]
    clock.now += 10
    assert not arriving.put_back(file) and arriving.poll() == []
    file.write_bytes(b"whole")
    arriving.poll()
    clock.now += 1
    assert arriving.poll() == [file]


def test_a_folder_that_is_none_or_goes_away_is_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "inbox"
    with pytest.raises(InputError, match=r"inbox is not a folder: --watch takes one that exists"):
        Watch(folder).poll()
    folder.mkdir()
    arriving = Watch(folder)
    assert arriving.poll() == []
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="inbox is not a folder"):
        arriving.poll()
