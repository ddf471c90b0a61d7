"""The field's three ways of choosing an epoch, on whole runs."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from observing import lasting

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.evaluate import evaluate_run
from triplee.engine.loading import load
from triplee.engine.selection import SELECTIONS, best_epoch, describe_fall, describe_selection, make_result
from triplee.engine.train import Interrupted, train_run
from triplee.progress import LineObserver
from triplee.runfolder import RunFolder, read_config
from triplee.settings import InputError, make_recipe

CPU = torch.device("cpu")
RECIPE = make_recipe(
    {"image_size": 16, "epochs": 3, "members": 2, "batch_size": 16, "lr": 0.01, "selection": "leave-one-out"}
)


def run(pool: Pool, out: Path, **options: Any) -> dict[str, Any]:
    options = {"observer": LineObserver(""), "recipe": RECIPE, "seed": 0, "device": CPU, **options}
    recipe = options.pop("recipe")
    return train_run(pool, split_pool(pool, "blue", options["seed"]), recipe, out=out, **options)


@pytest.fixture(scope="module")
def finished(small: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("leave-one-out") / "run"
    return out, run(small, out)


def test_leave_one_out_goes_by_the_mean_over_held_out_sources(finished: tuple[Path, dict[str, Any]]) -> None:
    out, result = finished
    folds = {path.name: RunFolder(path) for path in (out / "folds").iterdir()}
    assert set(folds) == {"red", "green"}
    means = np.mean([[row["target_accuracy"] for row in fold.read_metrics()] for fold in folds.values()], axis=0)
    rows = RunFolder(out).read_metrics()
    assert [row["fold_accuracy"] for row in rows] == means.tolist()
    assert result["epoch"] == 1 + max(range(3), key=lambda epoch: (means[epoch], epoch))
    assert result["fold_accuracy"] == means.max()
    assert result["accuracy"] == rows[result["epoch"] - 1]["target_accuracy"]
    assert result["selection"] == "leave-one-out"
    assert result["seconds"] > sum(fold.read_result()["seconds"] for fold in folds.values()) > 0
    assert "leave-one-domain-out cross-validation" in describe_selection(result)


def test_a_fold_holds_out_a_source_and_never_sees_the_target(
    small: Pool, finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    scores = evaluate_run(load(finished[0] / "folds" / "red", CPU), small, own_data=True, domain="blue")
    assert [score.role for score in scores] == ["no"]
    config = read_config(finished[0] / "folds" / "red")
    assert (config["target"], config["left_out"]) == ("red", "blue")
    split = split_pool(small, "red", 0, left_out="blue")
    blue = small.domains.index("blue")
    for chosen_N in (split.train_N, split.val_N, split.target_N):
        assert len(chosen_N) and blue not in small.domains_N[chosen_N]
    scrambled = small.images_NCHW.clone()
    scrambled[torch.from_numpy(small.domains_N == blue)] = 0
    result = run(dataclasses.replace(small, images_NCHW=scrambled), tmp_path / "run")
    assert result["epoch"] == finished[1]["epoch"] and result["fold_accuracy"] == finished[1]["fold_accuracy"]


def test_leave_one_out_resumes_in_a_fold(small: Pool, finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    class Stopping(LineObserver):
        def epoch(self, row: dict[str, Any], name: str) -> None:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(small, tmp_path / "run", observer=Stopping(""))
    assert not (tmp_path / "run" / "folds" / "red" / "result.json").exists()
    result = run(small, tmp_path / "run", resume=True)
    assert lasting(result) == lasting(finished[1])


def test_two_domains_cannot_be_cross_validated(small: Pool, tmp_path: Path) -> None:
    kept_N = np.flatnonzero(small.domains_N != small.domains.index("red"))
    pool = dataclasses.replace(
        small,
        images_NCHW=small.images_NCHW[kept_N],
        labels_N=small.labels_N[kept_N],
        domains_N=np.array([{"blue": 0, "green": 1}[small.domains[d]] for d in small.domains_N[kept_N]]),
        split_N=small.split_N[kept_N],
        domains=("blue", "green"),
    )
    with pytest.raises(InputError, match="add a third domain"):
        run(pool, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("selection", "epoch"), [("source-val", 3), ("leave-one-out", 1), ("oracle", 2)])
def test_each_way_goes_by_its_own_figure_and_takes_the_later_of_a_tie(selection: str, epoch: int) -> None:
    figures = {"val_accuracy": [90, 80, 90], "fold_accuracy": [70, 60, 50], "target_accuracy": [40, 60, 50]}
    rows = [{"epoch": k + 1, **{key: values[k] for key, values in figures.items()}} for k in range(3)]
    assert best_epoch(rows, selection) == epoch
    assert len({title for title, _ in SELECTIONS.values()}) == 3


def rows_of(*val_accuracies: float) -> list[dict[str, Any]]:
    """Of a run, with nothing but source validation of interest."""
    others = {"target_accuracy": 50.0, "target_members": [50.0]}
    return [{"epoch": k + 1, "val_accuracy": v, **others} for k, v in enumerate(val_accuracies)]


def test_a_training_that_came_apart_says_so() -> None:
    """The best figure alone, 90.1 here, would hide it."""
    line = "the training came apart after epoch 2: at its end source validation is 3.7 points lower"
    assert describe_fall(rows_of(80.0, 90.1, 89.0, 86.4)) == line
    assert describe_fall(rows_of(80.0, 90.1, 88.2)) is None  # within two points
    assert describe_fall(rows_of(90.0, 95.0)) is None
    config = dict.fromkeys(("recipe_name", "data", "target"), "any") | {"seed": 0}
    assert make_result(rows_of(90.1, 86.4), "source-val", config)["came_apart"].startswith("the training came apart")
    assert make_result(rows_of(90.1, 90.4), "source-val", config)["came_apart"] is None
    # Whatever chose the epoch.
    assert make_result(rows_of(90.1, 86.4), "oracle", config)["came_apart"]
