"""Fixtures of the command line's tests: the entry point in this process, and two runs made once by the real command."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Answer, Call, TrainedRun, first_line, started, train_command

from triplee.cli import main


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may appear where the command happens to be started."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    yield
    assert list(here.iterdir()) == []


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The command's entry point, in this process."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["triplee", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code or 0
        assert isinstance(code, int)
        return Answer(sys.argv, code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def finished(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """The run without any accident, by the real command."""
    path = tmp_path_factory.mktemp("finished") / "run"
    with started(*train_command(small_folder, path)) as process:
        output, errors = process.communicate()
    return TrainedRun(path, Answer(process.args, process.returncode, output, errors))


@pytest.fixture(scope="session")
def unfinished(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """The same run after Ctrl-C in its second epoch."""
    path = tmp_path_factory.mktemp("unfinished") / "run"
    with started(*train_command(small_folder, path)) as process:
        line = first_line(process)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    return TrainedRun(path, Answer(process.args, process.returncode, output, line + errors))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system that can be filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False).returncode:
        pytest.skip("only root can mount, and not everywhere")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)
