"""Plots of what was measured, for the report and for print: bars by target, curves, accuracy over a recipe key, maps.

Comes in: Methods, or points with labels; goes out: matplotlib figures, and files or SVG text made of them.
"""

import io
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from triplee.results.pieces import Shown
from triplee.results.records import Method
from triplee.runfolder import write_atomically
from triplee.settings import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for most kinds of colour blindness, and on light and dark ground.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f", "#6a51a3", "#b5bd00")
INK = "#123456"  # stands for the colour of text, which a page decides
FORMATS = ("svg", "png", "pdf")
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 9},
    **{
        "axes.axisbelow": True,
        "legend.frameon": False,
        "axes.titlesize": 10,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "svg.hashsalt": "triplee",
    },
}


def house_style() -> AbstractContextManager[None]:
    """Matplotlib as we want it, for as long as the context lasts."""
    import matplotlib as mpl

    return mpl.rc_context(STYLE)  # pyright: ignore[reportArgumentType]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _label(name: str) -> str:
    """Anybody's words as matplotlib shows them: it cannot draw what is no Unicode, and hides names with a first _."""
    shown = name.encode(errors="backslashreplace").decode()
    return f"\u200b{shown}" if shown.startswith("_") else shown


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    return Figure(figsize=(width, height), layout="constrained")


def draw_bars(methods: Sequence[Method], targets: Sequence[str]) -> "Figure":
    """Accuracy by target and method; the thin line is the standard error over seeds."""
    figure = new_figure(max(5.0, 0.9 + 0.28 * len(methods) * (len(targets) + 1)), 3.2)
    axis = figure.subplots()
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        found = [
            *(method.accuracy(target) for target in targets),
            method.average(targets) if len(targets) > 1 else None,
        ]
        places = [(place, e) for place, e in enumerate(found) if e is not None]
        heights, errors = [e.mean for _, e in places], [e.standard_error or 0.0 for _, e in places]
        x = [place + (k - (len(methods) - 1) / 2) * width for place, _ in places]
        axis.bar(
            x,
            heights,
            width * 0.92,
            yerr=errors,
            color=colour(k),
            ecolor=INK,
            label=_label(method.title),
            error_kw={"elinewidth": 1},
        )
    names = [*targets, *(["average"] if len(targets) > 1 else [])]
    axis.set_xticks(range(len(names)), [_label(name) for name in names])
    axis.set_ylim(0, 100)
    axis.set_ylabel("accuracy (%)")
    axis.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=min(4, len(methods)), fontsize=8)
    return figure


def draw_curves(methods: Sequence[Method], targets: Sequence[str]) -> "Figure":
    """Accuracy by epoch on source validation and on the held-out domain, mean over seeds with the range as a band."""
    figure = new_figure(3.1 * max(2, len(targets)), 5.2)
    axes = figure.subplots(2, len(targets), sharex=True, squeeze=False)
    for column, target in enumerate(targets):
        for row, (key, what) in enumerate((("target_accuracy", "held out"), ("val_accuracy", "source validation"))):
            axis: Axes = axes[row][column]
            for k, method in enumerate(methods):
                _band(
                    axis,
                    [[r[key] for r in record.rows] for record in method.of(target) if record.rows],
                    colour(k),
                    _label(method.title),
                )
            axis.set_title(_label(f"{target}, {what}"))
            if row:
                axis.set_xlabel("epoch")
            if not column:
                axis.set_ylabel("accuracy (%)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(methods)), fontsize=8)
    return figure


def draw_losses(methods: Sequence[Method], targets: Sequence[str]) -> "Figure":
    """Cross-entropy and contrast of the training views by epoch, mean over members and seeds."""
    figure = new_figure(7, 2.8)
    axes = figure.subplots(1, 2, sharex=True)
    for axis, key in zip(axes, ("cross_entropy", "contrast"), strict=True):
        for k, method in enumerate(methods):
            records = [record for target in targets for record in method.of(target) if record.rows]
            curves = [[float(np.mean(r[key])) for r in record.rows] for record in records]
            if any(any(curve) for curve in curves):
                _band(axis, curves, colour(k), _label(method.title))
        axis.set(title=key.replace("_", "-"), xlabel="epoch")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, len(methods)), fontsize=8)
    return figure


def _band(axis: "Axes", curves: list[list[float]], its_colour: str, title: str) -> None:
    if not curves:
        return
    shortest = min(map(len, curves))
    values = np.array([curve[:shortest] for curve in curves])
    epochs = np.arange(1, shortest + 1)
    axis.plot(
        epochs, values.mean(0), color=its_colour, linewidth=1.4, label=title, marker="o" if shortest < 3 else None
    )
    axis.locator_params(axis="x", integer=True, min_n_ticks=1)
    if len(curves) > 1:
        axis.fill_between(epochs, values.min(0), values.max(0), color=its_colour, alpha=0.15, linewidth=0)


def draw_over(key: str, series: Mapping[str, Sequence[tuple[float, Method]]], targets: Sequence[str]) -> "Figure":
    """Average accuracy over a recipe key, a line for each of `series`: methods that differ in that key alone."""
    figure = new_figure(5, 3.2)
    axis = figure.subplots()
    for k, (title, points) in enumerate(series.items()):
        known = [(value, e) for value, method in points if (e := method.average(targets))]
        x, means = [value for value, _ in known], [e.mean for _, e in known]
        errors = [e.standard_error or 0.0 for _, e in known]
        axis.errorbar(x, means, errors, color=colour(k), ecolor=colour(k), marker="o", capsize=3, label=_label(title))
    values = sorted({value for points in series.values() for value, _ in points})
    if len(values) > 3 and values[-1] > 4 * values[0] > 0:
        axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set(xlabel=key, ylabel="accuracy (%)")
    if len(series) > 1:
        axis.legend(fontsize=8)
    return figure


def draw_map(points: Mapping[str, np.ndarray], labels_N: np.ndarray, classes: Sequence[str]) -> "Figure":
    """t-SNE maps side by side, by title, points (N,2) coloured by class."""
    figure = new_figure(4.2 * len(points), 4.4)
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    markers = "osD^vP*X<>"
    for axis, (title, place_N2) in zip(axes, points.items(), strict=True):
        for label, name in enumerate(classes):
            own = labels_N == label
            shape = markers[label // len(COLOURS) % len(markers)]
            axis.plot(
                *place_N2[own].T,
                linestyle="",
                marker=shape,
                markersize=3,
                color=colour(label),
                label=_label(name),
                alpha=0.8,
            )
        axis.set(title=_label(title), xticks=[], yticks=[])
        axis.grid(visible=False)
    if len(classes) <= 40:
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(7, len(classes)), fontsize=8, markerscale=2)
    return figure


def draw_pictures(rows: Sequence[tuple[str, Sequence[Shown]]]) -> "Figure":
    """Rows of images with words below each; the words of wrong ones are red."""
    columns = max(len(row) for _, row in rows)
    figure = new_figure(1.1 * columns + 0.8, 1.3 * len(rows))
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for axis in axes.flat:
        axis.axis("off")
    for line, (title, row) in zip(axes, rows, strict=True):
        for axis, shown in zip(line, row, strict=False):
            axis.imshow(shown.image.permute(1, 2, 0).numpy())
            words = _label(shown.words.replace(", ", "\n"))
            axis.text(
                0.5,
                -0.04,
                words,
                transform=axis.transAxes,
                ha="center",
                va="top",
                fontsize=6,
                color=INK if shown.is_right else "#b42318",
            )
        line[0].text(-0.08, 0.5, title, transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    return figure


def to_svg(figure: "Figure", description: str) -> str:
    """For a page: transparent, in the page's colour of text, with a description for those who do not see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    prefix = f"f{zlib.crc32(description.encode()):08x}-"
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\1{prefix}", svg)  # several on one page must not share names
    head = f'<svg role="img" aria-label="{_escape(description)}" '
    return re.sub(r"<metadata>.*?</metadata>", "", svg.replace("<svg ", head, 1), flags=re.DOTALL)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def check_format(path: Path) -> str:
    """The format that the file's suffix stands for."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise InputError(f"{path} ends in no known format: {', '.join(f'.{name}' for name in FORMATS)}")
    return kind


def save_figure(figure: "Figure", path: Path, dpi: int = 300) -> None:
    """Dark on white; print quality unless a screen is all that it is for."""
    kind = check_format(path)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    content = buffer.getvalue()
    write_atomically(path, content.replace(INK.encode(), b"#000000") if kind == "svg" else content)
