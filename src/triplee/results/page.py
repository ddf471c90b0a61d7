"""The report page: one HTML file that asks nothing of anybody, made of runs (and their data, where it can be had).

Comes in: Parts; goes out: the text of the page. What needs images or networks is left out with a line where they are
not there. The look is in page/: a Jinja template, a style sheet and a script, all of which end up inside the page.
"""

import base64
import io
import json
import math
import platform
import shlex
import statistics
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
import numpy
import torch
from PIL import Image
from torch import Tensor

from triplee import __version__
from triplee.engine.fuse import OF_EVERY_STUDENT
from triplee.results import figures
from triplee.results.paper_tables import PaperTable
from triplee.results.parts import Part, show, summarise, tell_falls
from triplee.results.pieces import STRENGTHS, FeatureLook
from triplee.results.plots import make_map_plot, make_plots
from triplee.results.records import Method, Record, describe
from triplee.results.statistics import paired_difference
from triplee.results.tables import signed

LARGEST, SMALL = 128, 64  # sides of pictures; small ones are kept to the pixel


def make_page(
    parts: Sequence[Part], tables: Sequence[PaperTable], notes: Sequence[str], command: Sequence[str], title: str
) -> str:
    """The whole page."""
    folder = files("triplee.results") / "page"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["picture"] = to_data_uri
    with figures.house_style(figures.PAGE_INK):
        chapters = [_chapter(part) for part in parts]
    return environment.get_template("report.html.j2").render(
        title=title,
        chapters=chapters,
        tables=tables,
        notes=notes,
        command=shlex.join(command),
        environment=_environment(parts),
        css=(folder / "report.css").read_text(encoding="utf-8"),
        js=(folder / "report.js").read_text(encoding="utf-8"),
    )


def to_data_uri(image_u8: Tensor) -> str:
    """An image (3,H,W), inside the page."""
    pixels = Image.fromarray(image_u8.permute(1, 2, 0).cpu().numpy())
    kind = "PNG" if max(pixels.size) <= SMALL else "JPEG"
    pixels.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    pixels.save(buffer, kind, quality=80)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _chapter(part: Part) -> dict[str, Any]:
    methods, looks = part.methods, part.looks
    return {
        "data": part.data,
        "summary": summarise(part),
        "falls": [line for method in methods if (line := tell_falls(method))],
        "table": _accuracy_table(part),
        "plots": make_plots(part),
        "runs": [_run_row(method, record) for method in methods for record in method.records],
        "methods": [{"title": method.title, "about": describe(method.records[0])} for method in methods],
        "best": part.best.title,
        "confused": _confused(part),
        "targets": part.targets,
        "costs": [_cost_row(method) for method in methods],
        "calibration": [row for method in methods if (row := _calibration_row(method))],
        "looks": looks,
        "maps": [make_map_plot(part, *both) for both in zip(looks.features, looks.maps, strict=True) if both[1]],
        "judged": _judged_table(looks.features),
        "strengths": STRENGTHS,
        "confusions": json.dumps(looks.confusions, separators=(",", ":")).replace("</", "<\\/"),
    }


def _confused(part: Part) -> list[str]:
    """The methods whose confusion is shown at first: the baseline and the best, if their predictions were kept."""
    known = [method for method in part.methods if method.title in part.looks.confusions.get("counts", ())]
    return [method.title for method in known if method in (part.baseline, part.best)] or [m.title for m in known[:1]]


def _judged_table(looks: Sequence[FeatureLook]) -> dict[str, Any]:
    """How well features keep classes apart: for each target the numbers of each method, and their average."""
    titles = list(dict.fromkeys(title for look in looks for title in look.judged))
    keys = {"neighbours": ("5-NN accuracy (%)", "%.1f"), "silhouette": ("silhouette", "%.3f")}
    columns = [f"{words}, {title}" for words, _ in keys.values() for title in titles]
    rows = []
    found: dict[tuple[str, str], list[float]] = {}
    for look in looks:
        cells = []
        for key, (_, form) in keys.items():
            for title in titles:
                value = look.judged[title][key] if title in look.judged else math.nan
                found.setdefault((key, title), []).append(value)
                cells.append(_number(value, form))
        rows.append({"title": look.target, "cells": cells})
    if len(looks) > 1:
        means = [_number(statistics.fmean(found[key, title]), keys[key][1]) for key in keys for title in titles]
        rows.append({"title": "average", "cells": means})
    return {"columns": columns, "rows": rows}


def _number(value: float, form: str) -> dict[str, Any]:
    is_there = not math.isnan(value)
    return {"text": (form % value).replace("-", "−") if is_there else "…", "sort": value if is_there else -1000}


def _accuracy_table(part: Part) -> dict[str, Any]:
    columns = [*part.targets, *(["average"] if len(part.targets) > 1 else [])]
    found = {
        method.title: [
            *(method.accuracy(target) for target in part.targets),
            *([method.average(part.targets)] if len(part.targets) > 1 else []),
        ]
        for method in part.methods
    }
    best = [max((e.mean for row in found.values() if (e := row[k])), default=None) for k in range(len(columns))]
    rows = []
    for method in part.methods:
        cells = [
            {
                "text": show(e).removesuffix(" %") if e else "…",
                "sort": e.mean if e else -1,
                "best": bool(e) and e.mean == best[k],
            }
            for k, e in enumerate(found[method.title])
        ]
        rows.append(
            {"title": method.title, "about": describe(method.records[0]), "cells": cells, "gain": _gain(part, method)}
        )
    return {"columns": columns, "rows": rows, "rival": part.baseline.title if part.baseline else ""}


def _gain(part: Part, method: Method) -> dict[str, Any]:
    """The paired difference of the average from the baseline's, over the seeds that both have."""
    rival = part.baseline
    if rival is None or method is rival:
        return {"text": "", "sort": 0.0}
    own, other = method.averages(part.targets), rival.averages(part.targets)
    both = own.keys() & other.keys()
    if not both:
        return {"text": "…", "sort": -1000}
    found = paired_difference({seed: own[seed] for seed in both}, {seed: other[seed] for seed in both})
    interval = found.interval()
    between = f" [{signed(interval[0])}, {signed(interval[1])}]" if interval else ""
    return {"text": f"{signed(found.mean)}{between}", "sort": found.mean}


def _run_row(method: Method, record: Record) -> dict[str, Any]:
    result = record.result
    return {
        "method": method.title,
        "target": record.target,
        "seed": record.seed,
        "accuracy": record.accuracy,
        "val": result["val_accuracy"],
        "last": result["last_accuracy"],
        "oracle": result["oracle_accuracy"],
        "alone": statistics.fmean(result["members"]),
        "epoch": result["epoch"],
        "seconds": result["seconds"],
        "folder": record.path.name,
        "again": _command_for(record),
    }


def _command_for(record: Record) -> str:
    """What makes the run again, beside it: it was trained, or fused from its teacher."""
    config = record.config
    if record.how:
        words = ["triplee", "fuse", config["teacher"], "--how", record.how, *_changes(record)]
    else:
        words = ["triplee", "train", config["data"], "--target", record.target, "--seed", str(record.seed)]
        words += ["--recipe", str(record.path / "config.yaml")]
    words += ["--out", str(record.path.with_name(f"{record.path.name}-again"))]
    words += ["--root", config["root"]] if config.get("root") else []
    return shlex.join(words + ["--skip-bad"] * bool(config["skipped_images"]))


def _changes(record: Record) -> list[str]:
    """The `--set` that make a student's recipe of its teacher's: all of them, where that is not known."""
    if record.how != "distill":
        return []
    base = record.teacher_recipe.model_dump() if record.teacher_recipe else {}
    own = {key: value for key, value in record.recipe.model_dump().items() if key not in OF_EVERY_STUDENT}
    changed = {key: value for key, value in own.items() if key not in base or base[key] != value}
    texts = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in changed.items())
    return [word for text in texts for word in ("--set", text)]


def _cost_row(method: Method) -> dict[str, Any]:
    recipe, records = method.recipe, method.records
    whole = recipe.members if recipe.ensemble == "whole" else 1
    images = [record.result.get("train_images") for record in records]
    views = [recipe.epochs * recipe.replay * whole * count for count in images if count]
    memory = [used for record in records if (used := record.result.get("memory_mb"))]
    return {
        "title": method.title,
        "members": recipe.members,
        "epochs": recipe.epochs,
        "seconds": statistics.fmean(record.result["seconds"] for record in records),
        "views": statistics.fmean(views) if views else None,
        "memory": max(memory) if memory else None,
    }


def _calibration_row(method: Method) -> dict[str, Any] | None:
    found = [record.result["calibration"] for record in method.records if record.result.get("calibration")]
    if not found:
        return None
    keys = ("temperature", "val_error_before", "val_error", "target_error_before", "target_error")
    return {"title": method.title, **{key: statistics.fmean(row[key] for row in found) for key in keys}}


def _environment(parts: Sequence[Part]) -> Mapping[str, str]:
    versions = sorted(
        {record.config["version"] for part in parts for method in part.methods for record in method.records}
    )
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "runs made by": f"triplee {', '.join(versions)}",
        "page made by": f"triplee {__version__}",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "NumPy": numpy.__version__,
        "system": platform.platform(terse=True),
        "GPU here": gpu,
    }
