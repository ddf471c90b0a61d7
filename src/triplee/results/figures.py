"""Plots of what was measured, for the report and for print: bars by target, curves, accuracy over a recipe key, maps.

Comes in: Methods, or points with labels; goes out: matplotlib figures, and files or SVG text made of them. A page
has legends of its own, which break where it is narrow; in print they are part of the figure.
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
from triplee.results.statistics import Estimate
from triplee.runfolder import write_atomically
from triplee.settings import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for most kinds of colour blindness, and on light and dark ground.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f", "#6a51a3", "#b5bd00")
MARKERS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "*": "★", "X": "✖", "<": "◀", ">": "▶"}
PRINT_INK, PAGE_INK = "#000000", "#123456"  # the latter stands for the colour of text, which a page decides
GAP = 0.1  # inches, after the first of a row of pictures
WRONG = "#b42318"
MOST_NAMED = 40  # classes in the legend of a map
FORMATS = ("svg", "png", "pdf")
STYLE: dict[str, Any] = {
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 9},
    **{
        "axes.axisbelow": True,
        "legend.frameon": False,
        "axes.titlesize": 10,
        "svg.fonttype": "none",
        "pdf.fonttype": 42,  # TrueType: publishers refuse type 3
        "text.parse_math": False,
        "svg.hashsalt": "triplee",
    },
}


INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")


def house_style(ink: str = PRINT_INK) -> AbstractContextManager[None]:
    """Matplotlib as we want it, for as long as the context lasts."""
    import matplotlib as mpl

    return mpl.rc_context({**STYLE, **dict.fromkeys(INKED, ink)})  # pyright: ignore[reportArgumentType]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """Of a class: where colours are used up, another shape."""
    return list(MARKERS)[number // len(COLOURS) % len(MARKERS)]


def _label(name: str) -> str:
    """Anybody's words as matplotlib shows them: it cannot draw what is no Unicode, and hides names with a first _."""
    shown = name.encode(errors="backslashreplace").decode()
    return f"\u200b{shown}" if shown.startswith("_") else shown


def new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    return Figure(figsize=(width, height), layout="constrained")


def draw_bars(title: str, heights: Sequence[Estimate | None]) -> "Figure":
    """A bar for each method, in its colour; the thin line is the standard error over seeds."""
    figure = new_figure(2.3, 2.2)
    axis = figure.subplots()
    for k, found in enumerate(heights):
        if found is not None:
            error = found.standard_error or 0.0
            ink = axis.spines["left"].get_edgecolor()
            axis.bar(k, found.mean, 0.85, yerr=error, color=colour(k), ecolor=ink, error_kw={"elinewidth": 1})
    axis.set(title=_label(title), xticks=[], xlim=(-0.6, len(heights) - 0.4), ylim=(0, 100))
    return figure


def draw_curves(methods: Sequence[Method], targets: Sequence[str], has_legend: bool = True) -> "Figure":
    """Accuracy by epoch on source validation and on the held-out domain, mean over seeds with the range as a band."""
    figure = new_figure(3.1 * max(1 + has_legend, len(targets)), 4.6 + 0.6 * has_legend)
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
    if has_legend:
        pairs = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes[0]]
        _legend(figure, {label: handle for pair in pairs for handle, label in pair}, "upper")
    return figure


def _legend(figure: "Figure", by_label: Mapping[str, Any], place: str, **options: float) -> None:
    """Outside the axes, in as many columns as there is room for."""
    inches = 0.6 + 0.07 * max(map(len, by_label), default=0)
    columns = max(1, min(len(by_label), int(figure.get_figwidth() // inches)))
    kept = {"ncols": columns, "fontsize": 8, **options}
    figure.legend(by_label.values(), by_label.keys(), loc=f"outside {place} center", **kept)  # pyright: ignore


def draw_loss(methods: Sequence[Method], targets: Sequence[str], key: str) -> "Figure":
    """Cross-entropy or contrast of the training views by epoch, mean over members and seeds."""
    figure = new_figure(3.1, 2.4)
    axis = figure.subplots()
    for k, method in enumerate(methods):
        records = [record for target in targets for record in method.of(target) if record.rows]
        curves = [[float(np.mean(r[key])) for r in record.rows] for record in records]
        if any(any(curve) for curve in curves):
            _band(axis, curves, colour(k), _label(method.title))
    axis.set(title=key.replace("_", "-"), xlabel="epoch", ylabel="loss")
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
    figure = new_figure(3.7, 2.8)
    axis = figure.subplots()
    for k, points in enumerate(series.values()):
        known = [(value, e) for value, method in points if (e := method.average(targets))]
        x, means = [value for value, _ in known], [e.mean for _, e in known]
        errors = [e.standard_error or 0.0 for _, e in known]
        axis.errorbar(x, means, errors, color=colour(k), ecolor=colour(k), marker="o", markersize=4, capsize=3)
    values = sorted({value for points in series.values() for value, _ in points})
    if len(values) > 2 and values[-1] >= 8 * values[0] > 0:
        axis.set_xscale("log", base=2)
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set(xlabel=key, ylabel="accuracy (%)")
    return figure


def draw_map(
    points: Mapping[str, np.ndarray],
    labels_N: np.ndarray,
    classes: Sequence[str],
    said: Mapping[str, str],
    has_legend: bool = True,
) -> "Figure":
    """t-SNE maps side by side, by title and with what is `said` of each, points (N,2) coloured by class."""
    figure = new_figure(4.2 * len(points), 4.2 + 0.4 * has_legend)
    axes = figure.subplots(1, len(points), squeeze=False)[0]
    for axis, (title, place_N2) in zip(axes, points.items(), strict=True):
        for label, name in enumerate(classes):
            own = labels_N == label
            look: dict[str, Any] = {"color": colour(label), "alpha": 0.85, "markersize": 3.2, "markeredgewidth": 0}
            axis.plot(*place_N2[own].T, linestyle="", marker=marker(label), label=_label(name), **look)
        axis.set_title(_label(f"{title}\n{said[title]}"), fontsize=9)
        axis.set(xticks=[], yticks=[])
        for side in axis.spines.values():
            side.set(visible=True, alpha=0.4)
    if has_legend and len(classes) <= MOST_NAMED:
        handles, names = axes[0].get_legend_handles_labels()
        _legend(figure, dict(zip(names, handles, strict=True)), "lower", markerscale=2)
    return figure


def draw_pictures(rows: Sequence[tuple[str, Sequence[Shown]]], heads: Sequence[str], inches: float) -> "Figure":
    """Rows of images below `heads`, a gap after the first, with words below each; the words of wrong ones are red."""
    lines = [max(shown.words.count(", ") + 1 if shown.words else 0 for shown in row) for _, row in rows]
    heights = [inches + 0.13 * count for count in lines]
    figure = new_figure((inches + 0.08) * len(heads) + GAP + 0.9, sum(heights) + 0.08 * len(rows) + 0.3)
    widths = [inches, GAP, *[inches] * (len(heads) - 1)]
    axes = figure.subplots(len(rows), len(widths), squeeze=False, width_ratios=widths, height_ratios=heights)
    for axis in axes.flat:
        axis.axis("off")
    axes = np.delete(axes, 1, axis=1)
    for axis, head in zip(axes[0], heads, strict=True):
        axis.set_title(_label(head), fontsize=7, pad=3)
    ink = axes[0][0].title.get_color()
    for line, (title, row) in zip(axes, rows, strict=True):
        for axis, shown in zip(line, row, strict=False):  # there may be fewer images than heads
            axis.imshow(_enlarge(shown.image.permute(1, 2, 0).numpy()), interpolation="none")
            words = _label(shown.words.replace(", ", "\n"))
            its_ink = ink if shown.is_right else WRONG
            axis.text(0.5, -0.03, words, transform=axis.transAxes, ha="center", va="top", fontsize=6, color=its_ink)
        line[0].text(-0.08, 0.5, _label(title), transform=line[0].transAxes, ha="right", va="center", fontsize=8)
    return figure


def _enlarge(image_HWC: np.ndarray) -> np.ndarray:
    """A small image with whole pixels repeated: in a vector format it would be blurred."""
    factor = max(1, 256 // max(image_HWC.shape[:2]))
    return image_HWC.repeat(factor, axis=0).repeat(factor, axis=1)


def to_svg(figure: "Figure", description: str) -> str:
    """For a page: transparent, in the page's colour of text, with a description for those who do not see it."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(PAGE_INK, "currentColor")
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
    """Print quality, unless a screen is all that it is for."""
    kind = check_format(path)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, buffer.getvalue())
