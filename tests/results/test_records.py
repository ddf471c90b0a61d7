"""Runs as a report reads them: found, named by what tells them apart, averaged."""

import dataclasses
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml

from triplee.results.records import find_records, group_by_method
from triplee.settings import InputError


def test_runs_are_found_at_any_depth_and_grouped_by_method(some_runs: Path) -> None:
    records, notes = find_records([some_runs.parent])
    assert len(records) == 8 and not notes
    vanilla, triplee = group_by_method(records)
    assert (vanilla.title, triplee.title) == ("Vanilla", "TripleE-Fourier")
    assert [(r.target, r.seed) for r in vanilla.records] == [("blue", 0), ("blue", 1), ("red", 0), ("red", 1)]
    by_seed = [statistics.fmean(r.accuracy for r in triplee.records if r.seed == seed) for seed in (0, 1)]
    average = triplee.average(["blue", "red"])
    assert average and average.mean == pytest.approx(statistics.fmean(by_seed)) and average.num_seeds == 2
    assert average.standard_error == pytest.approx(statistics.stdev(by_seed) / 2**0.5)
    accuracy = triplee.accuracy("blue")
    assert accuracy and accuracy.mean == pytest.approx(statistics.fmean(r.accuracy for r in triplee.of("blue")))


def test_a_target_that_is_missing_leaves_no_average(some_runs: Path, tmp_path: Path) -> None:
    for name in ("digits-vanilla-blue-0", "digits-vanilla-blue-1", "digits-vanilla-red-0"):
        shutil.copytree(some_runs / name, tmp_path / name)
    (vanilla,) = group_by_method(find_records([tmp_path])[0])
    average = vanilla.average(["blue", "red"])
    assert average and average.num_seeds == 1  # seed 1 has no run for red
    assert vanilla.average(["blue", "red", "green"]) is None and vanilla.accuracy("green") is None


def test_what_differs_is_named(some_runs: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        shutil.copytree(some_runs / f"digits-vanilla-blue-{seed}", tmp_path / str(seed))
    config = tmp_path / "1" / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.01", "lr: 0.02"))
    titles = [method.title for method in group_by_method(find_records([tmp_path])[0])]
    assert sorted(titles) == ["Vanilla (lr=0.01)", "Vanilla (lr=0.02)"]


def test_what_most_were_told_is_not_named(some_runs: Path, tmp_path: Path) -> None:
    """Of four, each changed in one place, three say in which."""
    for k, change in enumerate(("", "lr: 0.02", "weight_decay: 0.5", "lr: 0.03")):
        shutil.copytree(some_runs / "digits-vanilla-blue-0", tmp_path / str(k))
        config, key = tmp_path / str(k) / "config.yaml", change.partition(":")[0]
        if change:
            config.write_text(re.sub(rf"\b{key}: \S+", change, config.read_text()))
    titles = [method.title for method in group_by_method(find_records([tmp_path])[0])]
    told = ["(lr=0.01)", "(lr=0.01, weight_decay=0.5)", "(lr=0.02)", "(lr=0.03)"]
    assert sorted(titles) == [f"Vanilla {words}" for words in told]


def test_what_cannot_be_shown_is_passed_over_with_a_line(some_runs: Path, tmp_path: Path) -> None:
    names = ("whole", "unfinished", "damaged", "newer")
    for name in names:
        shutil.copytree(some_runs / "digits-vanilla-blue-0", tmp_path / name)
    (tmp_path / "unfinished" / "result.json").unlink()
    (tmp_path / "damaged" / "result.json").write_text(json.dumps({"accuracy": 1}))
    config = tmp_path / "newer" / "config.yaml"
    config.write_text(config.read_text().replace("format: 1", "format: 9"))
    (tmp_path / "empty").mkdir()
    records, notes = find_records([tmp_path])
    assert [record.path.name for record in records] == ["whole"]
    assert len(notes) == 3 and all("\n" not in note for note in notes)
    for name, word in (("unfinished", "not finished"), ("damaged", "damaged"), ("newer", "format 9")):
        assert any(name in note and word in note for note in notes), notes
    shutil.rmtree(tmp_path / "whole")
    with pytest.raises(InputError, match="no finished run"):
        find_records([tmp_path])
    with pytest.raises(InputError, match="no folder"):
        find_records([tmp_path / "nowhere"])


def test_a_run_that_is_there_twice_counts_once(some_runs: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(some_runs / "digits-vanilla-blue-0", tmp_path / name)
    records, notes = find_records([tmp_path])
    assert len(records) == 1 and len(notes) == 1 and "same run" in notes[0]
    (vanilla,) = group_by_method(records)
    assert vanilla.average(["blue", "red"]) is None


def change(file: Path, **values: Any) -> None:
    """Other values in a config, a result or the last line of metrics."""
    if file.suffix == ".yaml":
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **values}))
    else:
        *lines, last = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        file.write_text("\n".join([*lines, json.dumps({**json.loads(last), **values})]) + "\n")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("config.yaml", {"target": "west"}),
        ("config.yaml", {"classes": []}),
        ("config.yaml", {"classes": ["across", "down"]}),  # and one more, say the predictions
        ("config.yaml", {"root": 5}),
        ("config.yaml", {"teacher": 5}),
        ("config.yaml", {"recipe": {"lr": "fast"}}),
        ("result.json", {"members": []}),
        ("result.json", {"members": ["a"]}),
        ("result.json", {"memory_mb": "x"}),
        ("result.json", {"train_images": "x"}),
        ("metrics.jsonl", {"val_accuracy": "x"}),
        ("metrics.jsonl", {"contrast": None}),
        ("metrics.jsonl", {"target_accuracy": None}),
        ("metrics.jsonl", None),
        ("result.json", None),
    ],
)
def test_a_damaged_run_is_left_out_with_a_line_that_names_its_file(
    some_runs: Path, tmp_path: Path, name: str, values: dict[str, Any] | None
) -> None:
    for copy, seed in (("whole", 0), ("hurt", 1)):
        shutil.copytree(some_runs / f"digits-vanilla-blue-{seed}", tmp_path / copy)
    file = tmp_path / "hurt" / name
    if values is None:  # a folder in its place
        file.unlink()
        file.mkdir()
    else:
        change(file, **values)
    records, notes = find_records([tmp_path])
    assert [record.path.name for record in records] == ["whole"]
    assert len(notes) == 1 and f"{file} is damaged" in notes[0] and "\n" not in notes[0]


def fuse(run: Path, teacher: Path, out: Path, **values: Any) -> None:
    """As if `out` had been fused from a teacher; what was trained does not matter here."""
    shutil.copytree(run, out)
    change(out / "config.yaml", recipe_name="digits-vanilla-fused", teacher=str(teacher), **values)


@pytest.mark.parametrize("values", [{}, {"how": "distill"}, {"how": "soup"}])
@pytest.mark.parametrize("num_gone", [0, 1, 2])
def test_what_was_fused_from_different_teachers_are_different_runs(
    some_runs: Path, tmp_path: Path, values: dict[str, str], num_gone: int
) -> None:
    for k, name in enumerate(("digits-vanilla", "digits-triplee-fourier")):
        teacher = (tmp_path / "gone" if k < num_gone else some_runs) / f"{name}-blue-0"
        fuse(some_runs / "digits-vanilla-blue-0", teacher, tmp_path / "fused" / name, **values)
    records, notes = find_records([tmp_path / "fused"])
    methods = group_by_method(records)
    assert not notes and len({method.title for method in methods}) == len(methods) == 2
    assert sum("digits-vanilla-fused (teacher=" in method.title for method in methods) == num_gone


def test_what_was_fused_from_the_same_method_is_one_method(some_runs: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        run = some_runs / f"digits-vanilla-blue-{seed}"
        fuse(run, some_runs / f"digits-triplee-fourier-blue-{seed}", tmp_path / str(seed), how="soup")
    shutil.copytree(some_runs / "digits-triplee-fourier-blue-0", tmp_path / "elsewhere" / "teacher")
    fuse(some_runs / "digits-vanilla-blue-0", tmp_path / "elsewhere" / "teacher", tmp_path / "again", how="soup")
    records, notes = find_records([tmp_path / name for name in ("0", "1", "again")])
    assert len(notes) == 1 and "again is the same run as" in notes[0]
    (method,) = group_by_method(records)
    assert method.title == "digits-vanilla-fused" and [record.seed for record in method.records] == [0, 1]


def test_one_recipe_under_two_names_has_two_titles(some_runs: Path) -> None:
    records, _ = find_records([some_runs])
    first = records[0]
    again = dataclasses.replace(first, config={**first.config, "recipe_name": "my-triplee-fourier"})
    titles = [method.title for method in group_by_method([first, again])]
    assert len(set(titles)) == 2 and any("my-triplee-fourier" in title for title in titles)
