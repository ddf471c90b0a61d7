"""Which epoch a run keeps: the field's three ways ("Protocol"), told apart by name in every result.

Comes in: the rows of metrics.jsonl; goes out: an epoch, and what a run says of itself in result.json.
"""

from typing import Any

# The recipe's word → what the field calls it, and the figure of a row that it goes by.
SELECTIONS = {
    "source-val": ("training-domain validation", "val_accuracy"),
    "leave-one-out": ("leave-one-domain-out cross-validation", "fold_accuracy"),
    "oracle": ("oracle: the target itself", "target_accuracy"),
}

FALL = 2.0  # points of source validation from the best epoch to the last, above which a training came apart


def best_epoch(rows: list[dict[str, Any]], selection: str) -> int:
    """The epoch with the best figure, the later one on a tie."""
    key = SELECTIONS[selection][1]
    return max(rows, key=lambda row: (row[key], row["epoch"]))["epoch"]


def fall_of(rows: list[dict[str, Any]]) -> tuple[int, float]:
    """The epoch of the best source validation, and by how many points the last epoch is under it."""
    best = best_epoch(rows, "source-val")
    return best, rows[best - 1]["val_accuracy"] - rows[-1]["val_accuracy"]


def describe_fall(rows: list[dict[str, Any]]) -> str | None:
    """A line on a training whose end is clearly worse than its best epoch, which the best figure would hide."""
    best, fall = fall_of(rows)
    if fall <= FALL:
        return None
    return f"the training came apart after epoch {best}: at its end source validation is {fall:.1f} points lower"


def describe_selection(result: dict[str, Any]) -> str:
    """`epoch 7 by training-domain validation (93.10 %)`, from a result.json."""
    title, key = SELECTIONS[result["selection"]]
    figure = result["accuracy"] if key == "target_accuracy" else result[key]
    return f"epoch {result['epoch']} by {title} ({figure:.2f} %)"


def describe_calibration(result: dict[str, Any]) -> str:
    """What confidence is worth, from a result.json; nothing of one from before there was calibration."""
    if "calibration" not in result:
        return "confidence: not calibrated"
    found = result["calibration"]
    val, target = (f"{found[f'{on}_error_before']:.1f} → {found[f'{on}_error']:.1f} %" for on in ("val", "target"))
    return (
        f"confidence: temperature {found['temperature']:.2f}, off by {val} on source validation, {target} on the target"
    )


def make_result(rows: list[dict[str, Any]], selection: str, config: dict[str, Any]) -> dict[str, Any]:
    """What the rows of a finished run amount to."""
    chosen = rows[best_epoch(rows, selection) - 1]
    result = {
        "recipe": config["recipe_name"],
        "data": config["data"],
        "target": config["target"],
        "seed": config["seed"],
        "selection": selection,
        "accuracy": chosen["target_accuracy"],
        "val_accuracy": chosen["val_accuracy"],
        "epoch": chosen["epoch"],
        "members": chosen["target_members"],
        "last_accuracy": rows[-1]["target_accuracy"],
        "oracle_accuracy": max(row["target_accuracy"] for row in rows),
        "came_apart": describe_fall(rows),
    }
    return {**result, "fold_accuracy": chosen["fold_accuracy"]} if "fold_accuracy" in chosen else result
