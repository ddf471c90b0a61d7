"""The plots of a chapter of the page, each with a caption, a legend and words for those who do not see it.

Comes in: a Part; goes out: Plots. What shows several domains is a picture for each, so that a phone can stack them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from triplee.results import figures
from triplee.results.embedding import describe_features, describe_shortly
from triplee.results.parts import Part, show
from triplee.results.pieces import FeatureLook
from triplee.results.records import SYMBOLS, Method
from triplee.settings import counted

OVER = {"batch_size": "batch size b", "replay": "replay count r", "members": "members m"}
MOST_METHODS = len(figures.COLOURS)  # in one plot; more cannot be told apart
LOSSES = {"cross_entropy": "cross-entropy", "contrast": "supervised contrast"}


@dataclass(frozen=True)
class Plot:
    kind: str
    title: str
    caption: str
    legend: list[tuple[str, str, str]]  # mark, its colour, its name
    svgs: list[str]


def make_plots(part: Part) -> list[Plot]:
    """Bars, curves and losses of the most telling methods; lines over b, r and m where methods differ in that alone."""
    shown = part.choose(MOST_METHODS)
    legend = [("■", figures.colour(k), method.title) for k, method in enumerate(shown)]
    left_out = len(part.methods) - len(shown)
    fewer = f" Shown are {len(shown)} of {len(part.methods)} methods; the table has all." if left_out else ""
    plots = [_bars(part, shown, legend, fewer)]
    if any(record.rows for method in shown for record in method.records):
        plots += [_curves(part, shown, legend, fewer), _losses(part, shown, legend, fewer)]
    whole = [method for method in part.methods if method.average(part.targets)]  # a line is of averages
    return plots + [
        _over(part, key, words, series) for key, words in OVER.items() if (series := find_series(whole, key))
    ]


def _bars(part: Part, shown: Sequence[Method], legend: list[tuple[str, str, str]], fewer: str) -> Plot:
    by_title = {target: [method.accuracy(target) for method in shown] for target in part.targets}
    averages = [method.average(part.targets) for method in shown]
    if len(part.targets) > 1 and any(averages):
        by_title["average"] = averages
    svgs = []
    for title, heights in by_title.items():
        words = ", ".join(f"{method.title} {show(e)}" for method, e in zip(shown, heights, strict=True) if e)
        svgs.append(figures.to_svg(figures.draw_bars(title, heights), f"{part.data}, accuracy on {title}: {words}"))
    num_seeds = max(e.num_seeds for heights in by_title.values() for e in heights if e)
    spread = f"the thin line is ± one standard error over {num_seeds} seeds" if num_seeds > 1 else "one seed, no spread"
    caption = f"A plot for each held-out domain, a bar for each method: accuracy in percent; {spread}."
    return Plot("bars", "Accuracy by held-out domain", caption + fewer, legend, svgs)


def _curves(part: Part, shown: Sequence[Method], legend: list[tuple[str, str, str]], fewer: str) -> Plot:
    svgs = []
    for target in part.targets:
        last = {method.title: [r.rows[-1]["target_accuracy"] for r in method.of(target) if r.rows] for method in shown}
        words = ", ".join(f"{title} {np.mean(values):.1f}" for title, values in last.items() if values)
        description = f"{part.data}, accuracy by epoch with {target} held out. On it after the last epoch: {words}"
        svgs.append(figures.to_svg(figures.draw_curves(shown, [target], has_legend=False), description))
    caption = (
        "Above: the held-out domain, which training never sees. Below: validation images of the source domains, by"
        " which the epoch is chosen. A line is the mean over seeds, the band reaches from the lowest to the highest."
    )
    return Plot("curves", "Accuracy by epoch", caption + fewer, legend, svgs)


def _losses(part: Part, shown: Sequence[Method], legend: list[tuple[str, str, str]], fewer: str) -> Plot:
    svgs = [
        figures.to_svg(figures.draw_loss(shown, part.targets, key), f"{part.data}, the loss {words} by epoch")
        for key, words in LOSSES.items()
    ]
    caption = (
        "The two losses on the views that were trained on, mean over members, seeds and held-out domains, with the"
        " range as a band. Methods without the supervised contrast have no line in its plot."
    )
    return Plot("losses", "Losses by epoch", caption + fewer, legend, svgs)


def find_series(methods: Sequence[Method], key: str) -> dict[str, list[tuple[float, Method]]]:
    """Methods that differ in one key alone, in series of two and more."""
    alike: dict[str, list[tuple[float, Method]]] = {}
    for method in methods:
        told = method.records[0].told
        others = {name: value for name, value in told.items() if name != key}
        alike.setdefault(json.dumps(others), []).append((float(told[key]), method))
    named = {}
    for points in alike.values():
        if len({value for value, _ in points}) > 1:
            points = sorted(points, key=lambda point: point[0])
            named[" / ".join(dict.fromkeys(_without(method.title, key) for _, method in points))] = points
    return named


def _without(title: str, key: str) -> str:
    """A title less what it says of a key."""
    word, bracket, told = title.partition(" (")
    kept = [one for one in told.removesuffix(")").split(", ") if not one.startswith(f"{SYMBOLS[key]}=")]
    return f"{word} ({', '.join(kept)})" if bracket and kept else word


def _over(part: Part, key: str, words: str, series: Mapping[str, Sequence[tuple[float, Method]]]) -> Plot:
    legend = [("●", figures.colour(k), title) for k, title in enumerate(series)]
    lines = "; ".join(
        f"{title}: {', '.join(f'{value:g} {show(e)}' for value, m in points if (e := m.average(part.targets)))}"
        for title, points in series.items()
    )
    svg = figures.to_svg(figures.draw_over(words, series, part.targets), f"{part.data}, accuracy over {words}. {lines}")
    caption = (
        f"Average over the held-out domains, of methods that differ in {SYMBOLS[key]} alone; bars are ± one standard"
        " error over seeds. The axis does not begin at 0."
    )
    return Plot("over", f"Accuracy over {words}", caption, legend, [svg])


def make_map_plot(part: Part, look: FeatureLook, places: Mapping[str, np.ndarray]) -> Plot:
    """The maps of one target, a picture for each method."""
    classes = part.methods[0].records[0].config["classes"]
    said = {title: describe_shortly(judged) for title, judged in look.judged.items()}
    svgs = [
        figures.to_svg(
            figures.draw_map({title: place_N2}, look.labels_N, classes, said, has_legend=False),
            f"{part.data}, t-SNE map of {look.target} by {title}: {describe_features(look.judged[title])}",
        )
        for title, place_N2 in places.items()
    ]
    is_named = len(classes) <= figures.MOST_NAMED
    legend = [(figures.MARKERS[figures.marker(k)], figures.colour(k), name) for k, name in enumerate(classes)]
    num_images = len(look.points)
    caption = f"{counted(num_images, 'image')} of it, coloured by class."
    return Plot("map", look.target, caption, legend if is_named else [], svgs)
