"""What the page says: the right baseline, series over one key, odd names, tables of sweeps, collapsed features."""

import base64
import dataclasses
import io
import itertools
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from triplee.cli.choices import parse_changes
from triplee.cli.report import Kind, figure, report
from triplee.data.pool import Pool
from triplee.engine.fuse import OF_EVERY_STUDENT, student_recipe
from triplee.results import figures
from triplee.results.page import _command_for, make_page
from triplee.results.paper_tables import read_tables
from triplee.results.parts import compare, make_parts, summarise
from triplee.results.pieces import (
    MOST_CLASSES,
    SHOWN_CLASSES,
    Shown,
    _shorten,
    _with_most_views,
    count_confusions,
    is_of_pool,
    look_at,
    worst_mistakes,
)
from triplee.results.plots import MOST_METHODS, find_series, make_plots
from triplee.results.records import Method, Record, find_records
from triplee.settings import InputError, make_recipe


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


def test_the_page_names_methods_whose_training_came_apart(record: Record) -> None:
    """From the rows: runs of earlier versions have no such line in their result."""

    def ending(record: Record, val_accuracy: float) -> Record:
        rows = [{**row, "val_accuracy": 90.0} for row in record.rows]
        return dataclasses.replace(record, rows=[*rows[:-1], {**rows[-1], "val_accuracy": val_accuracy}])

    steady, fallen = ending(record, 88.5), ending(like(record, "digits-d", seed=1), 84.0)
    page = make_page(make_parts([steady, fallen]), [], [], ["triplee"], "title")
    line = "Model d: 1 of 1 training came apart. The worst, with blue held out and seed 1, lost 6.0 points"
    assert line in page and page.count("came apart") == 1


def test_runs_over_other_images_are_another_chapter(record: Record) -> None:
    config = {**record.config, "data": "/elsewhere/" + record.data, "data_fingerprint": "another"}
    parts = make_parts([record, dataclasses.replace(record, config=config)])
    assert len({part.data for part in parts}) == 2


def test_lines_over_a_key_are_of_methods_that_differ_in_it_alone(record: Record) -> None:
    methods = [
        Method(f"{ensemble} {members}", (like(record, "digits-triplee-fourier", members=members, ensemble=ensemble),))
        for ensemble in ("parts", "whole")
        for members in (1, 2, 3)
    ]
    series = find_series(methods, "members")
    assert [[value for value, _ in points] for points in series.values()] == [[1, 2, 3], [1, 2, 3]]
    assert list(series) == ["parts 1 / parts 2 / parts 3", "whole 1 / whole 2 / whole 3"]
    assert not find_series(methods, "replay")


def test_any_name_can_be_drawn(record: Record) -> None:
    config = {**record.config, "target": "a$\\b$_^c", "domains": ["a$\\b$_^c", "_hidden"]}
    odd = dataclasses.replace(record, config=config)
    with figures.house_style():
        for figure in (
            figures.draw_bars("\udcff and _x_", [Method("odd", (odd,)).accuracy("a$\\b$_^c")]),
            figures.draw_curves([Method("\udcff and _x_", (odd,))], ["a$\\b$_^c"]),
            figures.draw_map(
                {"$": np.random.default_rng(0).random((9, 2))}, np.arange(9) % 2, ["_first", "b\udcff"], {"$": "_said"}
            ),
        ):
            assert "<svg" in figures.to_svg(figure, "odd & <names>")


def test_damaged_predictions_are_left_out_and_the_page_stands(some_runs: Path, tmp_path: Path) -> None:
    shutil.copytree(some_runs / "digits-vanilla-blue-0", tmp_path / "run")
    predictions = tmp_path / "run" / "predictions.safetensors"
    predictions.write_bytes(predictions.read_bytes()[:50])
    records, _ = find_records([tmp_path])
    (part,) = make_parts(records)
    assert count_confusions(part.methods, part.targets) == {}
    assert "<!doctype html>" in make_page([part], [], [], ["triplee"], "Report")


def test_what_was_said_of_other_images_is_not_shown(record: Record, small: Pool) -> None:
    assert is_of_pool(record, small) and worst_mistakes(record, small)
    assert worst_mistakes(record, dataclasses.replace(small, labels_N=small.labels_N[::-1])) is None
    for key in ("domains", "classes", "data_fingerprint"):
        config = {**record.config, key: record.config[key][1:]}
        assert not is_of_pool(dataclasses.replace(record, config=config), small)


def test_tables_of_a_sweep_are_shown_and_other_files_are_not(tmp_path: Path) -> None:
    header = "selection,row,column,state,seeds,mean,standard_error,paper,ours_less_paper,against,difference,low,high"
    lines = [
        "source-val,TripleE,syn,done,2,90.04,0.26,95.3,-5.26,,,,",
        "source-val,TripleE,svhn,unfinished,0,,,81.8,,,,,",
    ]
    (tmp_path / "t.csv").write_text("\n".join([header, *lines, lines[0].replace("source-val", "oracle")]) + "\n")
    (tmp_path / "predictions.csv").write_text("image,class\na.png,3\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    (table,), _ = read_tables([tmp_path])
    assert table.columns == ["method", "syn", "svhn"]
    assert table.rows == [("TripleE", ["90.0 ± 0.3 (95.3, −5.3)", "unfinished"])]
    assert table.title == "t" and "paper" in table.about
    (tmp_path / "t.md").write_text("# digits on my data\n\nmore\n")
    (tmp_path / "t.csv").write_text("\n".join([header, lines[0].replace("95.3,-5.26", ",")]) + "\n")
    (table,), _ = read_tables([tmp_path])
    assert table.title == "digits on my data" and "paper" not in table.about


HEADER = "selection,row,column,state,seeds,mean,standard_error,paper,ours_less_paper"
LINE = "source-val,TripleE,syn,done,2,90.04,0.26,95.3,-5.26"


def cut(text: str, num_columns: int) -> str:
    return ",".join(text.split(",")[:num_columns])


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}\n{LINE.replace('90.04', 'abc')}\n",
        f"{cut(HEADER, 8)}\n{cut(LINE, 8)}\n",
        *(f"{HEADER}\n{cut(LINE, num_columns)}\n" for num_columns in (3, 6, 8)),
        None,
    ],
)
def test_a_damaged_table_is_left_out_with_a_line(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "whole.csv").write_text(f"{HEADER}\n{LINE}\n")
    if text is None:
        (tmp_path / "hurt.csv").mkdir()
    else:
        (tmp_path / "hurt.csv").write_text(text)
    (table,), notes = read_tables([tmp_path])
    assert table.title.startswith("whole") and len(notes) == 1 and "hurt.csv is damaged" in notes[0]


def test_the_command_for_a_run_trains_beside_it(record: Record) -> None:
    words = _command_for(record)
    assert f"--recipe {record.path / 'config.yaml'} --out {record.path}-again" in words and "--root" not in words


@pytest.mark.parametrize("is_there", [True, False])
def test_the_command_for_a_student_gives_it_its_own_recipe(record: Record, is_there: bool) -> None:
    changes = {"epochs": 2, "lr": 1e-05, "flip": True, "cross_image_probability": 0.5}
    recipe = student_recipe(record.recipe, changes)
    teacher = record.path if is_there else Path("/runs/gone")
    told = {"teacher": str(teacher), "recipe": recipe.model_dump(), "root": "/my data", "skipped_images": 3}
    student = dataclasses.replace(record, config={**record.config, **told})
    words = shlex.split(_command_for(student))
    assert words[:5] == ["triplee", "fuse", str(teacher), "--how", "distill"]
    assert words[-5:] == ["--out", f"{record.path}-again", "--root", "/my data", "--skip-bad"]
    sets = [value for word, value in itertools.pairwise(words) if word == "--set"]
    assert len(sets) == (len(changes) if is_there else len(recipe.model_dump()) - len(OF_EVERY_STUDENT))
    base = record.recipe if is_there else make_recipe({"image_size": record.recipe.image_size})
    assert student_recipe(base, parse_changes(sets)) == recipe


@pytest.mark.parametrize("key", OF_EVERY_STUDENT)
def test_what_every_student_has_cannot_be_set(record: Record, key: str) -> None:
    with pytest.raises(InputError, match=f"--set {key}"):
        student_recipe(record.recipe, {key: getattr(record.recipe, key)})


def test_the_command_for_a_soup_has_nothing_to_set(record: Record) -> None:
    told = {"teacher": "/runs/gone", "how": "soup", "recipe": student_recipe(record.recipe, {}).model_dump()}
    soup = dataclasses.replace(record, config={**record.config, **told})
    assert _command_for(soup) == f"triplee fuse /runs/gone --how soup --out {record.path}-again"


def summary(record: Record, **accuracies: tuple[float, ...]) -> list[str]:
    """Of methods with an accuracy on each domain."""
    records = [
        dataclasses.replace(run, config={**run.config, "target": target})
        for k, (name, own) in enumerate(accuracies.items())
        for target, accuracy in zip(record.config["domains"], own, strict=False)
        for run in [like(record, name, accuracy, lr=k + 1)]
    ]
    return summarise(make_parts(records)[0])[1:]


def test_what_is_level_is_not_called_ahead(record: Record) -> None:
    first = record.config["domains"][0]
    assert summary(record, vanilla=(50, 50, 50), d=(50.04, 50, 50)) == [
        "Model d and Vanilla are level: 50.0 % and 50.0 % on average.",
        "They are level on 3 of 3 domains.",
    ]
    assert summary(record, vanilla=(50,), d=(50,))[1] == "They are level on 1 of 1 domain."
    assert summary(record, vanilla=(50, 50, 50), d=(50, 52, 53)) == [
        "Model d is best with 51.7 % on average, against 50.0 % for Vanilla.",
        "Model d is ahead on 2 of 3 domains and level on 1.",
    ]
    assert summary(record, vanilla=(50, 50, 50), d=(49, 53, 50))[1] == (
        f"Model d is ahead on 1 of 3 domains and level on 1; its smallest gain is −1.0 points on {first}."
    )
    assert summary(record, vanilla=(50, 50, 50), d=(51, 53, 52))[1] == (
        f"Model d is ahead on 3 of 3 domains; its smallest gain is +1.0 points on {first}."
    )
    assert summary(record, vanilla=(50,), d=(53,))[1] == "Model d is ahead on 1 of 1 domain, by +3.0 points."


def test_no_curves_are_no_figure(record: Record, tmp_path: Path) -> None:
    shutil.copytree(record.path, tmp_path / "soup")
    (tmp_path / "soup" / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"no curves in .*soup"):
        figure(Kind.curves, [tmp_path / "soup"], tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()
    soup = find_records([tmp_path])[0][0]
    assert "Accuracy by epoch" not in make_page(make_parts([soup]), [], [], ["triplee"], "Report")
    assert "Accuracy by epoch" in make_page(make_parts([soup, record]), [], [], ["triplee"], "Report")


def test_an_out_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    """Before anything is read: there are no runs here."""
    (tmp_path / "file").touch()
    (tmp_path / "folder.svg").mkdir()
    for out in (tmp_path / "file" / "deep" / "r.svg", tmp_path / "folder.svg"):
        with pytest.raises(InputError, match="cannot write"):
            report([tmp_path], out)
        with pytest.raises(InputError, match="cannot write"):
            figure(Kind.curves, [tmp_path], out)


def test_a_name_keeps_its_hyphen() -> None:
    assert compare("TripleE", {"green-ish": -1.5, "red": 2.0}).endswith(
        "its smallest gain is −1.5 points on green-ish."
    )


def test_a_line_is_named_without_the_key_it_runs_over(record: Record) -> None:
    some = [{"members": 1}, {"members": 2}, {"members": 2, "replay": 9}]
    (part,) = make_parts([like(record, "digits-triplee-fourier", batch_size=4, **told) for told in some])
    titles = ["TripleE-Fourier (m=1)", "TripleE-Fourier", "TripleE-Fourier (r=9)"]
    assert [method.title for method in part.methods] == titles
    assert list(find_series(part.methods, "members")) == ["TripleE-Fourier"]
    (part,) = make_parts([like(record, "digits-triplee-fourier", batch_size=4, **told) for told in some[:2]])
    assert [method.title for method in part.methods] == ["TripleE-Fourier (m=1)", "TripleE-Fourier (m=2)"]


def test_the_best_and_its_baseline_are_among_the_drawn(record: Record) -> None:
    """Of many methods, and as many of their names as there are colours for."""
    others = [like(record, "digits-a", 30.0 + 5 * k, lr=k + 1) for k in range(11)]
    many = [like(record, f"own-{k}", 40.0) for k in range(10)]
    (part,) = make_parts([*others, *many])
    chosen = part.choose(MOST_METHODS)
    assert len(chosen) == MOST_METHODS == len({figures.colour(k) for k in range(MOST_METHODS)})
    assert part.best in chosen and part.baseline in chosen
    assert chosen == [method for method in part.methods if method in chosen]
    with figures.house_style(figures.PAGE_INK):
        plots = make_plots(part)
    assert "Shown are 10 of 21 methods" in plots[0].caption and len(plots[0].legend) == MOST_METHODS
    assert part.choose(99) == part.methods


def test_of_many_classes_the_most_mistaken_are_shown() -> None:
    rng = np.random.default_rng(0)
    total_KK = rng.integers(0, 5, (50, 50)) + np.diag(rng.integers(0, 100, 50))
    few = _shorten(total_KK)
    wrong = total_KK.sum(1) - total_KK.diagonal()
    assert len(few["of"]) == SHOWN_CLASSES and min(wrong[few["of"]]) >= sorted(wrong)[-SHOWN_CLASSES]
    assert [sum(row) for row in few["rows"]] == total_KK[few["of"]].sum(1).tolist()
    assert few["rows"][3][5] == total_KK[few["of"][3], few["of"][5]]
    assert few["right"] == [total_KK.trace(), total_KK.sum()]
    small = total_KK[:MOST_CLASSES, :MOST_CLASSES]
    assert _shorten(small)["rows"] == small.tolist()


def test_the_most_frequent_mistakes_are_named() -> None:
    assert _shorten(np.array([[9, 3, 0], [0, 5, 0], [7, 1, 4]]))["frequent"] == [
        [2, 0, 7, 12],
        [0, 1, 3, 12],
        [2, 1, 1, 12],
    ]
    assert _shorten(np.eye(3, dtype=int))["frequent"] == []


def test_views_are_of_a_run_with_the_style_op(record: Record, small: Pool) -> None:
    plain, style = (
        Method(ops, (like(record, "own", augment="esaug", ops=ops, lr=k + 1),))
        for k, ops in enumerate(("fourier", "style"))
    )
    assert [run.recipe.ops for run in _with_most_views([plain, style], plain)] == ["style", "fourier"]
    assert [run.recipe.ops for run in _with_most_views([plain, style], style)] == ["style"]
    assert [run.recipe.ops for run in _with_most_views([plain], plain)] == ["fourier"]
    looks = look_at([plain, style], [], small, [plain], torch.device("cpu"))  # the folder has no stylizer
    assert [row.op for row in looks.views][-1] == "fourier" and any("stylizer" in note for note in looks.notes)


def test_print_is_black_on_white(tmp_path: Path) -> None:
    with figures.house_style():
        figures.save_figure(figures.draw_bars("a", [None]), tmp_path / "a.svg")
    assert figures.PAGE_INK not in (tmp_path / "a.svg").read_text()
    with figures.house_style(figures.PAGE_INK):
        svg = figures.to_svg(figures.draw_bars("a", [None]), "words")
    assert figures.PAGE_INK not in svg and "currentColor" in svg


def test_small_pictures_are_sharp_in_vector_formats(small: Pool, tmp_path: Path) -> None:
    shown = Shown(small.images_NCHW[0], "words")
    with figures.house_style():
        figures.save_figure(figures.draw_pictures([("", [shown])], ["head"], inches=1.0), tmp_path / "p.svg")
    (inside,) = re.findall(r"data:image/png;base64,([^\"]+)", (tmp_path / "p.svg").read_text())
    with Image.open(io.BytesIO(base64.b64decode(inside))) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    step = len(pixels) // 16
    assert step == 16
    centres = pixels[step // 2 :: step, step // 2 :: step]  # an SVG's may be upside down
    assert np.array_equal(np.sort(centres, axis=0), np.sort(shown.image.permute(1, 2, 0), axis=0))


def test_features_without_a_map_are_named_in_the_order_of_the_methods(
    record: Record, small: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = [Method(name, (record,)) for name in "dbca"]
    monkeypatch.setattr("triplee.results.pieces.make_maps", lambda features: [None] * len(features))
    looks = look_at(methods, [record.target], small, methods, torch.device("cpu"))
    assert (
        looks.maps == [{}]
        and [f"by {name}:" in note for name, note in zip("dbca", looks.notes, strict=True)] == [True] * 4
    )
    (part,) = make_parts([record])
    page = make_page([dataclasses.replace(part, looks=looks)], [], [], ["triplee"], "Report")
    assert "nothing to map" in page and "Nearest training images" in page and "t-SNE maps" not in page
