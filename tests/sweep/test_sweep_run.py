"""A sweep on this machine: results, failures that stop nobody, workers that die, and going on where it was stopped."""

import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from small_sweep import EXPERIMENT, SMALL, Watching, outcomes, small_grid

from triplee.data.threads import num_cores
from triplee.engine.train import Interrupted
from triplee.settings import InputError, make_recipe
from triplee.sweep.display import describe, duration
from triplee.sweep.experiment import Experiment
from triplee.sweep.grid import Grid, PlannedRun, plan_grid
from triplee.sweep.local import LocalEngine
from triplee.sweep.report import make_report, write_report
from triplee.sweep.run import Standing, SweepFolder, _Watch, train_all
from triplee.sweep.work import Ending, Group, train_group


@pytest.fixture(scope="module")
def grid(small_folder: Path) -> Grid:
    return small_grid(small_folder)


@pytest.fixture(scope="module")
def trained(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepFolder, Watching]:
    folder, observer = SweepFolder(tmp_path_factory.mktemp("trained")), Watching()
    train_all(grid.runs, LocalEngine("cpu", 1, folder.logs_path), folder, observer)
    return folder, observer


class InThisProcess:
    """An engine that trains groups here, one by one, or does with them what a test says."""

    device, num_threads, num_workers = "cpu", 1, 1

    def __init__(self) -> None:
        self.at_work: list[Group] = []
        self.stopped = False

    def submit(self, group: Group) -> None:
        self.at_work.append(group)

    def wait(self, seconds: float) -> list[tuple[Group, Ending]]:
        group = self.at_work.pop(0)
        return [(group, self.train(group))]

    def train(self, group: Group) -> Ending:
        return train_group(group)

    def stop(self) -> None:
        self.stopped = True


def test_all_runs_end_and_are_counted(grid: Grid, trained: tuple[SweepFolder, Watching]) -> None:
    folder, observer = trained
    last = observer.standings[-1]
    assert len(last.done) == last.num_runs == len(grid.runs) == 12 and not last.failed and not last.epochs
    news = [run for standing in observer.standings for run in standing.news]
    assert sorted(run.name for run in news) == sorted(run.name for run in grid.runs)
    assert all((folder.run_folder(run).read_result()["target"] == run.target) for run in grid.runs)


def test_a_finished_sweep_trains_nothing_and_reports(grid: Grid, trained: tuple[SweepFolder, Watching]) -> None:
    folder, _ = trained
    engine = InThisProcess()
    train_all(grid.runs, engine, folder, Watching())
    assert engine.stopped and not engine.at_work
    report = make_report(grid, folder)
    assert [table.selection for table in report.tables] == ["source-val", "oracle", "last"]
    for run in grid.runs:
        result = folder.run_folder(run).read_result()
        row = "two" if run.recipe.members == 2 else "one"
        cells = [table.cells[row, run.target].by_seed[run.seed] for table in report.tables]
        assert cells == [result["accuracy"], result["oracle_accuracy"], result["last_accuracy"]]
    write_report(report, folder.path / "table")
    assert {"table.md", "table.tex", "table.csv"} <= {path.name for path in folder.path.iterdir()}
    assert "does not say otherwise: `backbone=digit-cnn`, `weights=none`" in (folder.path / "table.md").read_text()
    elsewhere = replace(grid, changes={"weights": "/some/where/resnet.pth", "lr": 0.01})
    assert make_report(elsewhere, folder).notes[0].endswith(": `weights=resnet.pth`, `lr=0.01`.")  # no place


def test_runs_of_another_recipe_or_other_images_are_no_part_of_the_table(
    grid: Grid, trained: tuple[SweepFolder, Watching], tmp_path: Path
) -> None:
    """A default that has changed since, a folder that has: the names of the runs would not tell."""
    folder = SweepFolder(Path(shutil.copytree(trained[0].path, tmp_path / "copy")))
    make_report(grid, folder)
    config = folder.run_folder(grid.runs[3]).config_path
    text = config.read_text()
    config.write_text(text.replace("temperature: 0.07", "temperature: 0.08"))
    with pytest.raises(InputError, match="was trained with another temperature: remove it"):
        make_report(grid, folder)
    config.write_text(re.sub("data_fingerprint: .*", "data_fingerprint: other", text))
    with pytest.raises(InputError, match=f"was trained with other images than {folder.path}/runs/"):
        make_report(grid, folder)
    for key, kind in (("weights_fingerprint", "weights"), ("stylizer_fingerprint", "stylizers")):
        runs = [replace(run, recipe=make_recipe({"ops": "both"}, run.recipe)) for run in grid.runs[6:8]]
        for run, content in zip(runs, ("one", "other"), strict=True):
            shutil.copytree(folder.run_folder(grid.runs[6]).path, folder.run_folder(run).path, dirs_exist_ok=True)
            config = folder.run_folder(run).config_path
            text = re.sub(f"{key}: .*", f"{key}: {content}", config.read_text()).replace("ops: fourier", "ops: both")
            config.write_text(text)
        with pytest.raises(InputError, match=f"was trained with other {kind} than {folder.path}/runs/"):
            folder.check(runs)


def test_a_training_that_came_apart_is_named_under_the_tables(
    grid: Grid, trained: tuple[SweepFolder, Watching], tmp_path: Path
) -> None:
    folder = SweepFolder(tmp_path / "copy")
    shutil.copytree(trained[0].path, folder.path)
    for run in grid.runs:
        own = folder.run_folder(run)
        falls = run.name == grid.runs[0].name
        rows = own.read_metrics()
        own.write_metrics([*rows[:-1], {**rows[-1], "val_accuracy": rows[-2]["val_accuracy"] - 5.0 * falls}])
    (note,) = [note for note in make_report(grid, folder).notes if "came apart" in note]
    assert note.startswith("1 training came apart") and f"{grid.runs[0].name} (after epoch 1)" in note


def test_the_time_left_follows_the_work_that_is_left(
    trained: tuple[SweepFolder, Watching], grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("triplee.sweep.run.time.monotonic", lambda: clock[0])
    folder, runs = SweepFolder(tmp_path), [run for run in grid.runs if run.recipe.members == 1][:3]
    watch = _Watch(runs, folder)
    assert watch.look([]).seconds_left is None  # nothing is known yet
    run = folder.run_folder(runs[0])
    shutil.copytree(trained[0].run_folder(runs[0]).path, run.path)
    run.result_path.unlink()
    run.write_metrics(run.read_metrics()[:1])
    clock[0] += 10  # one of two epochs of one of three runs
    group = Group(str(folder.runs_path), (runs[0],), "cpu", 1)
    assert watch.look([group]).seconds_left == pytest.approx(50)


def test_leave_one_out_runs_have_all_three_selection_methods(small_folder: Path, tmp_path: Path) -> None:
    experiment = Experiment.model_validate({**EXPERIMENT, "seeds": 1, "rows": {"one": {"method": "vanilla"}}})
    changes = {**SMALL, "selection": "leave-one-out"}
    grid = plan_grid("loo", experiment, data=str(small_folder), targets=["blue"], changes=changes)
    folder = SweepFolder(tmp_path)
    train_all(grid.runs, InThisProcess(), folder, Watching())
    report = make_report(grid, folder)
    assert [table.selection for table in report.tables] == ["source-val", "leave-one-out", "oracle", "last"]
    assert report.tables[1].cells["one", "blue"].by_seed[0] == folder.run_folder(grid.runs[0]).read_result()["accuracy"]


def test_what_fails_is_kept_and_the_others_are_unharmed(grid: Grid, tmp_path: Path) -> None:
    """In one group as on a GPU: one run diverges, one cannot be split, ten are fine."""
    wild = replace(grid.runs[0], recipe=make_recipe({"lr": 1e9}, grid.runs[0].recipe))
    lost = replace(grid.runs[1], target="beige")
    runs = [wild, lost, *grid.runs[2:]]
    folder, observer = SweepFolder(tmp_path), Watching()

    class OneGroup(InThisProcess):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: list[int] = []

        def submit(self, group: Group) -> None:
            self.sizes.append(len(group.runs))
            super().submit(group)

    engine = OneGroup()
    engine.device = "cuda"  # so that all go together; they are trained on the CPU all the same
    engine.train = lambda group: train_group(replace(group, device="cpu"))
    train_all(runs, engine, folder, observer)
    failed = observer.standings[-1].failed
    assert failed.keys() == {wild, lost} and all(folder.is_done(run) for run in runs[2:])
    assert "the loss became NaN or infinite" in failed[wild] and "unknown target 'beige'" in failed[lost]
    assert engine.sizes[0] > 1 and engine.sizes.count(1) >= 2
    engine.sizes.clear()
    train_all(runs, engine, folder, Watching())
    assert engine.sizes == []  # until somebody asks
    folder.forget_failure(wild)
    train_all(runs, engine, folder, Watching())
    assert engine.sizes == [1] and folder.failure(wild)
    state = folder.run_folder(wild).state_path
    state.parent.mkdir(exist_ok=True)
    state.write_bytes(b"damaged")
    folder.forget_failure(wild)
    train_all(runs, engine, folder, Watching())
    assert "the loss became NaN or infinite" in str(folder.failure(wild))  # again from the start
    table = make_report(replace(grid, cells={**grid.cells, ("one", "blue", 0): (wild,)}), folder).tables[0]
    assert table.cells["one", "blue"].missing == table.cells["one", "average"].missing == "failed"


def test_a_worker_that_is_killed_is_replaced_and_its_run_goes_on(
    grid: Grid, trained: tuple[SweepFolder, Watching], tmp_path: Path
) -> None:
    folder, killed = SweepFolder(tmp_path), []
    engine = LocalEngine("cpu", 1, folder.logs_path)

    def kill_one(standing: Standing) -> None:
        busy = [worker.process for worker in engine._workers if worker.group and worker.process]
        if not killed and standing.done and busy:
            killed.append(busy[0].pid)
            os.kill(busy[0].pid, signal.SIGKILL)

    train_all(grid.runs, engine, folder, Watching(kill_one))
    assert killed and outcomes(grid.runs, folder) == outcomes(grid.runs, trained[0])


def test_after_an_unforeseen_error_a_new_process_takes_over(grid: Grid, tmp_path: Path) -> None:
    odd = replace(grid.runs[0], target=7)  # type: ignore[arg-type]  # which nobody checks so far inside
    folder, observer = SweepFolder(tmp_path), Watching()
    engine, processes = LocalEngine("cpu", 1000, folder.logs_path), set()  # all cores there are
    observer.act = lambda _: processes.update(w.process.pid for w in engine._workers if w.process)
    train_all([grid.runs[1], odd, grid.runs[2]], engine, folder, observer)
    assert engine.num_workers == 1 and engine.num_threads == num_cores() and len(processes) == 2
    assert observer.standings[-1].failed.keys() == {odd} and len(observer.standings[-1].done) == 2
    assert "Traceback" in next(tmp_path.glob("failed/*.txt")).read_text()


def test_a_run_that_always_crashes_its_worker_counts_as_failed(grid: Grid, tmp_path: Path) -> None:
    folder, tries = SweepFolder(tmp_path), []

    class Crashing(InThisProcess):
        def train(self, group: Group) -> Ending:
            tries.append(group.runs)
            return Ending("its worker process ended with signal 11", kind="crashed")

    train_all(grid.runs[:1], Crashing(), folder, Watching())
    assert len(tries) == 3 and folder.failure(grid.runs[0]) == "its worker process ended with signal 11"


def test_a_disk_that_refuses_stops_the_sweep_and_blames_no_run(grid: Grid, tmp_path: Path) -> None:
    folder, engine = SweepFolder(tmp_path), InThisProcess()
    engine.train = lambda group: Ending("cannot write /x: the disk is full, make room", kind="unwritable")
    with pytest.raises(InputError, match="the disk is full"):
        train_all(grid.runs, engine, folder, Watching())
    assert engine.stopped and not any(map(folder.failure, grid.runs))


def test_ctrl_c_saves_what_is_at_work_and_going_on_gives_the_same(small_folder: Path, tmp_path: Path) -> None:
    grid = small_grid(small_folder, epochs=10, batch_size=2)
    runs: list[PlannedRun] = grid.runs[-2:]
    straight, stopped = SweepFolder(tmp_path / "straight"), SweepFolder(tmp_path / "stopped")
    train_all(runs, LocalEngine("cpu", 1, straight.logs_path), straight, Watching())

    def press_ctrl_c(standing: Standing) -> None:
        if standing.epochs:
            os.kill(os.getpid(), signal.SIGINT)

    engine = LocalEngine("cpu", 1, stopped.logs_path)
    with pytest.raises(Interrupted):
        train_all(runs, engine, stopped, Watching(press_ctrl_c))
    assert all(worker.process is None or worker.process.poll() is not None for worker in engine._workers)
    assert not all(map(stopped.is_done, runs))
    train_all(runs, LocalEngine("cpu", 1, stopped.logs_path), stopped, Watching())
    assert outcomes(runs, stopped) == outcomes(runs, straight)


def test_one_folder_is_for_one_sweep_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(InputError, match="is in use by another sweep: wait for it, or choose another --out")
    with SweepFolder(tmp_path / "out").claim(), refused, SweepFolder(tmp_path / "out").claim():
        pass
    with SweepFolder(tmp_path / "out").claim():
        pass
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file: choose another --out"), SweepFolder(tmp_path / "file").claim():
        pass


def test_how_far_it_is_in_words() -> None:
    run = PlannedRun("digits", "street", 0, make_recipe({}))
    standing = Standing([run], {}, {run: 3}, [], 40, 185.0)
    assert describe(standing) == "1 of 40 runs done, 1 at work, about 3 min left"
    assert [duration(s) for s in (7.2, 240, 9000)] == ["7 s", "4 min", "2.5 h"]
