"""Several runs in one stack: each as if it were alone, saved so that a kill at any moment costs no more than time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from observing import Silent, StopAfter, lasting

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import run_state
from triplee.engine import train as train_module
from triplee.engine.run_state import Run, tell_apart
from triplee.engine.selection import best_epoch
from triplee.engine.train import Interrupted, train_runs
from triplee.runfolder import RunFolder, read_tensors
from triplee.settings import InputError, Recipe, make_recipe

CPU = torch.device("cpu")
RECIPE = make_recipe({"image_size": 16, "epochs": 4, "members": 2, "batch_size": 8, "lr": 0.01})
PLAIN = make_recipe({"augment": "none", "epochs": 3, "members": 1, "replay": 1, "batch_size": 5}, RECIPE)


def make_run(pool: Pool, out: Path, target: str = "blue", recipe: Recipe = RECIPE, seed: int = 0) -> Run:
    return Run(split_pool(pool, target, seed), recipe, out, "plain" if recipe is PLAIN else "mine", seed)


def three_runs(pool: Pool, out: Path) -> list[Run]:
    """They differ in target, seed, recipe, number of members, steps and epochs."""
    return [
        make_run(pool, out / "blue"),
        make_run(pool, out / "red", "red", seed=5),
        make_run(pool, out / "plain", recipe=PLAIN),
    ]


def train(pool: Pool, runs: list[Run], **options: Any) -> list[dict[str, Any]]:
    return train_runs(pool, runs, **{"observer": Silent(), "device": CPU, **options})


def leftovers(out: Path) -> dict[str, bytes]:
    """All files of finished runs but what depends on the clock."""
    files = {path.relative_to(out): path for path in out.rglob("*") if path.is_file()}
    clocked = ("events.out", "result.json")
    return {str(name): path.read_bytes() for name, path in files.items() if not name.name.startswith(clocked)}


@pytest.fixture(scope="module")
def alone(small: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    """What the three runs leave when each has a stack of its own."""
    out = tmp_path_factory.mktemp("alone")
    results = [train(small, [run])[0] for run in three_runs(small, out)]
    return leftovers(out), [lasting(result) for result in results]


Alone = tuple[dict[str, bytes], list[dict[str, Any]]]


def test_a_run_in_company_is_the_run_alone(small: Pool, alone: Alone, tmp_path: Path) -> None:
    observer = Silent()
    results = train(small, three_runs(small, tmp_path), observer=observer)
    assert leftovers(tmp_path) == alone[0]
    assert [lasting(result) for result in results] == alone[1]
    assert observer.steps_done == observer.num_steps and observer.title == "3 runs in one stack"
    assert observer.names[:3] == [
        "mine, hold out blue, seed 0",
        "mine, hold out red, seed 5",
        "plain, hold out blue, seed 0",
    ]
    assert len(observer.rows) == 4 + 4 + 3


def test_runs_stopped_together_go_on_together(small: Pool, alone: Alone, tmp_path: Path) -> None:
    for attempt, times in enumerate((2, 30, 7)):
        with pytest.raises(Interrupted):
            train(small, three_runs(small, tmp_path), observer=StopAfter(times), resume=attempt > 0)
        for run in three_runs(small, tmp_path):
            assert RunFolder(run.out).state_path.exists() or RunFolder(run.out).result_path.exists()
    train(small, three_runs(small, tmp_path), resume=True)
    assert leftovers(tmp_path) == alone[0]


def test_runs_at_different_epochs_go_on_together(small: Pool, alone: Alone, tmp_path: Path) -> None:
    """One finished, one stopped in the middle, one never started."""
    blue, red, plain = three_runs(small, tmp_path)
    with pytest.raises(Interrupted):
        train(small, [blue], observer=StopAfter(20))
    done = train(small, [plain])[0]
    results = train(small, [blue, red, plain], resume=True)
    assert results[2] == done and leftovers(tmp_path) == alone[0]


def test_a_run_that_diverges_leaves_the_others_alone(small: Pool, alone: Alone, tmp_path: Path) -> None:
    runs = three_runs(small, tmp_path)
    bad = make_run(small, tmp_path / "bad", recipe=make_recipe({"lr": 1e9, "supcon_weight": 0.0}, RECIPE))
    with pytest.raises(InputError, match=rf"^1 of 4 runs failed; {bad.out}: the loss became NaN .* member \d") as error:
        train(small, [runs[0], bad, *runs[1:]])
    assert "\n" not in str(error.value) and not (bad.out / "result.json").exists()
    others = {name: content for name, content in leftovers(tmp_path).items() if not name.startswith("bad")}
    assert others == alone[0]


def test_folds_of_several_runs_share_a_stack(small: Pool, tmp_path: Path) -> None:
    recipe = make_recipe({"selection": "leave-one-out", "epochs": 2}, PLAIN)

    def runs(out: Path) -> list[Run]:
        return [make_run(small, out / target, target, recipe) for target in ("blue", "red")]

    for run in runs(tmp_path / "alone"):
        train(small, [run])
    observer = Silent()
    train(small, runs(tmp_path / "together"), observer=observer)
    assert leftovers(tmp_path / "together") == leftovers(tmp_path / "alone")
    assert observer.names[0] == "without blue, hold out green"


def test_a_fold_that_diverges_ends_its_run_alone(small: Pool, alone: Alone, tmp_path: Path) -> None:
    values = {"selection": "leave-one-out", "lr": 1e9, "supcon_weight": 0.0}
    bad = make_run(small, tmp_path / "bad", recipe=make_recipe(values, RECIPE))
    with pytest.raises(InputError, match="1 of 4 runs failed"):
        train(small, [bad, *three_runs(small, tmp_path)])
    others = {name: content for name, content in leftovers(tmp_path).items() if not name.startswith("bad")}
    assert others == alone[0]


def test_saving_waits_until_it_costs_little(small: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first epoch is always saved, later ones only when training has paid for it; the end in any case."""

    class EndsIn(Silent):
        def epoch(self, row: dict[str, Any], name: str) -> None:
            if row["epoch"] == 3:
                raise KeyError

    train(small, [make_run(small, tmp_path / "straight")])
    for share, epoch in ((1e9, 1), (0, 3)):
        monkeypatch.setattr(train_module, "SAVING_SHARE", share)
        out = tmp_path / str(epoch)
        with pytest.raises(KeyError):
            train(small, [make_run(small, out)], observer=EndsIn())
        folder = RunFolder(out)
        assert read_tensors(folder.state_path)[1]["epoch"] == epoch == len(folder.read_metrics())
        train(small, [make_run(small, out)], resume=True)
        assert leftovers(out) == leftovers(tmp_path / "straight")


def test_the_weights_kept_are_those_of_the_best_epoch(
    small: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether written at once or at the end: later steps do not reach them."""
    monkeypatch.setattr(run_state, "best_epoch", lambda rows, selection: min(len(rows), 2))
    for share in (0, 1e9):
        monkeypatch.setattr(train_module, "SAVING_SHARE", share)
        train(small, [make_run(small, tmp_path / str(share))])
    weights = [(tmp_path / share / "best" / "member-0.safetensors") for share in ("0", "1000000000.0")]
    assert weights[0].read_bytes() == weights[1].read_bytes() and read_tensors(weights[0])[1]["epoch"] == 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("before", [True, False])
def test_killed_at_any_write_state_metrics_and_best_fit_together(
    small: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """A kill just before or just after each file takes its place."""
    recipe = make_recipe({"batch_size": 20}, PLAIN)
    train(small, [make_run(small, tmp_path / "straight", recipe=recipe)])
    monkeypatch.setattr(train_module, "SAVING_SHARE", 0)
    replace, countdown = Path.replace, 0

    def replace_or_die(self: Path, target: Path) -> Path:
        nonlocal countdown
        countdown -= 1
        if countdown == 0 and before:
            raise Killed
        replaced = replace(self, target)
        if countdown == 0:
            raise Killed
        return replaced

    for kill in range(1, 100):
        folder, countdown = RunFolder(tmp_path / str(kill)), kill
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", replace_or_die)
                train(small, [make_run(small, folder.path, recipe=recipe)])
            break
        except Killed:
            check_fit(folder)
        train(small, [make_run(small, folder.path, recipe=recipe)], resume=folder.config_path.exists())
        assert leftovers(folder.path) == leftovers(tmp_path / "straight")
    assert 10 < kill < 99


def check_fit(folder: RunFolder) -> None:
    """What is on disk is a run up to the state's epoch, with the weights of its best one."""
    if not folder.state_path.exists():
        return
    metadata = read_tensors(folder.state_path)[1]
    rows = folder.read_metrics()[: metadata["epoch"]]
    assert len(rows) == metadata["epoch"] and best_epoch(rows, "source-val") == metadata["best_epoch"]
    waiting = folder.waiting_path(metadata["best_epoch"], 0)
    kept = waiting if waiting.exists() else folder.member_path(0)
    assert read_tensors(kept)[1]["epoch"] == metadata["best_epoch"]


def test_two_runs_in_one_folder_are_refused(small: Pool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="same folder"):
        train(small, [make_run(small, tmp_path / "run"), make_run(small, tmp_path / "run", "red")])
    assert not (tmp_path / "run").exists()


def test_resuming_runs_that_were_never_started_is_refused(small: Pool, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run to resume"):
        train(small, three_runs(small, tmp_path), resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_by_itself_needs_no_name(small: Pool, tmp_path: Path) -> None:
    assert tell_apart([make_run(small, tmp_path)]) == [""]
    fold = Run(split_pool(small, "red", 0, "blue"), RECIPE, tmp_path)
    assert tell_apart([fold]) == ["hold out red"]
