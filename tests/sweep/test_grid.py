"""From experiments to runs: what is planned, in which order, and what is planned once though asked for twice."""

from pathlib import Path

import pytest
from small_sweep import EXPERIMENT, SMALL, small_grid

from triplee.recipes import RECIPES
from triplee.settings import InputError
from triplee.sweep.experiment import AVERAGE, Experiment, load_experiment
from triplee.sweep.grid import Grid, plan_grid
from triplee.sweep.run import group_runs


def plan(name: str, **adapted: object) -> Grid:
    return plan_grid(*load_experiment(name), **adapted)  # type: ignore[arg-type]


def test_the_papers_table_in_the_papers_order() -> None:
    grid = plan("components")
    assert grid.columns == ("syn", "svhn", "mnist_m", "mnist", AVERAGE)
    assert grid.rows[:3] == ("Vanilla", "Baseline†", "Baseline") and grid.rows[-1] == "TripleE"
    assert len(grid.runs) == 10 * 4 * 3 and grid.paper["Model c", "svhn"] == 69.02
    recipes = {run.recipe_name: run.recipe for run in grid.runs}
    assert recipes == {name: RECIPES[name] for name in RECIPES if name in recipes} and len(recipes) == 10


def test_any_experiment_adapts_to_other_data() -> None:
    grid = plan("members", data="digits", num_seeds=1, targets=["street", "printed"], changes={"epochs": 2})
    assert grid.columns == ("printed", "street", AVERAGE) and not grid.paper and not grid.paper_label
    assert [run.recipe.members for run in grid.runs] == [m for m in range(1, 6) for _ in range(2)]
    assert {(run.recipe.epochs, run.seed) for run in grid.runs} == {(2, 0)}


def test_some_targets_have_no_average_of_the_papers_to_compare_with() -> None:
    grid = plan("members", targets=["svhn", "syn"])
    assert grid.columns == ("syn", "svhn", AVERAGE)
    assert grid.paper["m = 2", "svhn"] == 79.75 and ("m = 2", AVERAGE) not in grid.paper
    assert plan("members", targets=["syn"]).columns == ("syn",)


def test_only_rows_that_the_paper_prints_are_compared_with_it() -> None:
    grid = plan("replay", rows=["b = 4 r = 4", "b = 8 r = 8"])
    assert grid.paper_label == "Table 9" and {row for row, _ in grid.paper} == {"b = 4 r = 4"}
    grid = plan("replay", rows=["b = 2 r = 2", "b = 8 r = 8"])
    assert not grid.paper_label and not grid.paper


def test_several_sets_are_columns_over_their_targets() -> None:
    grid = plan("benchmarks")
    assert grid.columns[0] == AVERAGE and grid.columns[1:] == grid.data
    assert [run.target for run in grid.cells["TripleE", "vlcs", 0]] == ["Caltech101", "LabelMe", "SUN09", "VOC2007"]
    assert {run.recipe.backbone for run in grid.runs} == {"resnet50"}
    assert len(grid.cells["ERM", "domainnet", 0]) == 6


def test_a_run_that_two_experiments_ask_for_is_one() -> None:
    common = {run.name for run in plan("components").runs} & {run.name for run in plan("members").runs}
    assert len(common) == 2 * 4 * 3  # m = 1 is Model d, m = 3 is TripleE


def test_names_tell_runs_apart(small_folder: Path, tmp_path: Path) -> None:
    grids = [plan("members", data="digits", changes={"epochs": e}) for e in (1, 2)]
    grids += [plan("replay", data="digits"), small_grid(small_folder)]
    (tmp_path / small_folder.name).symlink_to(small_folder)
    grids.append(small_grid(tmp_path / small_folder.name))
    runs = [run for grid in grids for run in grid.runs]
    assert len({run.name for run in runs}) == len(set(runs)) == sum(len(grid.runs) for grid in grids)


def test_a_run_is_called_after_the_nearest_recipe() -> None:
    called = {(row, run.recipe_name) for (row, _, _), runs in plan("singular").cells.items() for run in runs}
    assert {name for row, name in called if row in ("StandardAug", "TrivialAug")} == {"digits-triplee-fourier"}
    resnet50 = {run.recipe_name for run in plan("pacs").runs if run.recipe.backbone == "resnet50"}
    assert resnet50 == {f"pacs-resnet50-{m}" for m in ("vanilla", "triplee-style", "triplee-fourier")}


def test_rows_that_come_out_the_same_are_one() -> None:
    rows = {name: {"method": "vanilla", **more} for name, more in (("18", {}), ("50", {"backbone": "resnet50"}))}
    experiment = Experiment.model_validate({**EXPERIMENT, "baseline": "50", "rows": rows})
    assert plan_grid("twice", experiment, data="pacs").rows == ("18", "50")
    grid = plan_grid("twice", experiment, data="digits")
    assert grid.rows == ("18",) and grid.baseline == "18" and grid.repeated == {"50": "18"}
    first = Experiment.model_validate({**EXPERIMENT, "baseline": "50", "rows": {"other": {}, **rows}})
    assert plan_grid("twice", first, data="digits").baseline == "18"


def test_a_row_stands_above_what_is_set_for_all(small_folder: Path) -> None:
    grid = small_grid(small_folder, members=4, lr=0.5)
    assert {run.recipe.members for run in grid.runs} == {4, 2} and {run.recipe.lr for run in grid.runs} == {0.5}
    assert all(getattr(run.recipe, key) == SMALL[key] for run in grid.runs for key in ("backbone", "image_size"))


@pytest.mark.parametrize(
    ("adapted", "line"),
    [
        ({"rows": ["m = 9"]}, "unknown row 'm = 9': did you mean 'm = "),
        ({"targets": ["mnist", "svhm"]}, "unknown target 'svhm': did you mean 'svhn'"),
        ({"changes": {"epoch": 3}}, "row 'm = 1': unknown recipe key 'epoch': did you mean 'epochs'"),
        ({"data": "nowhere"}, "is neither a known name nor an existing folder"),
    ],
)
def test_what_cannot_be_planned_is_one_line(adapted: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as refusal:
        plan("members", **adapted)
    assert line in str(refusal.value)
    with pytest.raises(InputError, match="--targets needs one set of data"):
        plan("benchmarks", targets=["photo"])


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(ValueError, match="resnet99"):
        Experiment.model_validate({**EXPERIMENT, "rows": {"one": {"backbone": "resnet99"}}})


def test_an_unknown_method_is_named_with_its_row() -> None:
    experiment = Experiment.model_validate({**EXPERIMENT, "rows": {"one": {"method": "vanila"}}})
    with pytest.raises(InputError, match="row 'one': unknown method 'vanila': did you mean 'vanilla'"):
        plan_grid("wrong", experiment)


def test_groups_on_a_gpu_share_a_pool_and_on_a_cpu_stand_alone() -> None:
    runs = plan("components").runs
    assert group_runs(runs, "cpu", 8) == [(run,) for run in runs]
    groups = group_runs(runs, "cuda", 1)
    assert sorted(run.name for group in groups for run in group) == sorted(run.name for run in runs)
    for group in groups:
        assert len({(r.data, r.recipe.image_size, r.recipe.batch_size * r.recipe.replay) for r in group}) == 1
        is_small = group[0].recipe.batch_size * group[0].recipe.replay <= 128  # else they are no batch
        assert sum(run.recipe.members for run in group) <= (108 if is_small else 36)
    assert max(len(group) for group in groups) >= 36 and len(groups) <= 7
    assert len(group_runs(runs, "cuda", 8)) >= 8


def test_an_adapted_experiment_has_tables_of_its_own() -> None:
    names = {
        plan("members").file_name,
        plan("members", rows=["m = 1"]).file_name,
        plan("members", num_seeds=1).file_name,
    }
    assert len(names) == 3 and "members-digits-dg" in names


def test_a_file_that_is_called_like_a_named_experiment_has_tables_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "members.yaml"
    own.write_text("about: x\ndata: digits-dg\nbaseline: one\nrows: {one: {set: {members: 1}}}\n")
    assert plan(str(own)).file_name.startswith("members-digits-dg-")
    assert plan(str(own.rename(tmp_path / "mine.yaml"))).file_name == "mine-digits-dg"


def test_a_run_is_named_in_the_setting_of_its_data() -> None:
    rows = {row: run.recipe_name for (row, _, _), (run, *_) in plan("components", data="office-home").cells.items()}
    assert rows["Model a"] == "office-home-resnet18-a" and rows["Baseline†"] == "office-home-resnet18-baseline-jitter"
    assert rows["TripleE"] == "office-home-resnet18-triplee-fourier"


def test_a_column_that_is_no_domain_is_refused() -> None:
    table = {"label": "T", "data": "digits", "columns": ["stret", "average"], "figures": {"one": [1.0, 1.0]}}
    experiment = Experiment.model_validate(
        {"about": "x", "data": "digits", "baseline": "one", "rows": {"one": {"method": "vanilla"}}, "paper": [table]}
    )
    with pytest.raises(InputError, match=r"unknown column 'stret'.*'street'"):
        plan_grid("x", experiment)


def test_several_folders_are_columns_by_their_names_where_these_differ(small_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    folders = [tmp_path / "sites", tmp_path / "one" / "cameras", tmp_path / "cameras"]
    for folder in folders:
        folder.symlink_to(small_folder, target_is_directory=True)
    one = {"about": "x", "baseline": "plain", "rows": {"plain": {"method": "vanilla"}}}
    for chosen, columns in (
        (folders[:2], ("sites", "cameras", AVERAGE)),
        (folders[1:], (str(folders[1]), str(folders[2]), AVERAGE)),
    ):
        grid = plan_grid("mine", Experiment.model_validate({**one, "data": list(map(str, chosen))}))
        assert grid.columns == columns
        assert {run.data for run in grid.runs} == set(map(str, chosen)) and len(grid.runs) == 2 * 3 * 3
