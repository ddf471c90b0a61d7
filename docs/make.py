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

Made by `make docs` from `bench/results/`; `make bench` measures again. Rivals run in turn in one process; figures are
the median, with the middle half of the rounds in brackets. Ratios are taken round by round.
"""

NOTES = {
    "augment": "ESAug on the CPU in plain torch, against one view at a time through Pillow, normalised per view. Where"
    " the ratio is below 1 we lose: with 16 views at once the fixed cost of each op is spread over one view or two, and"
    " at 224² every pass goes through memory that no longer fits the cache.",
    "step": "Three members of TripleE-Fourier on the embedded digits, b = 4, r = 4; a step is one member's. The usual"
    " loop is Pillow views one by one and an eager float32 step in the same process. That the stack is"
    " no slower with augmentation than without is noise: its share was measured by itself, in the last table.",
}


def show(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['median']:g} [{value['low']:g}–{value['high']:g}]"
    return str(value)


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(show(row[column]) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def make_performance() -> None:
    parts = [INTRODUCTION]
    for name, note in NOTES.items():
        result = json.loads((RESULTS / f"{name}.json").read_text())
        machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items() if value)
        parts.append(f"## {name}\n\n{note}\n\n{machine}\n")
        # Rows of one shape make one table.
        while rows := result["rows"]:
            alike = [row for row in rows if list(row) == list(rows[0])]
            result["rows"] = [row for row in rows if row not in alike]
            parts.append(table(alike) + "\n")
    (DOCS / "performance.md").write_text("\n".join(parts))


if __name__ == "__main__":
    make_performance()
    if len(sys.argv) > 1:
        shutil.copy(Path(sys.argv[1]) / "demo.png", DOCS / "demo.png")
