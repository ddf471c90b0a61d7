"""The experiments that have a name are whole and agree with themselves; a user's own is checked the same way."""

from pathlib import Path
from statistics import fmean

import pytest
import yaml
from small_sweep import EXPERIMENT

from triplee.data.catalog import benchmark_names, find_benchmark
from triplee.settings import InputError
from triplee.sweep.experiment import AVERAGE, experiment_names, load_experiment

NAMES = [
    *("benchmarks", "components", "cross-image", "digits", "ensemble", "members", "office-home", "pacs"),
    *("probability", "replay", "singular"),
]


def test_every_table_of_the_paper_has_a_name() -> None:
    assert experiment_names() == NAMES
    labels = {table.label for name in NAMES for table in load_experiment(name)[1].paper}
    assert labels == {f"Table {k}" for k in range(1, 12)}


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_figures_are_typed_as_printed(name: str) -> None:
    """Each average is the mean of its line, as far as printed digits go; each column is a domain or a benchmark."""
    for table in load_experiment(name)[1].paper:
        known = benchmark_names() if len(table.data) > 1 else find_benchmark(table.data[0]).domains
        assert set(table.columns) == {AVERAGE, *(table.data if len(table.data) > 1 else known)}
        for figures in table.figures.values():
            line = dict(zip(table.columns, figures, strict=True))
            average = line.pop(AVERAGE)
            assert average == pytest.approx(fmean(line.values()), abs=0.06)


def test_a_file_of_the_same_form_is_an_experiment(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(EXPERIMENT))
    name, found = load_experiment(str(file))
    assert name == "mine" and found.data == ("digits",) and list(found.rows) == ["one", "two"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"seed": 3}, "unknown key 'seed': did you mean 'seeds'?"),
        ({"rows": {"one": {"metod": "a"}}}, "unknown key 'metod' in rows one: did you mean 'method'?"),
        ({"rows": {"one": {"changes": {}}}}, "unknown key 'changes' in rows one: known: method, backbone, set"),
        ({"baseline": "on"}, "baseline 'on' is no row: did you mean 'one'?"),
        ({"seeds": 0}, "'seeds': should be greater than or equal to 1"),
        ({"rows": {}}, "'rows'"),
        (
            {"paper": [{"label": "T", "data": "digits", "columns": ["a", "b"], "figures": {"one": [1]}}]},
            "T, 'one': 1 figures for 2 columns",
        ),
        (
            {"paper": [{"label": "T", "data": "digits", "colums": [], "figures": {}}]},
            "unknown key 'colums' in paper 0: did you mean 'columns'?",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, changes: dict[str, object], line: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**EXPERIMENT, **changes}))
    with pytest.raises(InputError) as refusal:
        load_experiment(str(file))
    assert line in str(refusal.value) and str(file) in str(refusal.value) and "\n" not in str(refusal.value)


def test_unknown_names_and_unreadable_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown experiment 'component': did you mean 'components'"):
        load_experiment("component")
    with pytest.raises(InputError, match="does not exist"):
        load_experiment(str(tmp_path / "none.yaml"))
    for content in ("- a list\n", "a: [\n"):
        (tmp_path / "odd.yaml").write_text(content)
        with pytest.raises(InputError, match=r"odd\.yaml (cannot be read as YAML|holds no)"):
            load_experiment(str(tmp_path / "odd.yaml"))
