"""Leave one domain out: which images of a pool are trained on, validated on and tested on ("Protocol" of the method).

Comes in: a Pool, the target's name and a seed. Goes out: a Split of index arrays into the pool (axis N).
The target's images decide nothing: a source domain's split is drawn from (seed, domain) and its own images alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triplee.data.folder import TRAIN, UNSPLIT, VAL
from triplee.data.pool import Pool
from triplee.seeding import generator
from triplee.settings import InputError, nearest


@dataclass(frozen=True)
class Split:
    """Ascending int64 indices into the pool; `warnings` are lines for people, the split stands all the same."""

    train_N: np.ndarray
    val_N: np.ndarray
    target_N: np.ndarray
    source_domains: tuple[str, ...]
    target: str
    warnings: tuple[str, ...]
    left_out: str | None = None


def check_target(target: str, domains: Sequence[str], data: str) -> None:
    """Refuse a target that is none of the domains of `data`."""
    if target not in domains:
        raise InputError(f"unknown target {target!r} in {data}: {nearest(target, domains)}")


def split_pool(pool: Pool, target: str, seed: int, left_out: str | None = None) -> Split:
    """Train and val of all domains but `target`, as the data set gives them or else 90/10, and all of `target`.

    A domain `left_out` is neither trained nor validated nor tested on: the run's target, while a source is held out.
    """
    check_target(target, pool.domains, pool.name)
    sources = [index for index, name in enumerate(pool.domains) if name not in (target, left_out)]
    if not sources:
        if left_out:
            raise InputError(f"leave-one-out holds out a source of {pool.name} as well: add a third domain")
        raise InputError(f"target {target!r} is the only domain of {pool.name}: add a domain to train on")
    drawn = [_split_domain(pool, index, seed) for index in sources]
    train_N = np.sort(np.concatenate([train for train, _ in drawn]))
    val_N = np.sort(np.concatenate([val for _, val in drawn]))
    _check(pool, target, train_N, val_N)
    return Split(
        train_N=train_N,
        val_N=val_N,
        target_N=np.flatnonzero(pool.domains_N == pool.domains.index(target)),
        source_domains=tuple(pool.domains[index] for index in sources),
        target=target,
        warnings=_warn(pool, target, left_out, train_N, val_N),
        left_out=left_out,
    )


def _split_domain(pool: Pool, domain: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    in_domain_N = pool.domains_N == domain
    train = [np.flatnonzero(in_domain_N & (pool.split_N == TRAIN))]
    val = [np.flatnonzero(in_domain_N & (pool.split_N == VAL))]
    unsplit_N = in_domain_N & (pool.split_N == UNSPLIT)
    rng = generator(seed, "split", domain)
    for label in np.unique(pool.labels_N[unsplit_N]):
        group = rng.permutation(np.flatnonzero(unsplit_N & (pool.labels_N == label)))
        num_val = max(round(len(group) / 10), int(len(group) >= 5))
        val.append(group[:num_val])
        train.append(group[num_val:])
    return np.concatenate(train), np.concatenate(val)


def _check(pool: Pool, target: str, train_N: np.ndarray, val_N: np.ndarray) -> None:
    if not len(train_N):
        raise InputError(f"no training images in {pool.name} outside target {target!r}: add some to a source domain")
    if unseen := missing_classes(pool.classes, pool.labels_N[train_N]):
        raise InputError(
            f"no source domain of {pool.name} has a training image of {unseen} when {target!r} is the target:"
            " add some, remove the class, or choose another target"
        )
    if not len(val_N):
        raise InputError(
            f"no validation images in {pool.name} outside target {target!r}:"
            " give a source class at least 5 images, or fill its val folder"
        )


def _warn(pool: Pool, target: str, left_out: str | None, train_N: np.ndarray, val_N: np.ndarray) -> tuple[str, ...]:
    lines: list[str] = []
    for index, name in enumerate(pool.domains):
        if name == left_out:
            continue
        kind = "target" if name == target else "source domain"
        if missing := missing_classes(pool.classes, pool.labels_N[pool.domains_N == index]):
            lines.append(f"{kind} {name!r} has no image of {missing}")
        for use, chosen_N in (("training", train_N), ("validation", val_N)):
            if name != target and index not in pool.domains_N[chosen_N]:
                lines.append(f"{kind} {name!r} has no {use} images")
    return tuple(lines)


def missing_classes(classes: Sequence[str], labels_N: np.ndarray) -> str:
    """The names of the classes that no label stands for, as "class 'a', 'b'"; empty when there is none."""
    present = np.unique(labels_N)
    names = [repr(name) for label, name in enumerate(classes) if label not in present]
    return f"class {', '.join(names)}" if names else ""
