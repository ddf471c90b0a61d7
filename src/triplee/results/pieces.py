"""What there is to see of runs: confusions, mistakes, maps of features, nearest training images, views of ESAug.

Comes in: records of runs, their pool and, for features, their networks; goes out: counts, places and images, which a
page or a figure shows. Axes: N images, K classes, F features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplee.augment import OPS, apply_op, fourier_mix
from triplee.augment.style import StyleTable
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.loading import load
from triplee.nets.stylizer_file import load_stylizer
from triplee.results.embedding import NO_MAP, choose_points, features_of, judge_features, make_maps, nearest_images
from triplee.results.records import Method, Record, read_predictions
from triplee.runfolder import RunFolder
from triplee.settings import InputError

WORST, ASKED = 12, 6  # mistakes, and images whose neighbours are shown
MOST_FREQUENT = 5  # pairs of classes that are named below a confusion
MOST_KNOWN = 4000  # training images among which neighbours are looked for
MOST_CLASSES, SHOWN_CLASSES = 30, 20  # of more than the first a confusion shows so many, the most mistaken
STRENGTHS = (3, 9, 15, 21, 27)
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of a partner's amplitude or style


@dataclass(frozen=True)
class Shown:
    """An image (3,H,W), and what is to be said of it."""

    image: Tensor
    words: str
    is_right: bool = True


@dataclass(frozen=True)
class FeatureLook:
    """Features of the target's images by the title of a method, and how well classes are apart in them."""

    target: str
    points: np.ndarray  # numbers of the images
    labels_N: np.ndarray
    features: Mapping[str, np.ndarray]  # (N,F)
    judged: Mapping[str, Mapping[str, float]]
    neighbours: Sequence[tuple[Shown, list[Shown]]]  # of the last method


@dataclass(frozen=True)
class ViewRow:
    """An op: the image it starts from (a cross-image op: the partner), and the views it makes at rising strength."""

    op: str
    start: Shown
    views: list[Shown]
    is_mixed: bool = False


@dataclass
class Looks:
    """What a page shows beside numbers; empty where it could not be had, and `notes` say why."""

    confusions: dict[str, Any] = field(default_factory=dict)
    mistakes: list[dict[str, Any]] = field(default_factory=list)
    features: list[FeatureLook] = field(default_factory=list)
    maps: list[dict[str, np.ndarray]] = field(default_factory=list)  # of each of `features`, places (N,2) by title
    views: list[ViewRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def look_at(
    methods: Sequence[Method],
    targets: Sequence[str],
    pool: Pool | None,
    compared: Sequence[Method],
    device: torch.device,
) -> Looks:
    """All there is to see of some methods; of the `compared` ones alone their features, of the last its mistakes."""
    looks = Looks(confusions=count_confusions(methods, targets))
    if not looks.confusions:
        looks.notes.append("No run kept its predictions: confusion and mistakes are left out.")
    if pool is None:
        return looks
    best = compared[-1]
    looks.mistakes = [
        found for target in targets for record in best.of(target)[:1] if (found := worst_mistakes(record, pool))
    ]
    for target in targets:
        runs = {method.title: method.of(target)[0] for method in compared if method.of(target)}
        try:
            looks.features += [look_at_features(runs, pool, device)] if runs else []
        except InputError as error:
            looks.notes.append(str(error))
    looks.maps = map_features(looks.features)
    looks.notes += [
        f"No map of {look.target} by {title}: {NO_MAP}."
        for look, places in zip(looks.features, looks.maps, strict=True)
        for title in look.features
        if title not in places
    ]
    for record in _with_most_views(methods, best):
        try:
            looks.views = make_views(record, pool, device)
            break
        except InputError as error:  # its stylizer is gone
            looks.notes.append(str(error))
    return looks


def _with_most_views(methods: Sequence[Method], best: Method) -> list[Record]:
    """Runs whose views are worth showing, the first that can be had: one with the style op, if any, or the best."""
    restyling = [method for method in (best, *methods) if method.recipe.restyles]
    return list({id(method): method.records[0] for method in (*restyling[:1], best)}.values())


def is_of_pool(record: Record, pool: Pool) -> bool:
    told = [record.config[key] for key in ("data_fingerprint", "domains", "classes")]
    return told == [pool.fingerprint, list(pool.domains), list(pool.classes)]


def count_confusions(methods: Sequence[Method], targets: Sequence[str]) -> dict[str, Any]:
    """For each method and target, over its seeds, how often a class was called which (see `_shorten`)."""
    classes = methods[0].records[0].config["classes"]
    counts: dict[str, dict[str, dict[str, Any]]] = {}
    for method in methods:
        for target in targets:
            total_KK = np.zeros((len(classes), len(classes)), dtype=int)
            for record in method.of(target):
                found = read_predictions(record)
                if found is not None and record.config["classes"] == classes:
                    np.add.at(total_KK, (found["label"], found["chosen"]), 1)
            if total_KK.any():
                counts.setdefault(method.title, {})[target] = _shorten(total_KK)
    return {"classes": classes, "counts": counts} if counts else {}


def _shorten(total_KK: np.ndarray) -> dict[str, Any]:
    """Counts as a page shows them: the classes `of` its rows and columns, and a last column for all others if any."""
    totals_K = total_KK.sum(1)
    of = np.arange(len(total_KK))
    rows = total_KK
    if len(of) > MOST_CLASSES:
        wrong_K = totals_K - total_KK.diagonal()
        of = np.sort(np.argsort(-wrong_K, kind="stable")[:SHOWN_CLASSES])
        known = total_KK[np.ix_(of, of)]
        rows = np.column_stack([known, totals_K[of] - known.sum(1)])
    mistakes_KK = total_KK - np.diag(total_KK.diagonal())
    most = np.argsort(-mistakes_KK, axis=None, kind="stable")[:MOST_FREQUENT]
    pairs = [(int(true), int(said)) for true, said in zip(*np.unravel_index(most, total_KK.shape), strict=True)]
    frequent = [[*pair, int(total_KK[pair]), int(totals_K[pair[0]])] for pair in pairs if mistakes_KK[pair]]
    right = [int(total_KK.trace()), int(totals_K.sum())]
    return {"of": of.tolist(), "rows": rows.tolist(), "frequent": frequent, "right": right}


def worst_mistakes(record: Record, pool: Pool) -> dict[str, Any] | None:
    """The wrong answers given with most confidence."""
    found = read_predictions(record)
    target_N = np.flatnonzero(pool.domains_N == pool.domains.index(record.target))
    if found is None or not np.array_equal(found["label"], pool.labels_N[target_N]):
        return None
    (wrong,) = (found["chosen"] != found["label"]).nonzero()
    worst = wrong[np.argsort(-found["confidence"][wrong], kind="stable")][:WORST]
    shown = [
        Shown(
            pool.images_NCHW[int(target_N[n])],
            f"{pool.classes[found['label'][n]]}, called {pool.classes[found['chosen'][n]]}"
            f" ({100 * found['confidence'][n]:.0f}\u00a0%)",
            False,
        )
        for n in worst
    ]
    counts = {"wrong": len(wrong), "all": len(target_N)}
    return {"target": record.target, "seed": record.seed, "images": shown, **counts}


def look_at_features(runs: Mapping[str, Record], pool: Pool, device: torch.device) -> FeatureLook:
    """Of runs with one target: features of its images, for the last run the training images nearest to some of them."""
    first = next(iter(runs.values()))
    split = split_pool(pool, first.target, first.seed, first.config.get("left_out"))
    points, known = choose_points(split.target_N), choose_points(split.train_N, MOST_KNOWN)
    labels_N, known_labels = pool.labels_N[points], pool.labels_N[known]
    features, judged, neighbours = {}, {}, []
    for title, record in runs.items():
        classifier = load(record.path, device)
        features[title], known_features = (features_of(classifier, pool, some) for some in (points, known))
        judged[title] = judge_features(features[title], labels_N, known_features, known_labels)
        if record is list(runs.values())[-1]:
            asked = np.unique(labels_N, return_index=True)[1][:ASKED]  # one of each class
            near = nearest_images(features[title][asked], known_features)
            neighbours = [
                (_show(pool, int(points[n])), [_show(pool, int(known[t]), int(labels_N[n])) for t in row])
                for n, row in zip(asked, near, strict=True)
            ]
    return FeatureLook(first.target, points, labels_N, features, judged, neighbours)


def map_features(looks: Sequence[FeatureLook]) -> list[dict[str, np.ndarray]]:
    """Of each look its maps by title, without those that cannot be had."""
    maps = iter(make_maps([features for look in looks for features in look.features.values()]))
    found = [{title: next(maps) for title in look.features} for look in looks]
    return [{title: place_N2 for title, place_N2 in own.items() if place_N2 is not None} for own in found]


def _show(pool: Pool, index: int, label: int | None = None) -> Shown:
    own = pool.labels_N[index]
    words = f"{pool.classes[own]}, {pool.domains[pool.domains_N[index]]}"
    return Shown(pool.images_NCHW[int(index)], words, label is None or own == label)


def _colourfulness(image: Tensor) -> float:
    """How far the channels are apart: on a grey image half of the ops do nothing."""
    return float(image.float().std(0).mean())


def make_views(record: Record, pool: Pool, device: torch.device) -> list[ViewRow]:
    """A colourful training image under every op at rising strength, and under the cross-image ops with a partner."""
    split = split_pool(pool, record.target, record.seed, record.config.get("left_out"))
    train_N = split.train_N
    of_domain = [train_N[pool.domains_N[train_N] == pool.domains.index(name)] for name in split.source_domains]
    firsts = [int(own[0]) for own in of_domain]
    most = max(range(len(firsts)), key=lambda k: _colourfulness(pool.images_NCHW[firsts[k]]))
    start, others = _show(pool, firsts[most]), of_domain[(most + 1) % len(of_domain)]
    classmates = others[pool.labels_N[others] == pool.labels_N[firsts[most]]]
    partner = _show(pool, int(classmates[-1] if len(classmates) else others[-1]))
    rows = [
        ViewRow(name, start, [Shown(apply_op(name, start.image, s), f"strength {s}") for s in STRENGTHS])
        for name in OPS
    ]
    images, partners = (one.image.expand(len(SHARES), -1, -1, -1) for one in (start, partner))
    mixed = fourier_mix(images, partners, torch.tensor(SHARES))
    shown = [Shown(view, f"λ = {s:g}") for s, view in zip(SHARES, mixed, strict=True)]
    rows.append(ViewRow("fourier", partner, shown, is_mixed=True))
    if record.recipe.restyles:
        own = RunFolder(record.path).stylizer_path
        stylizer = load_stylizer(own if record.recipe.stylizer == "fit" else record.recipe.stylizer).to(device)
        table = StyleTable(stylizer, partner.image[None].to(device), np.zeros(1, int))
        views = images.to(device).clone()
        table.restyle_views(views, np.arange(len(SHARES)), np.zeros(len(SHARES), int), np.array(SHARES))
        shown = [Shown(view.cpu(), f"strength {s:g}") for s, view in zip(SHARES, views, strict=True)]
        rows.append(ViewRow("style", partner, shown, is_mixed=True))
    return rows
