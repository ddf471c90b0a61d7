"""The three formats say the same, mark what is missing, and survive names that mean something to them."""

import csv
import io

import pytest

from triplee.results.tables import FAILED, FORMATS, UNFINISHED, Cell, Report, Table, to_csv, to_latex, to_markdown

ROWS, COLUMNS = ("plain", "50 % | a_b"), ("ink", "oil", "average")


def make_report(**missing: str) -> Report:
    """Two rows over two seeds; a column named in `missing` lacks the second row's figure."""
    values = {
        ("plain", "ink"): {0: 60.0, 1: 62.0},
        ("plain", "oil"): {0: 50.0, 1: 50.0},
        ("plain", "average"): {0: 55.0, 1: 56.0},
        ("50 % | a_b", "ink"): {0: 61.0, 1: 65.0},
        ("50 % | a_b", "oil"): {0: 40.0, 1: 40.0},
        ("50 % | a_b", "average"): {0: 50.5, 1: 52.5},
    }
    cells = {key: Cell(by_seed) for key, by_seed in values.items()}
    cells |= {("50 % | a_b", column): Cell({}, why) for column, why in missing.items()}
    paper = {("plain", "ink"): 58.25, ("50 % | a_b", "oil"): 48.0}
    table = Table("source-val", "Chosen by validation", ROWS, COLUMNS, cells, "plain", paper)
    return Report("two rows", (0, 1), "Table 7", (table,), ("A note.",))


def test_markdown_has_ours_the_papers_the_best_and_the_comparison() -> None:
    lines = to_markdown(make_report()).splitlines()
    assert lines[0] == "# two rows"
    assert "| plain | 61.0 ± 1.0 (58.2, +2.8) | **50.0 ± 0.0** | **55.5 ± 0.5** |" in lines
    assert "| 50 % \\| a_b | **63.0 ± 2.0** | 40.0 ± 0.0 (48.0, −8.0) | 51.5 ± 1.0 |" in lines
    assert "| 50 % \\| a_b | +2.0 [−10.7, +14.7] | −10.0 [−10.0, −10.0] | −4.0 [−10.4, +2.4] |" in lines
    assert "mean ± standard error over seeds 0, 1" in lines[2] and "(Table 7)" in lines[2]
    assert lines[4] == "A note."  # before any figure


@pytest.mark.parametrize("why", [UNFINISHED, FAILED])
def test_what_is_missing_is_marked_and_never_guessed(why: str) -> None:
    report = make_report(oil=why, average=why)
    text = to_markdown(report)
    assert f"| **63.0 ± 2.0** | {why} (48.0) | {why} |" in text
    assert f"| +2.0 [−10.7, +14.7] | {why} | {why} |" in text
    # The best of a column is known once nothing in it is open any more.
    assert ("**50.0 ± 0.0**" in text) == (why == FAILED)
    states = {(line["row"], line["column"]): line for line in csv.DictReader(io.StringIO(to_csv(report)))}
    assert states["50 % | a_b", "oil"]["state"] == {UNFINISHED: "unfinished", FAILED: "failed"}[why]
    assert states["50 % | a_b", "oil"]["mean"] == ""


def test_latex_escapes_names_and_keeps_its_commands() -> None:
    text = to_latex(make_report())
    assert r"50 \% | a\_b & \textbf{63.0 $\pm$ 2.0} & 40.0 $\pm$ 0.0 (48.0, $-$8.0) & 51.5 $\pm$ 1.0 \\" in text
    assert all(line.startswith("%") for line in text.splitlines() if "standard error" in line or "note" in line)
    assert text.count(r"\begin{tabular}{lccc}") == text.count(r"\end{tabular}") == 2


def test_csv_has_every_cell_unrounded() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(make_report()))))
    assert len(lines) == 6
    found = next(line for line in lines if line["row"] != "plain" and line["column"] == "ink")
    assert (float(found["mean"]), float(found["standard_error"]), found["seeds"]) == (63.0, 2.0, "2")
    assert (found["against"], float(found["difference"]), found["paper"]) == ("plain", 2.0, "")
    plain = next(line for line in lines if line["row"] == "plain" and line["column"] == "ink")
    assert (plain["against"], float(plain["ours_less_paper"])) == ("", 2.75)


def test_one_seed_says_that_it_has_no_spread() -> None:
    report = make_report()
    (table,) = report.tables
    single = {key: Cell({0: cell.by_seed[0]}) for key, cell in table.cells.items()}
    one = Report("one", (0,), "", (Table("source-val", "By validation", ROWS, COLUMNS, single, "plain", {}),))
    for write in FORMATS.values():
        assert "±" not in write(one) and "pm" not in write(one)
    assert "interval" in to_markdown(report) and "interval" not in to_markdown(one)
    assert "seed 0 alone, no spread" in to_markdown(one) and "| 50 % \\| a_b | +1.0 |" in to_markdown(one)
