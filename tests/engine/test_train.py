"""Whole runs: the protocol, the run folder, resuming."""

import dataclasses
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from observing import Silent, StopAfter

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import train as train_module
from triplee.engine.loading import load
from triplee.engine.selection import best_epoch
from triplee.engine.train import Interrupted, train_run
from triplee.runfolder import RunFolder, read_tensors
from triplee.settings import InputError, make_recipe

CPU = torch.device("cpu")
RECIPE = make_recipe({"image_size": 16, "epochs": 3, "members": 2, "lr": 0.01})


def run(pool: Pool, out: Path, target: str = "blue", **options: Any) -> dict[str, Any]:
    options = {"observer": Silent(), "recipe": RECIPE, "device": CPU, **options}
    recipe = options.pop("recipe")
    return train_run(pool, split_pool(pool, target, 0), recipe, out=out, **options)


def weights(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((out / "best").glob("member-*"))]


def test_a_run_leaves_what_the_contract_says(small: Pool, tmp_path: Path) -> None:
    observer = Silent()
    result = run(small, tmp_path / "run", observer=observer, recipe_name="mine")
    on_disk = json.loads((tmp_path / "run" / "result.json").read_text())
    assert on_disk == result
    assert {"recipe", "data", "target", "seed", "accuracy", "val_accuracy", "epoch", "members"} <= set(result)
    assert {"last_accuracy", "oracle_accuracy", "seconds", "version"} <= set(result)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == observer.rows and [row["epoch"] for row in rows] == [1, 2, 3]
    assert observer.steps_done == observer.num_steps > 0
    chosen = rows[result["epoch"] - 1]
    assert chosen["val_accuracy"] == max(row["val_accuracy"] for row in rows)
    assert result["accuracy"] == chosen["target_accuracy"] and result["members"] == chosen["target_members"]
    assert result["last_accuracy"] == rows[-1]["target_accuracy"]
    assert result["oracle_accuracy"] == max(row["target_accuracy"] for row in rows)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert config["recipe"] == RECIPE.model_dump() and config["recipe_name"] == "mine" and config["target"] == "blue"
    assert list((tmp_path / "run" / "events").glob("events.out.tfevents*"))
    assert len(weights(tmp_path / "run")) == 2


def test_the_kept_weights_give_the_reported_accuracy(small: Pool, tmp_path: Path) -> None:
    result = run(small, tmp_path / "run")
    loaded = load(tmp_path / "run", CPU)
    assert loaded.epoch == result["epoch"]
    target_N = split_pool(small, "blue", 0).target_N
    probabilities = loaded.probabilities(small.images_NCHW, target_N)
    right = probabilities.mean(0).argmax(1).numpy() == small.labels_N[target_N]
    assert 100 * right.mean() == pytest.approx(result["accuracy"])
    assert torch.allclose(probabilities.sum(2), torch.ones(2, len(target_N)), atol=1e-5)


def test_the_target_is_never_used(small: Pool, tmp_path: Path) -> None:
    """With the target's labels and pixels scrambled, weights, losses and the selected epoch are the same."""
    rng = np.random.default_rng(0)
    target_N = split_pool(small, "blue", 0).target_N
    images, labels = small.images_NCHW.clone(), small.labels_N.copy()
    images[target_N] = torch.from_numpy(rng.integers(0, 256, images[target_N].shape).astype(np.uint8))
    labels[target_N] = rng.permutation(labels[target_N])
    scrambled = dataclasses.replace(small, images_NCHW=images, labels_N=labels)
    honest, blind = run(small, tmp_path / "honest"), run(scrambled, tmp_path / "blind")
    assert weights(tmp_path / "honest") == weights(tmp_path / "blind")
    assert honest["epoch"] == blind["epoch"] and honest["val_accuracy"] == blind["val_accuracy"]
    assert honest["accuracy"] != blind["accuracy"]
    seen = [RunFolder(tmp_path / name).read_metrics() for name in ("honest", "blind")]
    for one, two in zip(*seen, strict=True):
        assert one["cross_entropy"] == two["cross_entropy"] and one["contrast"] == two["contrast"]


def test_the_later_epoch_wins_a_tie() -> None:
    rows = [{"epoch": e + 1, "val_accuracy": v, "target_accuracy": 50 - e} for e, v in enumerate([80, 90, 90, 70])]
    assert best_epoch(rows, "source-val") == 3
    assert best_epoch(rows, "oracle") == 1


def test_an_interrupt_saves_within_the_epoch_and_resuming_gives_the_same_bytes(small: Pool, tmp_path: Path) -> None:
    run(small, tmp_path / "straight")

    assert threading.current_thread() is threading.main_thread()
    out = tmp_path / "cut"
    for attempt, steps in enumerate((3, 30, 11)):
        with pytest.raises(Interrupted):
            run(small, out, observer=StopAfter(steps), resume=attempt > 0)
    run(small, out, resume=True)
    assert weights(out) == weights(tmp_path / "straight")
    assert (out / "metrics.jsonl").read_bytes() == (tmp_path / "straight" / "metrics.jsonl").read_bytes()


def test_an_interrupt_after_an_epoch_loses_none(small: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its line is written, when a save is not yet due."""
    monkeypatch.setattr(train_module, "SAVING_SHARE", 1e9)

    class StopInEpochTwo(Silent):
        def epoch(self, row: dict[str, Any], name: str) -> None:
            if row["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        run(small, tmp_path / "cut", observer=StopInEpochTwo())
    assert read_tensors(RunFolder(tmp_path / "cut").state_path)[1]["epoch"] == 2


def test_long_epochs_are_saved_on_the_way(small: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(small, tmp_path / "straight")
    monkeypatch.setattr(train_module, "SAVE_EVERY_SECONDS", 0.0)
    run(small, tmp_path / "saved")
    assert weights(tmp_path / "saved") == weights(tmp_path / "straight")


def test_a_finished_run_resumed_is_its_result(small: Pool, tmp_path: Path) -> None:
    result = run(small, tmp_path / "run")
    observer = Silent()
    assert run(small, tmp_path / "run", resume=True, observer=observer) == result
    assert observer.steps_done == 0


@pytest.mark.parametrize("changes", [{"lr": 0.5}, {"members": 3}, {"epochs": 9}])
def test_resuming_with_a_changed_recipe_is_refused(small: Pool, tmp_path: Path, changes: dict[str, Any]) -> None:
    run(small, tmp_path / "run")
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(InputError, match=next(iter(changes))):
        run(small, tmp_path / "run", resume=True, recipe=make_recipe(changes, RECIPE))
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


def test_resuming_with_changed_data_or_seed_is_refused(small: Pool, tmp_path: Path) -> None:
    run(small, tmp_path / "run")
    other = dataclasses.replace(small, fingerprint="other")
    with pytest.raises(InputError, match="data_fingerprint"):
        run(other, tmp_path / "run", resume=True)
    with pytest.raises(InputError, match="seed: 0 → 4"):
        run(small, tmp_path / "run", resume=True, seed=4)
    with pytest.raises(InputError, match="target: blue → red"):
        run(small, tmp_path / "run", resume=True, target="red")


def test_a_folder_that_holds_something_else_is_refused(small: Pool, tmp_path: Path) -> None:
    run(small, tmp_path / "run")
    with pytest.raises(InputError, match="finished run"):
        run(small, tmp_path / "run")
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="not empty"):
        run(small, tmp_path / "papers")
    assert [p.name for p in (tmp_path / "papers").iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="is a file"):
        run(small, tmp_path / "papers" / "thesis.tex")
    with pytest.raises(InputError, match="no run to resume"):
        run(small, tmp_path / "nowhere", resume=True)
    assert not (tmp_path / "nowhere").exists()


def test_more_members_than_images_are_refused(small: Pool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot feed 500 members"):
        run(small, tmp_path / "run", recipe=make_recipe({"members": 500}, RECIPE))
    assert not (tmp_path / "run").exists()


def test_a_bad_learning_rate_stops_with_the_place_and_keeps_the_last_state(small: Pool, tmp_path: Path) -> None:
    recipe = make_recipe({"lr": 1e9, "supcon_weight": 0.0}, RECIPE)
    with pytest.raises(InputError, match=r"NaN or infinite at epoch \d+, step \d+, member \d+") as error:
        run(small, tmp_path / "run", recipe=recipe)
    assert "\n" not in str(error.value)
    assert (tmp_path / "run" / "config.yaml").exists() and not (tmp_path / "run" / "result.json").exists()
