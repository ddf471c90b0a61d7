"""Tables of accuracies, ours beside the paper's, as Markdown, LaTeX and CSV.

Comes in: for each selection method a Table: accuracies by seed for each row and column, and what the paper prints.
Goes out: text. Unfinished and failed cells are marked as such, and the averages that need them too.
"""

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from triplee.results.statistics import Estimate, estimate, paired_difference

UNFINISHED, FAILED, NOT_ASKED = "…", "failed", "–"


@dataclass(frozen=True)
class Cell:
    """Accuracies by seed, or why there are none (UNFINISHED, FAILED, NOT_ASKED)."""

    by_seed: Mapping[int, float]
    missing: str = ""


@dataclass(frozen=True)
class Table:
    """One selection method's figures. `paper` is empty where the paper has nothing to compare with."""

    selection: str
    heading: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    baseline: str
    paper: Mapping[tuple[str, str], float]

    def estimate(self, row: str, column: str) -> Estimate | None:
        cell = self.cells[row, column]
        return None if cell.missing else estimate(cell.by_seed)

    def difference(self, row: str, column: str) -> Estimate | None:
        """From the baseline row; none where one of them is not there."""
        cell, baseline = self.cells[row, column], self.cells[self.baseline, column]
        if cell.missing or baseline.missing:
            return None
        return paired_difference(cell.by_seed, baseline.by_seed)

    def is_best(self, row: str, column: str) -> bool:
        """Whether a row has the highest mean of a column in which nothing is open any more."""
        if any(self.cells[other, column].missing == UNFINISHED for other in self.rows):
            return False
        means = {other: e.mean for other in self.rows if (e := self.estimate(other, column))}
        return row in means and means[row] == max(means.values())


@dataclass(frozen=True)
class Report:
    """The tables of a sweep: the first with comparisons, the others of the same runs, their epochs chosen otherwise."""

    title: str
    seeds: tuple[int, ...]
    paper_label: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Style:
    """How a format writes the parts of a report."""

    title: Callable[[str], str]
    heading: Callable[[str], str]
    paragraph: Callable[[str], str]
    table: Callable[[list[list[str]]], str]
    bold: Callable[[str], str]
    plus_minus: str


def _caption(report: Report) -> str:
    seeds = ", ".join(map(str, report.seeds))
    spread = f"mean ± standard error over seeds {seeds}" if len(report.seeds) > 1 else f"seed {seeds} alone, no spread"
    paper = f" In brackets the paper's figure ({report.paper_label}) and ours less it." if report.paper_label else ""
    return f"Accuracy in percent on the held-out domain, {spread}. The best of a column is bold.{paper}"


def _against(report: Report) -> str:
    interval = ", in brackets its 95 % t interval over seeds" if len(report.seeds) > 1 else ""
    return f"By row: same target and seed, mean difference in points{interval}."


def _lay_out(report: Report, style: _Style) -> str:
    first = report.tables[0]
    parts = [style.title(report.title), *map(style.paragraph, (_caption(report), *report.notes))]
    for table in report.tables:
        parts += [style.heading(table.heading), style.table(_accuracies(table, style))]
        if table is first and len(table.rows) > 1:
            parts += [style.heading(f"Against {table.baseline}"), style.paragraph(_against(report))]
            parts.append(style.table(_differences(table)))
    return "\n\n".join(parts) + "\n"


def _accuracies(table: Table, style: _Style) -> list[list[str]]:
    def write(row: str, column: str) -> str:
        found = table.estimate(row, column)
        text = table.cells[row, column].missing
        if found:
            error = found.standard_error
            text = f"{found.mean:.1f}" + (f" {style.plus_minus} {error:.1f}" if error is not None else "")
            text = style.bold(text) if table.is_best(row, column) else text
        paper = table.paper.get((row, column))
        if paper is None:
            return text
        return f"{text} ({paper:.1f}, {signed(found.mean - paper)})" if found else f"{text} ({paper:.1f})"

    return [["", *table.columns], *([row, *(write(row, c) for c in table.columns)] for row in table.rows)]


def _differences(table: Table) -> list[list[str]]:
    def write(row: str, column: str) -> str:
        found = table.difference(row, column)
        if found is None:
            return table.cells[row, column].missing or table.cells[table.baseline, column].missing
        interval = found.interval()
        return signed(found.mean) + (f" [{signed(interval[0])}, {signed(interval[1])}]" if interval else "")

    others = [row for row in table.rows if row != table.baseline]
    return [["", *table.columns], *([row, *(write(row, c) for c in table.columns)] for row in others)]


def signed(points: float) -> str:
    """A difference in points, with a minus that is one."""
    return f"{points:+.1f}".replace("-", "−")


def to_markdown(report: Report) -> str:
    def table(cells: list[list[str]]) -> str:
        header, *rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
        return "\n".join([header, "|" + "---|" * len(cells[0]), *rows])

    return _lay_out(report, _Style("# {}".format, "## {}".format, str, table, "**{}**".format, "±"))


def to_latex(report: Report) -> str:
    """A tabular for each table, for a document that has booktabs; all else as comments."""

    def table(cells: list[list[str]]) -> str:
        header, *rows = cells
        lines = [" & ".join(map(_escape, header))]
        lines += [" & ".join([_escape(title), *(_symbols(cell) for cell in row)]) for title, *row in rows]
        head, *body = [line + r" \\" for line in lines]
        begin = r"\begin{tabular}{l" + "c" * len(header[1:]) + "}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"])

    comment, bold = "% {}".format, r"\textbf{{{}}}".format
    return _lay_out(report, _Style(comment, comment, comment, table, bold, r"$\pm$"))


_SYMBOLS = {"…": r"\dots{}", "−": "$-$", "–": "--", "†": r"$\dagger$", "′": "$'$"}
_SPECIAL = {**{letter: "\\" + letter for letter in "&%#_{}$"}, "\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}


def _symbols(text: str) -> str:
    return "".join(_SYMBOLS.get(letter, letter) for letter in text)


def _escape(text: str) -> str:
    """Anybody's words, in which LaTeX shall find no commands."""
    return "".join(_SPECIAL.get(letter) or _symbols(letter) for letter in text)


def to_csv(report: Report) -> str:
    """A line for each cell and selection method, numbers unrounded; empty where there is none."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    names = "selection row column state seeds mean standard_error paper ours_less_paper against difference low high"
    writer.writerow(names.split())
    for table in report.tables:
        for row in table.rows:
            for column in table.columns:
                writer.writerow([table.selection, row, column, *_csv_values(table, row, column)])
    return buffer.getvalue()


def _csv_values(table: Table, row: str, column: str) -> list[object]:
    cell, found, difference = table.cells[row, column], table.estimate(row, column), table.difference(row, column)
    paper = table.paper.get((row, column))
    state = {"": "done", UNFINISHED: "unfinished", FAILED: "failed", NOT_ASKED: "not asked"}[cell.missing]
    values: list[object] = [state, len(cell.by_seed)]
    values += [found.mean, found.standard_error] if found else [None, None]
    values += [paper, found.mean - paper if found and paper is not None else None]
    if row == table.baseline or difference is None:
        return [*values, None, None, None, None]
    return [*values, table.baseline, difference.mean, *(difference.interval() or (None, None))]


FORMATS: dict[str, Callable[[Report], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
