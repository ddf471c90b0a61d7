"""Accuracy by epoch of the runs in some folders: each run's curve, and for each method and epoch the mean over targets.

A best figure can hide a training that comes apart; a curve cannot. Reads run folders; writes a JSON and prints the
means with, for each method, the selected and the last epoch.

    python bench/curves.py sweeps/runs --name pacs-steady    # bench/results/pacs-steady.json
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from measuring import RESULTS
from triplee.engine.selection import best_epoch, fall_of
from triplee.results.records import Record, find_records, group_by_method

SHOWN = (1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)


def mean(records: list[Record], epoch: int, key: str) -> float:
    return statistics.fmean(record.rows[epoch - 1][key] for record in records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--name", help="of a JSON file with all curves")
    options = parser.parse_args()
    records, _ = find_records(options.folders)
    rows: list[dict[str, Any]] = []
    for method in group_by_method(records):
        own, epochs = list(method.records), method.recipe.epochs
        print(f"\n{method.title}, {epochs} epochs, {len(own)} runs")
        for epoch in [epoch for epoch in SHOWN if epoch <= epochs]:
            val, target = (mean(own, epoch, f"{which}_accuracy") for which in ("val", "target"))
            print(f"  epoch {epoch:>3}: source validation {val:.1f}, target {target:.1f}")
        by_epoch = [mean(own, epoch, "val_accuracy") for epoch in range(1, epochs + 1)]
        selected = statistics.fmean(record.accuracy for record in own)
        falls = statistics.fmean(fall_of(record.rows)[1] for record in own)
        print(f"  selected: target {selected:.2f}; last under each run's own best by {falls:.2f},")
        print(f"  under the best of the mean curve by {max(by_epoch) - by_epoch[-1]:.2f} points of source validation")
        rows += [
            {
                "method": method.title,
                "recipe": {**record.recipe.model_dump(), "weights": Path(record.recipe.weights).name},
                "target": record.target,
                "seed": record.seed,
                "selected epoch": best_epoch(record.rows, "source-val"),
                "accuracy": round(record.accuracy, 2),
                "members": [round(one, 2) for one in record.result["members"]],
                "seconds": record.result["seconds"],
                "val by epoch": [round(row["val_accuracy"], 2) for row in record.rows],
                "target by epoch": [round(row["target_accuracy"], 2) for row in record.rows],
            }
            for record in own
        ]
    if options.name:
        lines = ",\n".join(json.dumps(row) for row in rows)
        (RESULTS / f"{options.name}.json").write_text(f'{{"rows": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
