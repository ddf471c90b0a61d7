"""Where a run's stylizer comes from: the user's file, the run's own folder, the cache, or a fit on the source domains.

Comes in: a recipe, a pool and its source domains; goes out: a Stylizer on the device that trains. A fit is kept in the
cache by content, so that all runs over the same source domains share it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock
import numpy as np
import torch

from triplee.data.folder import VAL
from triplee.data.pool import Pool
from triplee.engine.style_fit import FitStopped, Progress, StyleFit, fit_stylizer, judge_stylizer
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import load_stylizer, read_stylizer, write_stylizer
from triplee.runfolder import unwritable, write_atomically
from triplee.settings import InputError, Recipe, cache_folder

VERSION = 1  # of what a fit does: the results of another are not taken from the cache


def images_to_fit(pool: Pool, domains: Sequence[str]) -> np.ndarray:
    """The images of the source domains, without those that the data set itself keeps for validation.

    Where it keeps none, validation images are drawn by seed; a fit, which knows no labels, then sees all images, so
    that one serves all seeds.
    """
    chosen = [pool.domains.index(name) for name in domains]
    return np.flatnonzero(np.isin(pool.domains_N, chosen) & (pool.split_N != VAL))


def fit_for_domains(
    pool: Pool, domains: Sequence[str], fit: StyleFit, device: torch.device, on_progress: Progress
) -> tuple[Path, bool]:
    """Where the stylizer of such a fit lies, and whether it was fitted just now."""
    index_N = images_to_fit(pool, domains)
    if not len(index_N):
        raise InputError(f"{pool.name} has no images to fit a stylizer on: add a source domain, or images to train on")
    facts = {
        **fit.fingerprint(),
        "device": device.type,
        "domains": sorted(domains),
        "size": pool.images_NCHW.shape[2],
        "data_fingerprint": pool.fingerprint,
    }
    key = hashlib.blake2b(json.dumps([VERSION, facts], sort_keys=True).encode(), digest_size=8).hexdigest()
    path = cache_folder() / "stylizers" / f"{fit.encoder}-{key}.safetensors"
    with _alone_with(path, on_progress):
        if _is_whole(path):
            return path, False
        stylizer = fit_stylizer(pool.images_NCHW, index_N, fit, device, on_progress)
        facts |= judge_stylizer(stylizer, pool.images_NCHW, index_N, device)
        write_stylizer(path, stylizer, {**facts, "data": pool.name, "root": pool.root})
        return path, True


@contextmanager
def _alone_with(path: Path, on_progress: Progress) -> Iterator[None]:
    """Wait for another process that is just fitting the same; `on_progress` hears of no steps meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path.with_suffix(".lock"))
        while True:
            try:
                lock.acquire(timeout=0.5)
                break
            except filelock.Timeout:
                if on_progress(0, 1):
                    raise FitStopped from None
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _is_whole(path: Path) -> bool:
    try:
        read_stylizer(path)
    except InputError:
        return False
    return True


def find_stylizer(
    recipe: Recipe,
    pool: Pool,
    domains: Sequence[str],
    own_file: Path,
    device: torch.device,
    on_progress: Progress,
) -> Stylizer:
    """The recipe's stylizer, frozen, on the device. A fitted one is kept in `own_file`, the run's."""
    if recipe.stylizer != "fit":
        return load_stylizer(recipe.stylizer).to(device)
    if not own_file.exists():
        fitted, _ = fit_for_domains(pool, domains, StyleFit.for_recipe(recipe), device, on_progress)
        write_atomically(own_file, fitted.read_bytes())
    elif not _is_whole(own_file):
        raise InputError(f"{own_file} is damaged: remove it, and it is fitted again")
    return load_stylizer(own_file).to(device)
