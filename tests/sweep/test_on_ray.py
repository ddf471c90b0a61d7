"""Sweeps on a real Ray cluster of several nodes, with nodes and workers lost on the way."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_sweep import Watching, outcomes, small_grid

from triplee.engine.train import Interrupted
from triplee.settings import InputError, make_recipe
from triplee.sweep.grid import Grid
from triplee.sweep.local import LocalEngine
from triplee.sweep.run import Standing, SweepFolder, train_all
from triplee.sweep.work import Group

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

EPOCHS = 8  # a run takes about a second: long enough to lose it half-way


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes of one core each, with stores and worker processes of their own."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def grid(small_folder: Path) -> Grid:
    return small_grid(small_folder, epochs=EPOCHS)


@pytest.fixture(scope="module")
def undisturbed(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What the local engine makes of the same runs."""
    folder = SweepFolder(tmp_path_factory.mktemp("local"))
    train_all(grid.runs, LocalEngine("cpu", 1, folder.logs_path), folder, Watching())
    return outcomes(grid.runs, folder)


def make_engine(cluster: Any, out: Path) -> Any:
    from triplee.sweep.on_ray import RayEngine

    return RayEngine(cluster.address, cpus=1, gpus=1, device=None, out=out)


def test_a_node_lost_half_way_costs_no_result(
    cluster: Any, grid: Grid, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    node, lost_at = cluster.add_node(num_cpus=1), []

    def lose_a_node(standing: Standing) -> None:
        if not lost_at and len(standing.done) >= 4:
            lost_at.append(len(standing.done))
            cluster.remove_node(node, allow_graceful=False)

    folder, observer = SweepFolder(tmp_path), Watching(lose_a_node)
    train_all(grid.runs, make_engine(cluster, tmp_path), folder, observer)
    assert len(grid.runs) == 12 and lost_at and 4 <= lost_at[0] < 12
    assert outcomes(grid.runs, folder) == undisturbed
    assert not observer.standings[-1].failed


def test_cancelling_saves_and_leaves_nothing_behind(
    cluster: Any, grid: Grid, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    folder, runs = SweepFolder(tmp_path), grid.runs[:4]

    def press_ctrl_c(standing: Standing) -> None:
        if standing.done:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train_all(runs, make_engine(cluster, tmp_path), folder, Watching(press_ctrl_c))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert 0 < sum(map(folder.is_done, runs)) < 4
    train_all(runs, make_engine(cluster, tmp_path), folder, Watching())
    assert outcomes(runs, folder) == {run.name: undisturbed[run.name] for run in runs}


def test_a_node_that_does_not_see_the_folder_sends_the_runs_back(
    grid: Grid, undisturbed: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triplee.sweep.on_ray import train_anywhere

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    run = grid.runs[0]
    group = Group(str(tmp_path / "elsewhere" / "runs"), (run,), "cpu", 1)
    answer, files = train_anywhere(group.to_json(), "token")
    assert json.loads(answer)["error"] == "" and not list(tmp_path.glob("triplee-*/*"))
    expected = {name: content for name, content in undisturbed[run.name].items() if name != "result.json"}
    assert {name: files[f"{run.name}/{name}"] for name in expected} == expected
    assert json.loads(files[f"{run.name}/result.json"])["target"] == run.target


def test_what_is_finished_comes_back_from_a_group_that_is_stopped(cluster: Any, grid: Grid, tmp_path: Path) -> None:
    short = grid.runs[0]
    long = replace(short, recipe=make_recipe({"epochs": 2000}, short.recipe))
    engine = make_engine(cluster, tmp_path / "out")
    (tmp_path / "out" / "ray-session").write_text("of another folder")  # as where a node does not see it
    place = f"triplee-*/{short.name}/result.json"
    before = set(Path(tempfile.gettempdir()).glob(place))
    engine.submit(Group(str(tmp_path / "out" / "runs"), (short, long), "cpu", 1))
    deadline = time.monotonic() + 120
    while not (found := set(Path(tempfile.gettempdir()).glob(place)) - before):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    engine.stop()
    folders = {path.name for path in (tmp_path / "out" / "runs").iterdir()}
    assert folders == {short.name} and (tmp_path / "out" / "runs" / short.name / "result.json").exists()
    assert not any(path.exists() for path in found)


def test_no_cluster_and_too_large_a_wish_are_one_line(cluster: Any, tmp_path: Path) -> None:
    from triplee.sweep.on_ray import RayEngine

    with pytest.raises(InputError, match="no node of the Ray cluster has 99 CPU: lower --cpus or --gpus"):
        RayEngine(cluster.address, cpus=99, gpus=1, device=None, out=tmp_path)
    with pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        RayEngine("127.0.0.1:1", cpus=1, gpus=1, device=None, out=tmp_path)
    assert list(tmp_path.iterdir()) == []
