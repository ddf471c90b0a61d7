"""The tables that sweeps leave as CSV, read back for a page: ours, and what the paper prints.

Comes in: folders; goes out: PaperTables. Damaged ones are passed over with a line, other CSV files without.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triplee.results.tables import signed

TABLE_KEYS = ("selection", "row", "column", "state", "mean", "standard_error", "paper")  # of a sweep's CSV


@dataclass(frozen=True)
class PaperTable:
    """A table of a sweep, with the paper's figures: its title, what is in it, columns, and rows of cells."""

    title: str
    about: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def read_tables(paths: Sequence[Path]) -> tuple[list[PaperTable], list[str]]:
    """The tables that sweeps wrote into their folders: ours, and what the paper prints; and lines on damaged ones."""
    tables, notes = [], []
    for file in (file for path in paths for file in sorted(path.glob("*.csv"))):
        try:
            table = _read_table(file)
        except (OSError, ValueError, TypeError, KeyError, csv.Error):  # cut lines lack values, and cut headers keys
            notes.append(f"{file} is damaged: restore it, or run the sweep again")
        else:
            tables += [table] if table else []
    return tables, notes


def _read_table(file: Path) -> PaperTable | None:
    """None of a file that is something else."""
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        reader = csv.DictReader(opened)
        if not set(TABLE_KEYS) <= set(reader.fieldnames or ()):
            return None
        rows = list(reader)
    if any(row[key] is None for row in rows for key in TABLE_KEYS):
        raise ValueError("a line is cut short")
    cells = [row for row in rows if row["selection"] == "source-val"]
    columns = list(dict.fromkeys(row["column"] for row in cells))
    by_row: dict[str, dict[str, str]] = {}
    for row in cells:
        by_row.setdefault(row["row"], {})[row["column"]] = _paper_cell(row)
    shown = [(title, [own.get(column, "") for column in columns]) for title, own in by_row.items()]
    about = "accuracy in percent on the held-out domain, mean ± standard error over seeds."
    if any(row["paper"] for row in cells):
        about += " In brackets the paper's figure, and ours less it."
    return PaperTable(_title_of(file), about, ["method", *columns], shown)


def _title_of(file: Path) -> str:
    """What the sweep called the table, by the Markdown file beside; without one, the file's name."""
    try:
        first = file.with_suffix(".md").read_text(encoding="utf-8").partition("\n")[0]
    except (OSError, ValueError):
        return file.stem
    return first.removeprefix("# ") if first.startswith("# ") else file.stem


def _paper_cell(row: Mapping[str, str]) -> str:
    if row["state"] != "done":
        return row["state"]
    text = f"{float(row['mean']):.1f}" + (f" ± {float(row['standard_error']):.1f}" if row["standard_error"] else "")
    if not row["paper"]:
        return text
    return f"{text} ({float(row['paper']):.1f}, {signed(float(row['ours_less_paper']))})"
