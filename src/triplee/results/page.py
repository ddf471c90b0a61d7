"""The report page: one HTML file that asks nothing of anybody, made of runs (and their data, where it can be had).

Comes in: Records; goes out: the text of the page. What needs images or networks is left out with a line where they are
not there. The look is in page/: a Jinja template, a style sheet and a script, all of which end up inside the page.
"""

import base64
import io
import json
import platform
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from triplee.results.embedding import describe_features
from triplee.results.paper_tables import PaperTable
from triplee.results.pieces import FeatureLook, Looks
from triplee.results.records import Method, Record, describe, group_by_method
from triplee.results.statistics import Estimate, paired_difference
from triplee.results.tables import signed

LARGEST, SMALL = 128, 64  # sides of pictures; small ones are kept to the pixel
OVER = {"batch_size": "batch size b", "replay": "replay count r", "members": "members m"}
MOST_CURVES = 12  # methods in one plot; more cannot be told apart


@dataclass(frozen=True)
class Part:
    """The runs over one set of data: a chapter of the page."""

    data: str
    targets: list[str]
    methods: list[Method]
    looks: Looks = field(default_factory=Looks)

    @property
    def best(self) -> Method:
        """Of the methods with runs for most targets the one with the best average."""
        return max(self.methods, key=lambda method: _rank(method, self.targets))

    @property
    def baseline(self) -> Method | None:
        """What the best is compared with: the first of the paper's baselines that is there."""
        for title in ("Baseline", "Baseline†", "Vanilla"):
            for method in self.methods:
                if method.title.partition(" (")[0] == title and method is not self.best:
                    return method
        return next((method for method in self.methods if method is not self.best), None)


def _rank(method: Method, targets: Sequence[str]) -> tuple[int, float]:
    found = [e.mean for target in targets if (e := method.accuracy(target))]
    return len(found), statistics.fmean(found) if found else 0.0


def make_parts(records: Sequence[Record]) -> list[Part]:
    """A part for each set of data, targets in the order of the data."""
    by_data: dict[tuple[str, str], list[Record]] = {}
    for record in records:  # what they are says more than what they are called
        by_data.setdefault((record.data, record.config["data_fingerprint"]), []).append(record)
    parts = []
    names = [data for data, _ in by_data]
    for (data, _), own in by_data.items():
        if names.count(data) > 1:  # at another size, or changed since
            data = f"{data}, {own[0].recipe.image_size} px, {own[0].config['data_fingerprint'][:6]}"
        order = own[0].config["domains"]
        targets = sorted({record.target for record in own}, key=lambda name: order.index(name) if name in order else -1)
        parts.append(Part(data, targets, group_by_method(own)))
    return parts


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
    with figures.house_style():
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
    methods, targets = part.methods, part.targets
    shown = methods[:MOST_CURVES]
    plots = [
        ("Accuracy by held-out domain", figures.draw_bars(shown, targets), "Bars: " + _in_words(part)),
    ]
    if any(record.rows for method in shown for record in method.records):
        words = "Curves of accuracy by epoch, a plot for each target"
        plots.append(("Accuracy by epoch", figures.draw_curves(shown, targets), words))
        words = "Curves of the two training losses by epoch"
        plots.append(("Losses by epoch", figures.draw_losses(shown, targets), words))
    plots += [
        (f"Accuracy over {words}", figures.draw_over(words, series, targets), f"Average accuracy over {words}")
        for key, words in OVER.items()
        if (series := _series(methods, key))
    ]
    return {
        "data": part.data,
        "summary": _summary(part),
        "table": _accuracy_table(part),
        "plots": [
            {"title": title, "svg": figures.to_svg(figure, f"{part.data}. {words}")} for title, figure, words in plots
        ],
        "hidden": max(0, len(methods) - MOST_CURVES),
        "runs": [_run_row(method, record) for method in methods for record in method.records],
        "methods": [method.title for method in methods],
        "best": part.best.title,
        "targets": targets,
        "costs": [_cost_row(method) for method in methods],
        "calibration": [row for method in methods if (row := _calibration_row(method))],
        "looks": part.looks,
        "maps": [
            _map(part, look, places)
            for look, places in zip(part.looks.features, part.looks.maps, strict=True)
            if places
        ],
        "confusions": json.dumps(part.looks.confusions, separators=(",", ":")).replace("</", "<\\/"),
    }


def _map(part: Part, look: FeatureLook, places: Mapping[str, numpy.ndarray]) -> dict[str, str]:
    words = "; ".join(f"{title}: {describe_features(judged)}" for title, judged in look.judged.items())
    caption = f"{look.target}, {len(look.points)} images coloured by class. {words}."
    figure = figures.draw_map(places, look.labels_N, part.methods[0].records[0].config["classes"])
    return {"caption": caption, "svg": figures.to_svg(figure, f"{part.data}, t-SNE: {caption}")}


def _summary(part: Part) -> list[str]:
    """Three sentences: what there is, what is best, and by how much."""
    num_runs = sum(len(method.records) for method in part.methods)
    seeds = {record.seed for method in part.methods for record in method.records}
    what = (
        f"{num_runs} finished {_plural('run', num_runs)} of {len(part.methods)} {_plural('method', len(part.methods))}"
    )
    domains = f"{len(part.targets)} held-out {_plural('domain', len(part.targets))}"
    lines = [f"{what} on {part.data}: {domains}, {len(seeds)} {_plural('seed', len(seeds))}."]
    best, rival = part.best, part.baseline
    average = best.average(part.targets)
    if average is None:
        return [*lines, "No method has a run for every held-out domain with one seed yet."]
    told = _show(average)
    if rival is None or (other := rival.average(part.targets)) is None:
        return [*lines, f"{best.title} reaches {told} on average."]
    if round(average.mean - other.mean, 1):
        lines.append(f"{best.title} is best with {told} on average, against {_show(other)} for {rival.title}.")
    else:
        lines.append(f"{best.title} and {rival.title} are level: {told} and {_show(other)} on average.")
    gains = {t: a.mean - b.mean for t in part.targets if (a := best.accuracy(t)) and (b := rival.accuracy(t))}
    return [*lines, _compare(best.title, {target: round(gain, 1) for target, gain in gains.items()})]


def _compare(title: str, gains: Mapping[str, float]) -> str:
    """Where the best is ahead of its rival, level and behind, by its gain on each domain as far as it is shown."""
    ahead, level = sum(gain > 0 for gain in gains.values()), sum(gain == 0 for gain in gains.values())
    if level == len(gains):
        return f"They are level on {level} of {level} {_plural('domain', level)}."
    least = min(gains, key=lambda target: gains[target])
    text = f"{title} is ahead on {ahead} of {len(gains)} {_plural('domain', len(gains))}"
    text += f" and level on {level}" if level else ""
    if len(gains) == 1:
        text += f", by {signed(gains[least])} points"
    elif gains[least]:
        text += f"; its smallest gain is {signed(gains[least])} points on {least}"
    return f"{text}."


def _in_words(part: Part) -> str:
    return "; ".join(
        f"{method.title} {', '.join(f'{t} {e.mean:.1f}' for t in part.targets if (e := method.accuracy(t)))}"
        for method in part.methods
    )


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _show(found: Estimate) -> str:
    error = found.standard_error
    return f"{found.mean:.1f}" + (f" ± {error:.1f}" if error is not None else "") + " %"


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
                "text": _show(e).removesuffix(" %") if e else "…",
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


def _series(methods: Sequence[Method], key: str) -> dict[str, list[tuple[float, Method]]]:
    """Methods that differ in one key alone, in series of two and more."""
    alike: dict[str, list[tuple[float, Method]]] = {}
    for method in methods:
        told = method.records[0].told
        others = {name: value for name, value in told.items() if name != key}
        alike.setdefault(json.dumps(others), []).append((float(told[key]), method))
    named = {}
    for points in alike.values():
        if len({value for value, _ in points}) > 1:
            title = points[0][1].title.replace(f"{key}=", "from ")  # what tells the first from all others
            named[title] = sorted(points, key=lambda point: point[0])
    return named


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
