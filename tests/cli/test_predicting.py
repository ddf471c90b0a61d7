"""Predict as a stream: in order however many images, in whole lines whenever it ends, on a folder that fills."""

import csv
import io
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import Call, TrainedRun, assert_refused, started, terminal

from triplee.data.reading import FEW

COLUMNS = ["image", "class", "confidence", "disagreement"]


@pytest.fixture(scope="module")
def many(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many images that processes decode them."""
    folder, originals = tmp_path_factory.mktemp("many"), sorted(small_folder.rglob("*.png"))
    for k in range(FEW + 100):
        os.link(originals[k % len(originals)], folder / f"{k:05}.png")
    return folder


def test_many_images_come_in_order_and_are_predicted_as_if_alone(
    call: Call, finished: TrainedRun, small_folder: Path, many: Path
) -> None:
    records = json.loads(call("predict", finished.path, many, "--format", "json").stdout)
    assert [record["image"] for record in records] == [str(many / f"{k:05}.png") for k in range(FEW + 100)]
    alone = json.loads(call("predict", finished.path, *sorted(small_folder.rglob("*.png")), "--format", "json").stdout)
    for k, record in enumerate(records):
        expected = alone[k % len(alone)]
        assert record["class"] == expected["class"] and record["disagreement"] == expected["disagreement"]
        assert record["confidence"] == pytest.approx(expected["confidence"], abs=1e-3)


def test_a_bad_image_among_many_ends_it_after_whole_lines(
    call: Call, finished: TrainedRun, many: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(many, tmp_path / "images"))
    bad = folder / f"{FEW:05}.png"
    bad.write_text("no image")
    answer = call("predict", finished.path, folder, "--format", "json")
    assert answer.returncode == 2 and answer.stderr.startswith(f"triplee: cannot read image {bad}: not an image")
    assert 0 < len(json.loads(answer.stdout)) <= FEW
    answer = call("predict", finished.path, folder, "--format", "csv", "--skip-bad")
    assert answer.returncode == 0 and len(answer.stdout.splitlines()) == FEW + 100
    assert answer.stderr == f"triplee: skipped: cannot read image {bad}: not an image, or its start is damaged\n"


@pytest.mark.parametrize(
    ("format_", "nothing"),
    [
        ("csv", "image,class,confidence,disagreement\n"),
        ("table", "image\tclass\tconfidence\tdisagreement\n"),
        ("json", "[]\n"),
    ],
)
def test_no_image_at_all_is_a_table_without_lines(
    call: Call, finished: TrainedRun, tmp_path: Path, format_: str, nothing: str
) -> None:
    (tmp_path / "bad.png").write_text("no image")
    answer = call("predict", finished.path, tmp_path / "bad.png", "--skip-bad", "--format", format_)
    assert answer.returncode == 0 and answer.stdout == nothing


def test_a_tab_in_a_name_breaks_no_column(call: Call, finished: TrainedRun, small_folder: Path, tmp_path: Path) -> None:
    odd = shutil.copy(next(small_folder.rglob("*.png")), tmp_path / "a\tb\nc.png")
    _, line = call("predict", finished.path, odd).stdout.splitlines()
    assert line.split("\t")[0] == str(tmp_path / "a\\tb\\nc.png") and line.count("\t") == 3


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_ctrl_c_leaves_whole_lines(finished: TrainedRun, many: Path, format_: str) -> None:
    # The same folder 30 times: long enough to be stopped in.
    with started("predict", finished.path, *[many] * 30, "--format", format_) as process:
        assert process.stdout and process.stderr
        output = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        output += process.stdout.read()
        errors = process.stderr.read()
        process.wait()
    if format_ == "json":
        num_images = len(json.loads(output))
    else:
        header, *rows = output.splitlines()
        assert header.split(",") == COLUMNS and output.endswith("\n")
        assert all(len(row.split(",")) == 4 for row in rows)
        num_images = len(rows)
    assert process.returncode == 130 and errors == f"triplee: stopped after {num_images:,} images\n"
    assert 0 < num_images < 30 * (FEW + 100)


def test_a_bar_on_the_terminal_leaves_the_output_alone(finished: TrainedRun, many: Path) -> None:
    with terminal() as (stream, close):
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        with started("predict", finished.path, many, "--format", "csv", stderr=stream, env=environment) as process:
            assert process.stdout
            output = process.stdout.read()
            process.wait()
        shown = close()
    assert process.returncode == 0 and len(output.splitlines()) == FEW + 101
    assert re.search(rf"predicting [━╸╺ ]+ +\d+/{FEW + 100} ", shown) and "down" not in shown


def test_a_folder_that_fills_is_predicted_as_images_come(
    finished: TrainedRun, small_folder: Path, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    image = small_folder / "red" / "down" / "00.png"
    shutil.copy(image, inbox / "there.png")
    with started("predict", finished.path, "--watch", inbox, "--format", "json") as process:
        assert process.stdout and process.stderr
        records = [json.loads(process.stdout.readline())]
        content = image.read_bytes()
        with (inbox / "slow.png").open("wb") as slow:  # for longer than a file must rest before it is read
            slow.write(content[:-100])
            slow.flush()
            time.sleep(2.5)
            shutil.copy(image, tmp_path / "moved.png")
            (tmp_path / "moved.png").rename(inbox / "moved.png")
            records.append(json.loads(process.stdout.readline()))
            slow.write(content[-100:])
        records.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGINT)
        output, errors = process.stdout.read(), process.stderr.read()
        process.wait()
    assert [Path(record["image"]).name for record in records] == ["there.png", "moved.png", "slow.png"]
    assert len({(record["class"], record["confidence"]) for record in records}) == 1
    assert (process.returncode, output, errors) == (130, "", "triplee: stopped after 3 images\n")


def test_a_watched_folder_must_exist(call: Call, finished: TrainedRun, tmp_path: Path) -> None:
    assert_refused(call("predict", finished.path, "--watch", tmp_path / "no"), "no is not a folder", "--watch")


def test_confidence_is_the_calibrated_one(call: Call, finished: TrainedRun, small_folder: Path, tmp_path: Path) -> None:
    image = small_folder / "green" / "down" / "00.png"
    out = Path(shutil.copytree(finished.path, tmp_path / "run"))
    found = {}
    for temperature in (0.5, 1.0, 3.0):
        result = json.loads((out / "result.json").read_text())
        result["calibration"]["temperature"] = temperature
        (out / "result.json").write_text(json.dumps(result))
        table = csv.DictReader(io.StringIO(call("predict", out, image, "--format", "csv").stdout))
        found[temperature] = float(next(table)["confidence"])
    assert found[0.5] > found[1.0] > found[3.0]
    (out / "result.json").write_text("{}")
    assert_refused(call("predict", out, image), "result.json is damaged", "restore it, or train again")
    (out / "result.json").unlink()  # of a run that is not finished, or of an earlier version
    table = csv.DictReader(io.StringIO(call("predict", out, image, "--format", "csv").stdout))
    assert float(next(table)["confidence"]) == found[1.0]
