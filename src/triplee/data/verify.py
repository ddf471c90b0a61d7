"""Verify: is this the benchmark it is taken for, whole and readable, and does no domain leak into another?

Comes in: an ImageFolder, with its Benchmark where it has one. Goes out: a Verdict for people. Every file is read and
decoded; two files with equal bytes are the same image. Axes: N images, D domains, K classes.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triplee.data.catalog import Benchmark, Variant
from triplee.data.folder import TRAIN, UNSPLIT, VAL, ImageFolder
from triplee.data.reading import read_images
from triplee.data.split import missing_classes
from triplee.settings import FEW, counted, first_few

_CHECK_SIZE = 32  # pixels; the whole file is decoded all the same


@dataclass(frozen=True)
class Verdict:
    """`faults` make the answer no; `notes` are worth knowing. `variant`: whose published counts these are, if any's."""

    folder: ImageFolder
    counts_DK: np.ndarray
    variant: Variant | None
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    def split_counts(self) -> tuple[int, int, int]:
        """Images for training, for validation, and in no published split."""
        return tuple(int((self.folder.split_N == split).sum()) for split in (TRAIN, VAL, UNSPLIT))  # pyright: ignore[reportReturnType]


def verify_images(
    folder: ImageFolder, benchmark: Benchmark | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Verdict:
    """Count, read, decode and compare every image of the folder."""
    counts_DK = np.zeros((len(folder.domains), len(folder.classes)), np.int64)
    np.add.at(counts_DK, (folder.domains_N, folder.labels_N), 1)
    faults, notes = [], list(folder.notes)
    variant = None
    if benchmark is not None:
        variant, wrong = _compare_counts(benchmark, folder, counts_DK)
        faults += wrong
    digests, bad = _read_all(folder, on_progress)
    faults += _tell("that cannot be read", [f"{folder.names[index]} ({reason})" for index, reason in bad.items()])
    leaks, conflicts, copies = _find_copies(folder, digests)
    # Leaks of a set that is as published are everybody's; in any other folder they are for its owner to mend.
    (notes if variant else faults).extend(_tell("in two domains (a held-out one would not be unseen)", leaks))
    for index, name in enumerate(folder.domains if benchmark is None else ()):
        if missing := missing_classes(folder.classes, folder.labels_N[folder.domains_N == index]):
            notes.append(f"domain {name!r} has no image of {missing}")
    if len(folder.domains) == 1:
        notes.append(f"{folder.domains[0]!r} is the only domain: training holds one out, and needs another one")
    if len(folder.classes) == 1:
        notes.append(f"{folder.classes[0]!r} is the only class: training needs another one")
    notes += _tell("of two classes", conflicts)
    notes += _tell("copied exactly within a domain", copies)
    return Verdict(folder, counts_DK, variant, tuple(faults), tuple(notes))


def _compare_counts(
    benchmark: Benchmark, folder: ImageFolder, counts_DK: np.ndarray
) -> tuple[Variant | None, list[str]]:
    """The variant whose counts these are, or, with what is wrong, nothing and the differences from the nearest."""
    found = [(variant, _differences(variant, folder, counts_DK)) for variant in benchmark.variants]
    for variant, differences in found:
        if not differences:
            return variant, []
    nearest_variant, differences = min(found, key=lambda pair: abs(pair[0].total - len(folder)))
    names = " or ".join(f"{variant.total:,}" for variant in benchmark.variants)
    faults = [f"{len(folder):,} images, {benchmark.title} has {names}"] if len(folder) != nearest_variant.total else []
    return None, faults + differences[: 4 * FEW]


def _differences(variant: Variant, folder: ImageFolder, counts_DK: np.ndarray) -> list[str]:
    lines = []
    for domain, counts_K in zip(folder.domains, counts_DK, strict=True):
        expected = variant.counts[domain]
        if isinstance(expected, int):
            if expected != counts_K.sum():
                lines.append(f"{domain}: {counted(counts_K.sum(), 'image')}, {expected:,} are published")
            continue
        for name, count in zip(folder.classes, counts_K.tolist(), strict=True):
            if count != expected.get(name, 0):
                lines.append(f"{domain}/{name}: {counted(count, 'image')}, {expected.get(name, 0):,} are published")
    return lines


def _read_all(
    folder: ImageFolder, on_progress: Callable[[int, int], None] | None
) -> tuple[list[bytes | None], dict[int, str]]:
    """A digest of each good image's bytes, and which images are bad, and why."""
    digests: list[bytes | None] = []
    bad: dict[int, str] = {}
    paths = [f"{folder.root}/{name}" for name in folder.names]
    for index, file in enumerate(read_images(paths, _CHECK_SIZE)):
        digests.append(None if file.bad else file.digest)
        if file.bad:
            bad[index] = file.bad
        if on_progress:
            on_progress(index + 1, len(folder))
    return digests, bad


def _find_copies(folder: ImageFolder, digests: list[bytes | None]) -> tuple[list[str], list[str], list[str]]:
    """Files with equal bytes: in two domains; in one domain under two classes; in one domain and class."""
    same = defaultdict(list)
    for index, digest in enumerate(digests):
        if digest is not None:
            same[digest].append(index)
    leaks, conflicts, copies = [], [], []
    for first, *others in same.values():
        for other in others:
            pair = f"{folder.names[first]} = {folder.names[other]}"
            if folder.domains_N[first] != folder.domains_N[other]:
                leaks.append(pair)
            elif folder.labels_N[first] != folder.labels_N[other]:
                conflicts.append(pair)
            else:
                copies.append(pair)
    return leaks, conflicts, copies


def _tell(what: str, examples: list[str]) -> list[str]:
    return [f"{counted(len(examples), 'image')} {what}: {first_few(examples)}"] if examples else []
