"""The one door to images: a data set's name or a folder in, a Pool out."""

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from triplee.data.catalog import benchmark_names, find_benchmark
from triplee.data.folder import ImageFolder, list_images
from triplee.data.locate import list_benchmark
from triplee.data.pool import Pool
from triplee.data.prepare import load_images
from triplee.data.split import check_target
from triplee.settings import InputError, data_root, nearest, user_path

EMBEDDED = "digits"
FOLDER_RECIPE = "pacs-resnet18-short"  # for pictures of anything, on a budget


def load_data(
    data: str,
    image_size: int,
    *,
    root: Path | None = None,
    skip_bad: bool = False,
    target: str | None = None,
    needed_domain: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Pool:
    """The pool of `data`: `digits`, a benchmark under `root`, or a folder `<domain>/<class>/<image>`.

    A `target` that is none of its domains is refused before the first image is decoded. Bad images are refused unless
    they may be skipped; where one domain alone is needed, those of the others may.
    """
    if data == EMBEDDED:
        from triplee.data.digits import DOMAINS, load_digits  # only here: a folder needs none of what digits import

        if target is not None:
            check_target(target, DOMAINS, data)
        return load_digits(image_size)
    folder = list_data(data, root)
    is_benchmark = data in benchmark_names()
    name = data if is_benchmark else str(folder.root)
    if target is not None:
        check_target(target, folder.domains, name)
        if len(folder.classes) == 1:
            raise InputError(f"{name} has one class, {folder.classes[0]!r}: add another one to tell it from")
    pool = load_images(folder, name, image_size, skip_bad, on_progress, needed_domain)
    return replace(pool, root=str((root or data_root()).absolute())) if is_benchmark else pool


def list_data(data: str, root: Path | None = None) -> ImageFolder:
    """The image files of a benchmark under `root` or of a folder (write ./pacs for a folder of a benchmark's name)."""
    if data in benchmark_names():
        return list_benchmark(find_benchmark(data), (root or data_root()).absolute())
    if data == EMBEDDED:
        raise InputError("the embedded digits are part of the program: there are no files to look at")
    folder = user_path(data)
    if not data or not os.access(folder, os.F_OK):
        names = [*_folders_like(folder), *known_names()]
        raise InputError(f"data {data!r} is neither a known name nor an existing folder: {nearest(data, names)}")
    # In full, so that a run finds its data again from another working folder.
    return list_images(folder.absolute())


def _folders_like(missing: Path) -> list[str]:
    """The folder beside it whose name is nearest, where one is near."""
    if not (missing.name and os.access(missing.parent, os.R_OK) and missing.parent.is_dir()):
        return []
    beside = [entry.name for entry in os.scandir(missing.parent) if entry.is_dir()]
    return [str(missing.with_name(name)) for name in difflib.get_close_matches(missing.name, beside, n=1)]


def known_names() -> list[str]:
    """What DATA may be besides a folder."""
    return [EMBEDDED, *benchmark_names()]


def default_recipe(data: str) -> str:
    """The recipe to take for `data` when none is named."""
    if data == EMBEDDED:
        return "digits-triplee-fourier"
    return find_benchmark(data).recipe if data in benchmark_names() else FOLDER_RECIPE
