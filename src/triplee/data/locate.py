"""Finds a benchmark under a root folder and reads it under its own names, whatever a lab calls its folders.

Comes in: a Benchmark (data/catalog.py) and a root. Goes out: an ImageFolder with the catalog's domains and classes in
the catalog's order, and the published split where there is one. Axis: N images.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from triplee.data.catalog import Benchmark, read_val_images
from triplee.data.folder import TRAIN, UNSPLIT, VAL, ImageFolder, fold_name, list_images, scan
from triplee.settings import InputError, counted

_SPLIT_OF = {"train": TRAIN, "val": VAL, "unsplit": UNSPLIT}


def find_set(benchmark: Benchmark, root: Path) -> Path | None:
    """The folder at `root` or up to two below it that holds all domains; usual places come first."""
    for folder in _candidates(benchmark, root):
        if len(_domains_in(benchmark, folder)) == len(benchmark.domains):
            return folder
    return None


def list_benchmark(benchmark: Benchmark, root: Path) -> ImageFolder:
    """The images of the benchmark under `root`; InputError when they are not there, or not of this benchmark."""
    folder = find_set(benchmark, root)
    if folder is None:
        raise InputError(_not_found(benchmark, root))
    split_folders = [{name: _SPLIT_OF[split] for name, split in o.items()} for o in benchmark.split_folders]
    found = _use_own_names(benchmark, list_images(folder, split_folders))
    if benchmark.val_images:
        return _split_by_names(benchmark, found)
    return _split_by_lists(benchmark, found) if benchmark.split_lists else found


def _candidates(benchmark: Benchmark, root: Path) -> Iterator[Path]:
    yield from (place for name in benchmark.folders if (place := root / name).is_dir())
    level = [root] if root.is_dir() else []
    for _ in range(3):
        yield from level
        level = [folder / name for folder in level for name in _folders_in(folder)]


def _domains_in(benchmark: Benchmark, folder: Path) -> set[str]:
    own = _own_names(benchmark.domains)
    return {own[fold_name(name)] for name in _folders_in(folder) if fold_name(name) in own}


def _folders_in(folder: Path) -> list[str]:
    """None where it may not be read: a disk's `lost+found` is nobody's data."""
    with suppress(InputError):
        return scan(folder)[0]
    return []


def _own_names(names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Folded folder name → the catalog's name."""
    return {fold_name(other): name for name, others in names.items() for other in (name, *others)}


def _not_found(benchmark: Benchmark, root: Path) -> str:
    if not root.is_dir():
        return f"root {root} is no folder: give the one that holds {benchmark.folders[0]}/ with --root"
    way = f"get it with `triplee data download {benchmark.name} --root {root}`, or name its place with --root"
    for folder in _candidates(benchmark, root):
        present = _domains_in(benchmark, folder)
        if missing := [name for name in benchmark.domains if name not in present]:
            if present:
                have, lack = ", ".join(sorted(present)), ", ".join(missing)
                return f"{folder} has {have} of {benchmark.title}, but no {lack}: move it away, then {way}"
            if folder != root and folder in (root / name for name in benchmark.folders):
                lack = f"it has none of its domains ({', '.join(benchmark.domains)})"
                return f"{folder} is not {benchmark.title}: {lack}: move it away, then {way}"
    return f"no {benchmark.title} under {root}: {way}"


def _use_own_names(benchmark: Benchmark, folder: ImageFolder) -> ImageFolder:
    domains, classes = tuple(benchmark.domains), tuple(benchmark.classes)
    own_domain, own_class = _own_names(benchmark.domains), _own_names(benchmark.classes)
    domain_of = np.array(
        [domains.index(own_domain[f]) if (f := fold_name(d)) in own_domain else -1 for d in folder.domains]
    )
    class_of = np.array(
        [classes.index(own_class[f]) if (f := fold_name(c)) in own_class else -1 for c in folder.classes]
    )
    domains_N = domain_of[folder.domains_N]
    labels_N = np.where(domains_N >= 0, class_of[folder.labels_N], 0)
    if (labels_N < 0).any():
        strange = folder.classes[folder.labels_N[np.argmax(labels_N < 0)]]
        raise InputError(
            f"{folder.root} is not {benchmark.title}: it has a class {strange!r}, which {benchmark.title} has not:"
            " take it out, or name another place with --root"
        )
    kept_N = np.flatnonzero(domains_N >= 0)
    order_N = kept_N[np.lexsort((labels_N[kept_N], folder.split_N[kept_N], domains_N[kept_N]))]
    notes = list(folder.notes)
    if others := [name for name, own in zip(folder.domains, domain_of, strict=True) if own < 0]:
        notes.append(f"passed over {', '.join(others)}: no domain of {benchmark.title}")
    for mine, theirs in ((own_domain, folder.domains), (own_class, folder.classes)):
        renamed = [f"{name} = {mine[f]}" for name in theirs if (f := fold_name(name)) in mine and mine[f] != name]
        notes += [f"other names here: {', '.join(renamed)}"] if renamed else []
    renamed = replace(
        folder, domains=domains, classes=classes, domains_N=domains_N, labels_N=labels_N, benchmark=benchmark.name
    )
    return _take(renamed, order_N, notes)


def _split_by_names(benchmark: Benchmark, folder: ImageFolder) -> ImageFolder:
    wanted = read_val_images(benchmark)
    is_val_N = np.array([key.rsplit(".", 1)[0] in wanted for key in folder.image_keys()])
    notes = list(folder.notes)
    if (num_found := int(is_val_N.sum())) < len(wanted):
        notes.append(f"{len(wanted) - num_found} of the {len(wanted)} published validation images are not there")
        if not num_found:
            return replace(folder, notes=tuple(notes))
    return replace(folder, split_N=np.where(is_val_N, VAL, TRAIN).astype(np.int8), notes=tuple(notes))


def _split_by_lists(benchmark: Benchmark, folder: ImageFolder) -> ImageFolder:
    split_of: dict[str, int] = {}
    for split, pattern in benchmark.split_lists.items():
        for domain in benchmark.domains:
            file_name = pattern.format(domain=domain)
            places = [place / file_name for place in (folder.root, folder.root / "splits", folder.root.parent)]
            path = next((place for place in places if place.is_file()), None)
            if path is None:
                missing = (
                    f"no {file_name} in {folder.root}: a tenth is drawn for validation instead of the published split"
                )
                return replace(folder, notes=(*folder.notes, missing))
            split_of.update(dict.fromkeys(_listed(path), _SPLIT_OF[split]))
    split_N = np.array([split_of.get(key, -1) for key in folder.image_keys()], np.int8)
    notes = list(folder.notes)
    if num_left := int((split_N < 0).sum()):
        notes.append(f"left out {num_left:,} images that are on none of the published lists")
    if num_missing := len(split_of) - int((split_N >= 0).sum()):
        notes.append(f"not there: {counted(num_missing, 'image')} of the published lists")
    return _take(replace(folder, split_N=split_N), np.flatnonzero(split_N >= 0), notes)


def _listed(path: Path) -> list[str]:
    """Lines `<domain>/<class>/<image> <label>`, of which the label is not needed."""
    try:
        return [line.rsplit(" ", 1)[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise InputError(f"the list {path} cannot be read: get it again") from None


def _take(folder: ImageFolder, index_N: np.ndarray, notes: Sequence[str]) -> ImageFolder:
    return replace(
        folder,
        names=tuple(folder.names[index] for index in index_N),
        domains_N=folder.domains_N[index_N],
        labels_N=folder.labels_N[index_N],
        split_N=folder.split_N[index_N],
        notes=tuple(notes),
    )
