"""The command as people meet it: every verb, bad input, signals, full disks, damaged files.

A process where a process matters (signals, streams, locks, limits), else the entry point in this one, which is quicker.
"""

import csv
import dataclasses
import io
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from triplee import __version__
from triplee.cli import main
from triplee.data.pool import Pool
from triplee.recipes import DESCRIPTIONS, RECIPES
from triplee.runfolder import RunFolder, read_tensors

Answer = subprocess.CompletedProcess[str]
Call = Callable[..., Answer]

# Four epochs of half a second each, saved after each: long enough to be stopped in the second.
RECIPE = {"image_size": 16, "epochs": 4, "members": 2, "batch_size": 1, "replay": 2}
ONE_EPOCH = ["--set", "image_size=16", "--set", "epochs=1", "--set", "members=2", "--set", "batch_size=32"]


def options(**changes: object) -> list[str]:
    return [word for key, value in {**RECIPE, **changes}.items() for word in ("--set", f"{key}={value}")]


def train_command(data: Path, out: Path, **changes: object) -> list[str]:
    return ["train", str(data), "--target", "blue", "--out", str(out), *options(**changes)]


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


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run folder made once for all tests (copy it before changing it), and what its command said."""

    path: Path
    answer: Answer


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
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    return TrainedRun(path, Answer(process.args, process.returncode, output, line + errors))


def copy_of(run: TrainedRun, where: Path) -> Path:
    return Path(shutil.copytree(run.path, where / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(answer: Answer, *words: str) -> None:
    """Exit code 2 and one line, which holds the words."""
    assert answer.returncode == 2 and answer.stdout == ""
    assert re.fullmatch(r"triplee: .+\n", answer.stderr), answer.stderr
    for word in words:
        assert word in answer.stderr


def assert_same_run(path: Path, finished: TrainedRun) -> None:
    """Weights and metrics to the byte, the result apart from the time, and nothing unfinished beside them."""
    one, two = contents(path), contents(finished.path)
    one_result, two_result = (json.loads(files.pop("result.json")) for files in (one, two))
    assert {**one_result, "seconds": 0} == {**two_result, "seconds": 0}
    kept = {name for name in two if not name.startswith("events")}
    assert {name for name in one if not name.startswith("events")} == kept
    assert all(one[name] == two[name] for name in kept)


# What the command says of itself


def test_help_and_version(call: Call, triplee: Call) -> None:
    answer = triplee("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"triplee {__version__}\n", "")
    for verb in ("demo", "train", "evaluate", "predict", "recipes"):
        answer = call(verb, "--help")
        assert answer.returncode == 0 and f"Example: triplee {verb}" in answer.stdout and answer.stderr == ""
    answer = call()
    assert answer.returncode == 2 and "Usage: triplee" in answer.stdout and answer.stderr == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("trian", ["No such command 'trian'", "Did you mean 'train'", "triplee --help"]),
        ("train", ["Missing argument", "triplee train --help"]),
        ("train digits", ["--target"]),
        ("train digits --target street --sed 3", ["--sed", "--seed", "triplee train --help"]),
        ("train digits --target street --seed -1", ["--seed", "-1"]),
        ("train digits --target street --seed one", ["--seed", "one"]),
        ("predict run", ["Missing argument", "triplee predict --help"]),
        ("predict run image.png --format xml", ["xml", "'table', 'json', 'csv'"]),
        ("demo --epochs 0", ["--epochs", "0"]),
    ],
)
def test_a_wrong_command_is_one_line(call: Call, command: str, words: list[str]) -> None:
    assert_refused(call(*command.split()), *words)


def test_recipes_are_listed_and_shown(call: Call) -> None:
    answer = call("recipes")
    assert answer.stdout.splitlines() == ["recipe\twhat it is", *map("\t".join, DESCRIPTIONS.items())]
    for name, recipe in RECIPES.items():
        assert yaml.safe_load(call("recipes", name).stdout) == recipe.model_dump()
    assert_refused(call("recipes", "digits-vanila"), "unknown recipe 'digits-vanila'", "did you mean 'digits-vanilla'?")


def test_a_reader_that_went_away_and_a_full_disk_behind_the_output() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for environment in (buffered, {**buffered, "PYTHONUNBUFFERED": "1"}):
        with started("recipes", env=environment) as process:
            assert process.stdout and process.stderr
            process.stdout.close()
            assert process.stderr.read() == "" and process.wait() == 141
        with Path("/dev/full").open("w") as full, started("recipes", env=environment, stdout=full) as process:
            assert process.stderr
            assert process.stderr.read() == "triplee: [Errno 28] No space left on device\n" and process.wait() == 2


# Bad recipes and options


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("--recipe digits-tripple-fourier", ["digits-tripple-fourier", "did you mean 'digits-triplee-fourier'?"]),
        ("--set epoch=3", ["unknown recipe key 'epoch'", "did you mean 'epochs'?"]),
        ("--set zzz=3", ["unknown recipe key 'zzz'", "known: backbone, "]),
        ("--set ops=furier", ["'ops'", "'basic' or 'fourier'"]),
        ("--set augment=solarise", ["'augment'", "'none', 'vanilla', 'standard' or 'esaug'"]),
        ("--set lr=fast", ["'lr'", "should be a valid number"]),
        ("--set lr=-1", ["'lr'", "should be greater than 0"]),
        ("--set lr=nan", ["'lr'", "should be"]),
        ("--set epochs=2.5", ["'epochs'", "should be a valid integer"]),
        ("--set epochs=", ["'epochs'", "should be a valid integer"]),
        ("--set epochs=0", ["'epochs'", "should be greater than or equal to 1"]),
        ("--set image_size=99999", ["'image_size'", "should be less than or equal to 1024"]),
        ("--set image_size=8", ["image_size 8 is too small for digit-cnn: 16 at least"]),
        ("--set lr", ["--set takes KEY=VALUE, not 'lr'"]),
        ("--set =3", ["unknown recipe key ''"]),
        ("--set lr=[1", ["--set 'lr=[1' has a value that cannot be read"]),
        ("--set members=500", ["108 training images cannot feed 500 members: lower members"]),
        ("--set batch_size=1 --set replay=1", ["two views in a batch", "raise batch_size or replay"]),
        ("--set ops=basic --set cross_image_probability=0.5", ["cross_image_probability", "set ops=fourier"]),
        ("--target blau", ["unknown target 'blau'", "did you mean 'blue'?"]),
        ("--device gpu", ["unknown device 'gpu': cpu or cuda"]),
        ("--recipe nowhere.yaml", ["recipe file nowhere.yaml does not exist"]),
    ],
)
def test_a_bad_recipe_or_option_is_named_and_leaves_nothing(
    call: Call, small_folder: Path, tmp_path: Path, wrong: str, words: list[str]
) -> None:
    assert_refused(call(*train_command(small_folder, tmp_path / "run"), *wrong.split()), *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named_with_the_way_out(
    call: Call, small_folder: Path, finished: TrainedRun
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    verbs = (train_command(small_folder, Path("x")), ["evaluate", finished.path], ["predict", finished.path, image])
    for command in verbs:
        assert_refused(call(*command, "--device", "cuda"), "no CUDA device", "leave out --device, or say --device cpu")


def test_one_view_a_batch_trains_without_contrast(call: Call, small_folder: Path, tmp_path: Path) -> None:
    changes = {"batch_size": 1, "replay": 1, "supcon_weight": 0, "epochs": 1, "members": 1}
    assert call(*train_command(small_folder, tmp_path / "run", **changes)).returncode == 0


def test_a_recipe_file_is_used_and_set_goes_before_it(call: Call, small_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(call("recipes", "digits-d").stdout + "lr: 1e-3\n")  # a later key wins; YAML reads 1e-3 as a word
    command = ["train", small_folder, "--target", "blue", "--recipe", file, "--out", tmp_path / "run", *ONE_EPOCH]
    assert call(*command).returncode == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["recipe_name"] == "mine"
    changes = {"lr": 0.001, "image_size": 16, "epochs": 1, "members": 2, "batch_size": 32}
    assert config["recipe"] == {**RECIPES["digits-d"].model_dump(), **changes}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"lr: [", "cannot be read as YAML"),
        (b"\xff\xfe\xfa", "cannot be read as YAML"),
        (b"- lr\n", "holds no `key: value` lines"),
        (b"", "holds no `key: value` lines"),
        (b"epoch: 3\n", "unknown recipe key 'epoch': did you mean 'epochs'?"),
        (b"1: 3\n", "unknown recipe key '1'"),
        (b"lr: high\n", "recipe key 'lr': should be a valid number"),
    ],
)
def test_a_broken_recipe_file_is_one_line(
    call: Call, small_folder: Path, tmp_path: Path, content: bytes, word: str
) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    command = train_command(small_folder, tmp_path / "run")
    assert_refused(call(*command, "--recipe", tmp_path / "mine.yaml"), word)
    assert not (tmp_path / "run").exists()


# Bad data


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


def test_bad_images_are_named_or_skipped_with_a_count(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), tmp_path / "run"
    command = ["train", data, "--target", "blue", "--out", out, *ONE_EPOCH]
    for number, (kind, reason) in enumerate(BAD_IMAGES.items()):
        image = data / "red" / "down" / f"{number:02}.png"
        whole = image.read_bytes()
        break_image(image, kind)
        assert_refused(call(*command), str(image), reason, "(1 bad in all)", "--skip-bad")
        image.unlink()
        image.write_bytes(whole)
    for number, kind in enumerate(BAD_IMAGES):
        break_image(data / "red" / "down" / f"{number:02}.png", kind)
    assert_refused(call(*command), "red/down/00.png", "(5 bad in all)")
    assert not out.exists()
    answer = call(*command, "--skip-bad")
    assert answer.returncode == 0 and answer.stderr.startswith("triplee: warning: 5 unreadable images left out\n")
    assert yaml.safe_load((out / "config.yaml").read_text())["skipped_images"] == 5


def test_data_that_cannot_be_trained_on_is_one_line(call: Call, small_folder: Path, tmp_path: Path) -> None:
    def refused(data: object, *words: str) -> None:
        answer = call("train", data, "--target", "blue", "--out", tmp_path / "run", *ONE_EPOCH)
        assert_refused(answer, *words)
        assert not (tmp_path / "run").exists()

    refused("digitz", "data 'digitz' is neither a known name nor an existing folder", "did you mean 'digits'?")
    refused(tmp_path / "nowhere", str(tmp_path / "nowhere"))
    refused("", "''")
    refused("digits", "unknown target 'blue' in digits", "handwritten, textured, printed, street")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no domain folders", "<domain>/<class>/<image>")
    (tmp_path / "words" / "blue" / "down").mkdir(parents=True)
    (tmp_path / "words" / "blue" / "down" / "a.txt").write_text("words")
    refused(tmp_path / "words", "no images", "<domain>/<class>/<image>")
    refused(tmp_path / "words" / "blue" / "down" / "a.txt", "a.txt is a file")
    refused(small_folder / "blue", "another depth", f"did you mean {small_folder}?")
    shutil.copytree(small_folder / "blue", tmp_path / "only" / "blue")
    refused(tmp_path / "only", "target 'blue' is the only domain")
    data = Path(shutil.copytree(small_folder, tmp_path / "own class"))
    shutil.copytree(data / "blue" / "down", data / "blue" / "spiral")
    refused(data, "no source domain", "'spiral'", "choose another target")


def test_a_class_that_the_target_lacks_is_a_warning(call: Call, small_folder: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(small_folder, tmp_path / "data"))
    shutil.rmtree(data / "blue" / "down")
    answer = call("train", data, "--target", "blue", "--out", tmp_path / "run", *ONE_EPOCH)
    assert answer.returncode == 0
    assert answer.stderr.splitlines()[0] == "triplee: warning: target 'blue' has no image of class 'down'"


# Training and its progress


def test_training_says_what_came_of_it(finished: TrainedRun) -> None:
    answer, result = finished.answer, json.loads((finished.path / "result.json").read_text())
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [
        f"{finished.path}: epoch {result['epoch']} selected by source-val ({result['val_accuracy']:.2f} %)",
        f"target blue: {result['accuracy']:.2f} %  members alone {' '.join(f'{m:.1f}' for m in result['members'])}",
        f"last epoch {result['last_accuracy']:.2f} %  oracle {result['oracle_accuracy']:.2f} %",
    ]


def test_elsewhere_than_on_a_terminal_progress_is_a_line_per_epoch(finished: TrainedRun) -> None:
    lines = finished.answer.stderr.splitlines()
    assert len(lines) == 4
    rows = RunFolder(finished.path).read_metrics()
    for epoch, (line, row) in enumerate(zip(lines, rows, strict=True), 1):
        title = re.escape(f"digits-triplee-fourier → blue  epoch {epoch}/4  cross-entropy ")
        assert re.fullmatch(title + rf"\d\.\d+  val {row['val_accuracy']:.1f} %  \d+ s left", line)


def test_the_events_hold_the_metrics(finished: TrainedRun) -> None:
    events = EventAccumulator(str(finished.path / "events"))
    events.Reload()
    rows = RunFolder(finished.path).read_metrics()
    assert set(events.Tags()["scalars"]) == rows[0].keys() - {"epoch"}
    seen = [(event.step, event.value) for event in events.Scalars("val_accuracy")]
    assert seen == [(row["epoch"], pytest.approx(row["val_accuracy"])) for row in rows]


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


def test_on_a_terminal_a_bar_shows_loss_validation_and_time_left(small_folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with terminal() as (stream, close):
        command = train_command(small_folder, tmp_path / "run")
        with started(*command, stdout=stream, stderr=stream, env=environment) as process:
            process.wait()
        shown = close()
    assert process.returncode == 0 and "digits-triplee-fourier → blue\r\n" in shown
    bars = [bar for bar in re.split(r"[\r\n]+", shown) if re.match(r"epoch \d/4 ", bar)]
    pattern = r"epoch \d/4 [━╸╺ ]+ loss \d\.\d{3}  val \d+\.\d % \d:\d\d:\d\d left \d:\d\d:\d\d"
    assert sum(bool(re.fullmatch(pattern, bar)) for bar in bars) >= 3
    assert {bar[6] for bar in bars} == set("1234") and all(len(bar) <= 80 for bar in bars)
    assert "oracle" in shown.splitlines()[-1]


# Stopping and going on


def test_ctrl_c_saves_says_how_to_go_on_and_resuming_gives_the_same_bytes(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    answer = unfinished.answer
    assert answer.returncode == 130 and answer.stdout == ""
    *epochs, last = answer.stderr.splitlines()
    assert all("  epoch " in line for line in epochs)
    assert last == f"triplee: stopped and saved; go on with the same command and --out {unfinished.path} --resume"
    _, metadata = read_tensors(unfinished.path / "state" / "last.safetensors")
    assert metadata["epoch"] >= 1 and sum(metadata["progress"]["steps"]) > 0  # in the middle of an epoch
    out = copy_of(unfinished, tmp_path)
    answer = call(*train_command(small_folder, out), "--resume")
    assert answer.returncode == 0 and "epoch 4/4" in answer.stderr and "epoch 1/4" not in answer.stderr
    assert_same_run(out, finished)
    assert contents(out).keys() >= {"config.yaml", "metrics.jsonl", "best/member-0.safetensors", "state/lock"}


def test_a_live_process_keeps_its_folder_and_a_polite_kill_saves(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    command = train_command(small_folder, tmp_path / "run")
    with started(*command) as process:
        assert "epoch 1/4" in first_line(process)
        process.send_signal(signal.SIGSTOP)
        before = contents(tmp_path / "run")
        for extra in ([], ["--resume"]):
            assert_refused(call(*command, *extra), f"{tmp_path / 'run'} is in use by another process", "--out")
        assert contents(tmp_path / "run") == before
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert process.returncode == 130 and "stopped and saved" in errors.splitlines()[-1]
    assert call(*command, "--resume").returncode == 0
    assert_same_run(tmp_path / "run", finished)


def test_a_reader_of_the_progress_that_went_away_costs_no_state(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    command = train_command(small_folder, tmp_path / "run")
    with started(*command) as process:
        assert "epoch 1/4" in first_line(process) and process.stderr
        process.stderr.close()
        assert process.wait() == 141
    assert call(*command, "--resume").returncode == 0
    assert_same_run(tmp_path / "run", finished)


def test_resuming_a_finished_run_tells_its_result(call: Call, small_folder: Path, finished: TrainedRun) -> None:
    before = contents(finished.path)
    answer = call(*train_command(small_folder, finished.path), "--resume")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, finished.answer.stdout, "")
    assert contents(finished.path) == before


def test_the_data_may_have_moved(call: Call, small_folder: Path, unfinished: TrainedRun, tmp_path: Path) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "moved")), copy_of(unfinished, tmp_path)
    assert call(*train_command(data, out), "--resume").returncode == 0


# Run folders that are not what they should be


def test_an_occupied_folder_is_refused_and_untouched(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    def refused(out: Path, *words: str, extra: tuple[str, ...] = (), **changes: object) -> None:
        before = contents(tmp_path)
        assert_refused(call(*train_command(small_folder, out, **changes), *extra), str(out), *words)
        assert contents(tmp_path) == before

    for name, run in (("old", finished), ("cut", unfinished)):
        shutil.copytree(run.path, tmp_path / name)
    refused(tmp_path / "old", "holds a finished run (digits-triplee-fourier)", "choose another --out")
    refused(tmp_path / "cut", "holds an unfinished run", "add --resume, or choose another --out")
    resume = ("--resume",)
    refused(tmp_path / "cut", "started differently", "lr: 0.01 → 0.5", extra=resume, lr=0.5)
    refused(tmp_path / "cut", "epochs: 4 → 9", extra=resume, epochs=9)
    refused(tmp_path / "old", "members: 2 → 3", extra=resume, members=3)
    refused(tmp_path / "cut", "seed: 0 → 4", extra=(*resume, "--seed", "4"))
    refused(tmp_path / "cut", "target: blue → red", extra=(*resume, "--target", "red"))
    refused(tmp_path / "cut", "recipe_name: digits-triplee-fourier → digits-d", extra=(*resume, "--recipe", "digits-d"))
    for file in ("thesis.tex", ".bashrc", "state/notes.txt"):
        folder = tmp_path / file.replace("/", "-").strip(".")
        (folder / file).parent.mkdir(parents=True)
        (folder / file).write_text("years of work")
        refused(folder, "is not empty and no run folder: choose another --out")
        refused(folder / file, "is a file: choose another --out")
        refused(folder / file / "run", "cannot write")
    refused(tmp_path / "nowhere", "holds no run to resume", "leave out --resume", extra=resume)
    assert not (tmp_path / "nowhere").exists()


def test_other_data_in_the_same_place_are_noticed(
    call: Call, small_folder: Path, unfinished: TrainedRun, tmp_path: Path
) -> None:
    data, out = Path(shutil.copytree(small_folder, tmp_path / "data")), copy_of(unfinished, tmp_path)
    (data / "red" / "down" / "00.png").unlink()
    before = contents(out)
    assert_refused(call(*train_command(data, out), "--resume"), "was started differently", "data_fingerprint")
    assert contents(out) == before


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    changed = {
        "empty": b"",
        "cut in half": content[: len(content) // 2],
        "one byte short": content[:-1],
        "zeros": bytes(len(content)),
        "words": b"years of work",
    }
    path.write_bytes(changed[kind])


@pytest.mark.parametrize("kind", ["empty", "cut in half", "one byte short", "zeros", "words"])
def test_a_damaged_file_of_a_run_is_named(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path, kind: str
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    out = copy_of(unfinished, tmp_path)
    damage(out / "best" / "member-1.safetensors", kind)
    for command in (["predict", out, image], ["evaluate", out]):
        assert_refused(call(*command), "member-1.safetensors is damaged", "restore it, or train again")
    damage(out / "state" / "last.safetensors", kind)
    before = contents(out)
    assert_refused(call(*train_command(small_folder, out), "--resume"), "last.safetensors is damaged", "train again")
    assert contents(out) == before
    whole = copy_of(finished, tmp_path / "whole")
    if kind != "one byte short":  # the line end of a text file
        damage(whole / "result.json", kind)
        assert_refused(call(*train_command(small_folder, whole), "--resume"), "result.json is damaged", "train again")
        damage(whole / "config.yaml", kind)
        for command in (["predict", whole, image], ["evaluate", whole], train_command(small_folder, whole)):
            assert_refused(call(*command), "config.yaml is damaged", "restore it, or train again")


def test_flipped_bits_never_end_in_a_traceback(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    rng = random.Random(0)
    image = small_folder / "red" / "down" / "00.png"
    cut, whole = copy_of(unfinished, tmp_path), copy_of(finished, tmp_path / "whole")
    resume = [*train_command(small_folder, whole), "--resume"]
    cases: list[tuple[Path, list[Any], set[int]]] = [
        (cut / "state" / "last.safetensors", [*train_command(small_folder, cut), "--resume"], {2}),
        (cut / "best" / "member-0.safetensors", ["predict", cut, image], {2}),
        (whole / "config.yaml", ["predict", whole, image], {0, 2}),  # the name of a class may become another
        (whole / "config.yaml", resume, {0, 2}),
        (whole / "result.json", resume, {0, 2}),
    ]
    for file, command, codes in cases:
        content = file.read_bytes()
        end = len(content)
        if file.suffix == ".safetensors":
            end = 2 * int.from_bytes(content[:8], "little")  # half of the flips in the header
        for _ in range(25):
            position = rng.randrange(end)
            flipped = content[position] ^ 1 << rng.randrange(8)
            file.write_bytes(content[:position] + bytes([flipped]) + content[position + 1 :])
            answer = call(*command)
            assert answer.returncode in codes, (file, position, flipped)
            if answer.returncode == 2:
                assert_refused(answer)
        file.write_bytes(content)


def test_checkpoints_of_another_version_and_of_other_runs_are_named(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    out = copy_of(unfinished, tmp_path)
    resume, predict = [*train_command(small_folder, out), "--resume"], ["predict", out, image]
    state, best, config = out / "state" / "last.safetensors", out / "best" / "member-0.safetensors", out / "config.yaml"
    whole = {path: path.read_bytes() for path in (state, best, config, out / "metrics.jsonl")}

    def refused(command: list[Any], *words: str) -> None:
        before = contents(out)
        assert_refused(call(*command), *words)
        assert contents(out) == before
        for path, content in whole.items():
            path.write_bytes(content)

    for path, command in ((state, resume), (best, predict)):
        path.write_bytes(whole[path].replace(b'\\"format\\": 1', b'\\"format\\": 2', 1))
        refused(command, f"{path} is of format 2, this version reads 1: train again")
    for command in (resume, predict):
        config.write_text(config.read_text().replace("format: 1", "format: 7"))
        refused(command, f"{out} is of format 7 (triplee {__version__}), this version reads 1")
    state.write_bytes(whole[best])
    refused(resume, f"{state} belongs to another run")
    best.write_bytes((finished.path / "best" / "member-0.safetensors").read_bytes())
    refused(predict, "was cut off while saving its best epoch", "--resume")
    config.write_text(config.read_text().replace("- down\n", ""))
    refused(predict, f"{best} does not fit the run's recipe")
    config.write_text(config.read_text().replace("members: 2", "members: 3"))
    refused(predict, "member-2.safetensors is missing")
    config.write_text(config.read_text().replace("members: 2", "members: none"))
    refused(predict, f"{config} is damaged (recipe key 'members'")
    for content in (b"", whole[out / "metrics.jsonl"].replace(b"val_accuracy", b"val_accuracz")):
        (out / "metrics.jsonl").write_bytes(content)
        refused(resume, "metrics.jsonl has lost lines: restore it, or train again")
    best.unlink()
    refused(predict, f"{best} is missing: the run has not got that far")


# When saving is not possible


def test_a_save_that_fails_keeps_the_last_good_state(
    call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, tmp_path: Path
) -> None:
    """A limit on the size of files that the weights pass and the state does not."""
    out = copy_of(unfinished, tmp_path)
    before = contents(out)
    size = len(before["best/member-0.safetensors"])
    command = [*train_command(small_folder, out), "--resume"]
    limit = (size + 1000, size + 1000)
    with started(*command, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)) as process:
        output, errors = process.communicate()
    answer = Answer(command, process.returncode, output, errors)
    assert_refused(answer, f"cannot write {out}/state/last.safetensors: file too large", "saved before is untouched")
    after = contents(out)
    assert after["state/last.safetensors"] == before["state/last.safetensors"]
    assert not [name for name in after if "unfinished" in name]
    assert call(*command).returncode == 0
    assert_same_run(out, finished)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system that can be filled."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=False).returncode:
        pytest.skip("only root can mount, and not everywhere")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"), (disk / "filling").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1000))


def test_a_full_disk_keeps_the_last_good_state(
    triplee: Call, call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, small_disk: Path
) -> None:
    out = copy_of(unfinished, small_disk)
    before = contents(out)
    fill(small_disk)
    command = [*train_command(small_folder, out), "--resume"]
    assert_refused(triplee(*command), "cannot write", "the disk is full, make room", "saved before is untouched")
    after = contents(out)
    assert {name: after[name] for name in before} == before  # only an empty file of events is new
    assert not [name for name in after if "unfinished" in name]
    assert_refused(call(*train_command(small_folder, small_disk / "new")), "cannot write", "the disk is full")
    (small_disk / "filling").unlink()
    assert call(*command).returncode == 0
    assert_same_run(out, finished)
    assert call(*train_command(small_folder, small_disk / "new", epochs=1)).returncode == 0


def test_a_disk_that_fills_up_while_saving_keeps_the_last_good_state(
    triplee: Call, call: Call, small_folder: Path, unfinished: TrainedRun, finished: TrainedRun, small_disk: Path
) -> None:
    out = copy_of(unfinished, small_disk)
    state = (out / "state" / "last.safetensors").read_bytes()
    fill(small_disk)
    room = 3 * (out / "best" / "member-0.safetensors").stat().st_size  # for the weights, not for the state as well
    os.truncate(small_disk / "filling", (small_disk / "filling").stat().st_size - room)
    command = [*train_command(small_folder, out), "--resume"]
    assert_refused(triplee(*command), f"cannot write {out}/state/last.safetensors: the disk is full")
    assert (out / "state" / "last.safetensors").read_bytes() == state
    (small_disk / "filling").unlink()
    assert call(*command).returncode == 0
    assert_same_run(out, finished)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_what_was_good(
    call: Call, small_folder: Path, tmp_path: Path
) -> None:
    image = small_folder / "red" / "down" / "00.png"
    for name, lr in (("late", 10), ("early", 1e9)):
        out = tmp_path / name
        answer = call(*train_command(small_folder, out, lr=lr, members=1, batch_size=500, epochs=30))
        assert answer.returncode == 2 and "Traceback" not in answer.stderr
        *epochs, last = answer.stderr.splitlines()
        place = "the loss became NaN or infinite at epoch (.+), step 1, member 1: lower lr and choose another --out"
        match = re.fullmatch(f"triplee: {place}; the last good state is kept in {re.escape(str(out))}", last)
        assert match and int(match[1]) == len(epochs) + 1 == len(RunFolder(out).read_metrics()) + 1
        assert not (out / "result.json").exists() and (len(epochs) > 0) == (name == "late")
        if name == "late":
            assert read_tensors(out / "state" / "last.safetensors")[1]["epoch"] == len(epochs)
            assert 0 < json.loads(call("predict", out, image, "--format", "json").stdout)[0]["confidence"] <= 1
        else:
            assert_refused(call("predict", out, image), "member-0.safetensors is missing")


# Evaluate and predict


def test_evaluate_scores_the_target_any_domain_and_other_data(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    result = json.loads((finished.path / "result.json").read_text())
    header, row = call("evaluate", finished.path).stdout.splitlines()
    assert header.split("\t") == ["domain", "seen in training", "images", "ensemble", "members alone"]
    members = " ".join(f"{value:.1f}" for value in result["members"])
    assert row.split("\t") == ["blue", "no", "60", f"{result['accuracy']:.2f} %", members]
    _, row = call("evaluate", finished.path, "--domain", "red").stdout.splitlines()
    assert row.startswith("red\tyes\t60\t")
    assert_refused(call("evaluate", finished.path, "--domain", "rad"), "unknown domain 'rad'", "did you mean 'red'?")

    fewer = Path(shutil.copytree(small_folder, tmp_path / "fewer", ignore=shutil.ignore_patterns("across")))
    _, *rows = call("evaluate", finished.path, "--data", fewer).stdout.splitlines()
    assert [row.split("\t")[:3] for row in rows] == [[name, "other data", "40"] for name in ("blue", "green", "red")]
    predictions = json.loads(call("predict", finished.path, fewer / "blue", "--format", "json").stdout)
    right = sum(Path(p["image"]).parent.name == p["class"] for p in predictions)
    assert rows[0].split("\t")[3] == f"{100 * right / 40:.2f} %"
    _, row = call("evaluate", finished.path, "--data", fewer, "--domain", "red").stdout.splitlines()
    assert row.startswith("red\tother data\t40\t")

    (fewer / "red" / "down").rename(fewer / "red" / "spiral")
    answer = call("evaluate", finished.path, "--data", fewer)
    assert_refused(answer, "does not know class 'spiral'", "its classes are across, down, slanting")
    break_image(fewer / "red" / "slanting" / "03.png", "not an image")
    assert_refused(call("evaluate", finished.path, "--data", fewer), "slanting/03.png", "--skip-bad")


def test_predict_says_the_same_in_three_formats(call: Call, small_folder: Path, finished: TrainedRun) -> None:
    images = [small_folder / "red" / "down" / "03.png", small_folder / "green"]
    records = json.loads(call("predict", finished.path, *images, "--format", "json").stdout)
    expected = [images[0], *sorted(images[1].rglob("*.png"))]
    assert [record["image"] for record in records] == list(map(str, expected))
    assert {record["class"] for record in records} <= {"across", "down", "slanting"}
    assert all(1 / 3 < record["confidence"] <= 1 and record["disagreement"] in (0, 0.5, 1) for record in records)
    table = csv.DictReader(io.StringIO(call("predict", finished.path, *images, "--format", "csv").stdout))
    assert list(table) == [{key: str(value) for key, value in record.items()} for record in records]
    header, *lines = call("predict", finished.path, *images).stdout.splitlines()
    assert header == "image\tclass\tconfidence\tdisagreement"
    for line, record in zip(lines, records, strict=True):
        image, label, confidence, disagreement = line.split("\t")
        assert (image, label) == (record["image"], record["class"])
        assert float(confidence[:-1]) == pytest.approx(100 * record["confidence"], abs=0.06)
        assert float(disagreement[:-1]) == 100 * record["disagreement"]


def test_predict_takes_any_name(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a, b.png", "[red]x[|bold].PNG", "ÿ “z”.png", os.fsdecode(b"\xff.png")]
    for name in names:
        shutil.copy(small_folder / "red" / "down" / "00.png", tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    records = json.loads(call("predict", finished.path, tmp_path, "--format", "json").stdout)
    assert {record["image"] for record in records} == {str(tmp_path / name) for name in names}
    table = csv.DictReader(io.StringIO(call("predict", finished.path, tmp_path, "--format", "csv").stdout))
    said = {row["image"] for row in table}
    assert said == {str(tmp_path / name).replace("\udcff", "\\udcff") for name in names}
    monkeypatch.setenv("COLUMNS", "300")
    with terminal() as (stream, close):
        monkeypatch.setattr(sys, "stdout", stream)
        assert call("predict", finished.path, tmp_path).returncode == 0
        shown = close()
    assert all(name in shown for name in said)


def test_predict_names_what_it_cannot_read(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    good = small_folder / "red" / "down" / "00.png"
    folder = tmp_path / "images"
    folder.mkdir()
    assert_refused(call("predict", finished.path, folder), f"{folder} has no images (looked for .bmp, ")
    assert_refused(call("predict", finished.path, folder / "x.png"), f"{folder / 'x.png'} does not exist")
    assert_refused(call("predict", tmp_path / "run", good), f"{tmp_path / 'run'} is not a run folder")
    assert_refused(call("predict", folder, good), f"{folder} is not a run folder: it has no config.yaml")
    assert_refused(call("evaluate", folder), f"{folder} is not a run folder: it has no config.yaml")
    for number, (kind, reason) in enumerate(BAD_IMAGES.items()):
        bad = folder / f"{number}.png"
        shutil.copy(good, bad)
        break_image(bad, kind)
        if kind != "link to nowhere":
            assert_refused(call("predict", finished.path, good, bad), str(bad), reason, "--skip-bad")
            answer = call("predict", finished.path, good, bad, "--skip-bad", "--format", "csv")
            assert answer.returncode == 0 and len(answer.stdout.splitlines()) == 2
            assert re.fullmatch(f"triplee: skipped cannot read image {re.escape(str(bad))}: .+\n", answer.stderr)
    assert_refused(call("predict", finished.path, __file__), "not an image")


# Demo


def test_the_demo_stops_on_ctrl_c_and_says_how_to_go_on(tmp_path: Path, digits: Pool) -> None:
    out = tmp_path / "demo"
    with started("demo", "--epochs", "2", "--out", out) as process:
        while not list(out.glob("*/events/*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "triplee: stopped and saved; go on with the same command"


def test_the_demo_trains_both_draws_a_picture_and_takes_up_what_it_left(
    call: Call, tmp_path: Path, digits: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = slice(None, None, 40)  # all 12,800 images take a minute
    thin = dataclasses.replace(
        digits,
        images_NCHW=digits.images_NCHW[few],
        labels_N=digits.labels_N[few],
        domains_N=digits.domains_N[few],
        part_N=digits.part_N[few],
    )
    monkeypatch.setattr("triplee.demo.load_data", lambda data, image_size: thin)
    out = tmp_path / "demo"
    (out / "digits-vanilla-street-1-epochs-seed-0").mkdir(parents=True)  # as left by a very early crash
    command = ["demo", "--epochs", "1", "--target", "street", "--out", out]
    answer = call(*command)
    assert answer.returncode == 0
    _, header, vanilla, method, last = answer.stdout.splitlines()
    assert header.startswith("method\tunseen domain\t")
    accuracies = [float(row.split("\t")[1].removesuffix(" %")) for row in (vanilla, method)]
    assert last.startswith(f"TripleE against Vanilla on “street”: {accuracies[1] - accuracies[0]:+.1f} points.")
    with Image.open(out / "demo.png") as picture:
        assert picture.width > 1000
    again = call(*command)
    assert again.stdout == answer.stdout and again.stderr == ""  # no epoch was trained
    assert_refused(call("demo", "--target", "strait", "--out", out), "unknown target 'strait'", "did you mean 'street'")
