"""Makes what the docs show from what was measured: performance.md from bench/results/, demo.png from a demo.

python docs/make.py [folder of a finished `triplee demo`]
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench" / "results"

INTRODUCTION = """# Performance

Made by `make docs` from `bench/results/`; `make bench` measures the first two again, `bench/prepare.py` and
`bench/big_tree.py` the others. Rivals run in turn in one process; figures are
the median, with the middle half of the rounds in brackets. Ratios are taken round by round.
"""

NOTES = {
    "augment": "ESAug on the CPU in plain torch, against one view at a time through Pillow, normalised per view. Where"
    " the ratio is below 1 we lose: with 16 views at once the fixed cost of each op is spread over one view or two, and"
    " at 224² every pass goes through memory that no longer fits the cache.",
    "step": "Three members of TripleE-Fourier on the embedded digits, b = 4, r = 4; a step is one member's. The usual"
    " loop is Pillow views one by one and an eager float32 step in the same process. That the stack is"
    " no slower with augmentation than without is noise: its share was measured by itself, in the last table.",
    "prepare": "Decoding, against a plain Pillow loop on one thread; `difference` is in grey levels from its pixels."
    " Two threads gain little where images are small, because Pillow holds Python's lock while it decodes; so `prepare`"
    " takes a process per core. Pillow stays the decoder: OpenCV is faster on WebP and on JPEGs of middling size, but"
    " farther from the plain pixels where it shrinks, slower on large JPEGs (it decodes them whole), and 60 MB more to"
    " install; simplejpeg reads JPEG only, at about our speed. Where we lose: against OpenCV, as the table says."
    " The last rows are whole data sets, from files to a store, with hashing, checksums and writing, none of which the"
    " plain loop does.",
    "big_tree": "600,000 files of 48 px, a tree as large as DomainNet's, stored at 32 px. `own` is anonymous memory,"
    " `resident` counts mapped files as well; each step is a process of its own and `begins with` what Python and torch"
    " take. An epoch reads every image once, in random windows, from the store on disk.",
}


def show(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "median" in value:
        return f"{value['median']:g} [{value['low']:g}–{value['high']:g}]"
    return ", ".join(f"{name} {part}" for name, part in value.items())


def spread(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row that measures several rivals, each in several ways, as a row for each of them."""
    rivals = {name: value for name, value in row.items() if isinstance(value, dict) and _is_nested(value)}
    rest = {name: value for name, value in row.items() if name not in rivals}
    return [{**rest, "who": name, **value} for name, value in rivals.items()] or [row]


def _is_nested(value: dict[str, Any]) -> bool:
    return any(isinstance(part, dict) for part in value.values())


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row.get(column, "")) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def make_performance() -> None:
    parts = [INTRODUCTION]
    for name, note in NOTES.items():
        result = json.loads((RESULTS / f"{name}.json").read_text())
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items() if value)
        parts.append(f"## {name}\n\n{note}\n\n{machine}\n")
        # Rows of one shape make one table.
        while rows := result["rows"]:
            alike = [row for row in rows if set(row) >= set(rows[0]) or set(row) <= set(rows[0])]
            result["rows"] = [row for row in rows if row not in alike]
            parts.append(table([part for row in alike for part in spread(row)]) + "\n")
    (DOCS / "performance.md").write_text("\n".join(parts))


if __name__ == "__main__":
    make_performance()
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "demo.png", DOCS / "demo.png")
