"""The one door to images: a data set's name or a folder in, a Pool out."""

import os
from collections.abc import Callable
from pathlib import Path

from triplee.data.pool import Pool
from triplee.data.prepare import load_folder
from triplee.settings import InputError, nearest

NAMES = ("digits",)


def load_data(
    data: str, image_size: int, skip_bad: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> Pool:
    """The pool of `data`: `digits`, or a folder `<domain>/<class>/<image>` (write ./digits for one of that name)."""
    if data == "digits":
        from triplee.data.digits import load_digits  # only here: a folder needs none of what the digits import

        return load_digits(image_size)
    folder = Path(data).expanduser()
    if not data or not os.access(folder, os.F_OK):
        raise InputError(f"data {data!r} is neither a known name nor an existing folder: {nearest(data, NAMES)}")
    # In full, so that a run finds its data again from another working folder.
    return load_folder(folder.absolute(), image_size, skip_bad, on_progress)
