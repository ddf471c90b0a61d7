"""What the verbs say when all is well."""

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from commands import Call, TrainedRun, assert_refused, break_image, copy_of, started, terminal, train_command
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from triplee import __version__
from triplee.data.pool import Pool
from triplee.engine.selection import describe_calibration
from triplee.recipes import DESCRIPTIONS, RECIPES
from triplee.runfolder import RunFolder


def test_help_and_version(call: Call, triplee: Call) -> None:
    answer = triplee("--version")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, f"triplee {__version__}\n", "")
    for verb in ("demo", "train", "evaluate", "predict", "fuse", "export", "recipes"):
        answer = call(verb, "--help")
        assert answer.returncode == 0 and f"Example: triplee {verb}" in answer.stdout and answer.stderr == ""
    answer = call()
    assert answer.returncode == 2 and "Usage: triplee" in answer.stdout and answer.stderr == ""


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


def test_training_says_what_came_of_it(finished: TrainedRun) -> None:
    answer, result = finished.answer, json.loads((finished.path / "result.json").read_text())
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [
        f"{finished.path}: epoch {result['epoch']} by training-domain validation ({result['val_accuracy']:.2f} %)",
        f"target blue: {result['accuracy']:.2f} %  members alone {' '.join(f'{m:.1f}' for m in result['members'])}",
        f"last epoch {result['last_accuracy']:.2f} %  oracle {result['oracle_accuracy']:.2f} %",
        describe_calibration(result),
        "images: 108 to train, 12 to validate, 60 to test",
    ]


def test_training_warns_of_a_training_that_came_apart(
    finished: TrainedRun, call: Call, small_folder: Path, tmp_path: Path
) -> None:
    """A finished run that is resumed says again what came of it."""
    out = copy_of(finished, tmp_path)
    result = json.loads((out / "result.json").read_text())
    line = "the training came apart after epoch 1: at its end source validation is 9.0 points lower"
    (out / "result.json").write_text(json.dumps({**result, "came_apart": line}))
    answer = call(*train_command(small_folder, out), "--resume")
    assert answer.returncode == 0 and f"triplee: warning: {line}; look at metrics.jsonl" in answer.stderr


def test_elsewhere_than_on_a_terminal_progress_is_a_line_per_epoch(finished: TrainedRun) -> None:
    lines = finished.answer.stderr.splitlines()
    assert len(lines) == 4
    rows = RunFolder(finished.path).read_metrics()
    for epoch, (line, row) in enumerate(zip(lines, rows, strict=True), 1):
        title = re.escape(f"digits-triplee-fourier → blue  epoch {epoch}/4  cross-entropy ")
        assert re.fullmatch(title + rf"\d\.\d+  val {row['val_accuracy']:.1f} %  \d+ s left", line)


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
    assert "oracle" in shown.splitlines()[-3] and "images" in shown.splitlines()[-1]


def test_the_events_hold_the_metrics(finished: TrainedRun) -> None:
    events = EventAccumulator(str(finished.path / "events"))
    events.Reload()
    rows = RunFolder(finished.path).read_metrics()
    assert set(events.Tags()["scalars"]) == rows[0].keys() - {"epoch"}
    seen = [(event.step, event.value) for event in events.Scalars("val_accuracy")]
    assert seen == [(row["epoch"], pytest.approx(row["val_accuracy"])) for row in rows]


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
    _, *rows = call("evaluate", finished.path, "--data", small_folder).stdout.splitlines()
    assert [row.split("\t")[:2] for row in rows] == [["blue", "no"], ["green", "yes"], ["red", "yes"]]

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


def test_evaluate_needs_only_the_images_of_the_domain_it_scores(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path
) -> None:
    data, run = Path(shutil.copytree(small_folder, tmp_path / "data")), copy_of(finished, tmp_path)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "data": str(data)}))
    whole = {domain: call("evaluate", run, "--domain", domain).stdout for domain in ("blue", "green")}
    break_image(data / "red" / "down" / "03.png", "truncated")
    for command in (["evaluate", run], ["evaluate", run, "--domain", "blue"]):
        answer = call(*command)
        assert (answer.returncode, answer.stdout) == (0, whole["blue"]) and "red/down/03.png" in answer.stderr
    answer = call("evaluate", run, "--data", data, "--domain", "green")
    assert answer.stdout == whole["green"].replace("yes", "other data")
    for command in (["evaluate", run, "--domain", "red"], ["evaluate", run, "--data", data]):
        assert_refused(call(*command), "red/down/03.png", "(1 bad in all)", "--skip-bad")
    for image in (data / "red").rglob("*.png"):
        break_image(image, "empty")
    assert call("evaluate", run).stdout == whole["blue"]
    assert_refused(call("evaluate", run, "--domain", "red", "--skip-bad"), "domain 'red'", "only bad images")


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


def test_the_demo_trains_both_draws_a_picture_and_takes_up_what_it_left(
    call: Call, tmp_path: Path, digits: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = slice(None, None, 40)  # all 12,800 images take a minute
    thin = dataclasses.replace(
        digits,
        images_NCHW=digits.images_NCHW[few],
        labels_N=digits.labels_N[few],
        domains_N=digits.domains_N[few],
        split_N=digits.split_N[few],
    )
    monkeypatch.setattr("triplee.demo.load_data", lambda data, image_size, target: thin)
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
        assert picture.size == (1430, 704)  # as a README shows it, not as print does
    again = call(*command)
    assert again.stdout == answer.stdout and again.stderr == ""  # no epoch was trained
    refused = call("demo", "--target", "strait", "--out", out)
    assert refused.returncode == 2
    assert refused.stderr == "triplee: unknown target 'strait' in digits: did you mean 'street'?\n"


def test_a_runs_config_runs_it_again_from_anywhere(
    call: Call, small_folder: Path, finished: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(small_folder.parent)
    again = tmp_path / "again"
    recipe = ("--recipe", finished.path / "config.yaml")
    answer = call("train", small_folder.name, "--target", "blue", "--out", again, *recipe)
    assert answer.returncode == 0, answer
    assert (again / "metrics.jsonl").read_bytes() == (finished.path / "metrics.jsonl").read_bytes()
    monkeypatch.chdir(tmp_path)  # the data was named from another folder, and is found all the same
    assert call("evaluate", again).returncode == 0
