"""What the page says: the right baseline, series over one key, odd names, tables of sweeps, collapsed features."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from triplee.results import figures
from triplee.results.embedding import make_map
from triplee.results.page import _command_for, _series, make_page, make_parts, read_tables
from triplee.results.records import Method, Record, find_records
from triplee.settings import InputError


@pytest.fixture
def record(some_runs: Path) -> Record:
    return find_records([some_runs / "digits-triplee-fourier-blue-0"])[0][0]


def like(record: Record, name: str, accuracy: float = 50.0, seed: int = 0, **recipe: object) -> Record:
    config = {**record.config, "recipe_name": name, "seed": seed, "recipe": {**record.config["recipe"], **recipe}}
    return Record(record.path, config, {**record.result, "accuracy": accuracy}, record.rows)


def test_the_best_is_compared_with_the_papers_own_baseline(record: Record) -> None:
    names = {"digits-vanilla": 40.0, "digits-baseline-jitter": 45.0, "digits-baseline": 50.0, "digits-d": 60.0}
    (part,) = make_parts([like(record, name, accuracy, lr=k + 1) for k, (name, accuracy) in enumerate(names.items())])
    assert [method.title for method in part.methods] == ["Vanilla", "Baseline†", "Baseline", "Model d"]
    assert part.best.title == "Model d" and part.baseline and part.baseline.title == "Baseline"


def test_runs_over_other_images_are_another_chapter(record: Record) -> None:
    config = {**record.config, "data": "/elsewhere/" + record.data, "data_fingerprint": "another"}
    parts = make_parts([record, dataclasses.replace(record, config=config)])
    assert len(parts) == 2


def test_lines_over_a_key_are_of_methods_that_differ_in_it_alone(record: Record) -> None:
    methods = [
        Method(f"{ensemble} {members}", (like(record, "digits-triplee-fourier", members=members, ensemble=ensemble),))
        for ensemble in ("parts", "whole")
        for members in (1, 2, 3)
    ]
    series = _series(methods, "members")
    assert [[value for value, _ in points] for points in series.values()] == [[1, 2, 3], [1, 2, 3]]
    assert not _series(methods, "replay")


def test_any_name_can_be_drawn(record: Record) -> None:
    config = {**record.config, "target": "a$\\b$_^c", "domains": ["a$\\b$_^c", "_hidden"]}
    odd = dataclasses.replace(record, config=config)
    with figures.house_style():
        for figure in (
            figures.draw_bars([Method("\udcff and _x_", (odd,))], ["a$\\b$_^c"]),
            figures.draw_map({"$": np.random.default_rng(0).random((9, 2))}, np.arange(9) % 2, ["_first", "b\udcff"]),
        ):
            assert "<svg" in figures.to_svg(figure, "odd & <names>")


def test_features_that_are_all_alike_have_no_map() -> None:
    for features in (np.zeros((300, 16)), np.ones((300, 16)), np.eye(3)):
        with pytest.raises(InputError, match="nothing to map"):
            make_map(features.astype(np.float32))


def test_damaged_predictions_are_left_out_and_the_page_stands(some_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(some_runs / "digits-vanilla-blue-0", tmp_path / "run")
    predictions = tmp_path / "run" / "predictions.safetensors"
    predictions.write_bytes(predictions.read_bytes()[:50])
    from triplee.results.pieces import count_confusions

    records, _ = find_records([tmp_path])
    (part,) = make_parts(records)
    assert count_confusions(part.methods, part.targets) == {}
    assert "<!doctype html>" in make_page([part], [], [], ["triplee"], "Report")


def test_tables_of_a_sweep_are_shown_and_other_files_are_not(tmp_path: Path) -> None:
    header = "selection,row,column,state,seeds,mean,standard_error,paper,ours_less_paper,against,difference,low,high"
    lines = [
        "source-val,TripleE,syn,done,2,90.04,0.26,95.3,-5.26,,,,",
        "source-val,TripleE,svhn,unfinished,0,,,81.8,,,,,",
    ]
    (tmp_path / "t.csv").write_text("\n".join([header, *lines, lines[0].replace("source-val", "oracle")]) + "\n")
    (tmp_path / "predictions.csv").write_text("image,class\na.png,3\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (table,) = read_tables([tmp_path])
    assert table.columns == ["method", "syn", "svhn"]
    assert table.rows == [("TripleE", ["90.0 ± 0.3 (95.3, −5.3)", "unfinished"])]


def test_the_command_for_a_run_trains_beside_it(record: Record) -> None:
    words = _command_for(record)
    assert f"--recipe {record.path / 'config.yaml'} --out {record.path}-again" in words and "--root" not in words
    student = dataclasses.replace(record, config={**record.config, "teacher": "/runs/teacher"})
    assert _command_for(student).startswith("triplee fuse /runs/teacher --how distill")
