"""A picture of what a stylizer does: contents down the side, styles along the top, each content in each style.

Comes in: a pool, a stylizer and numbers of images; goes out: a figure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from triplee.augment.style import StyleTable
from triplee.data.pool import Pool
from triplee.engine.windows import Windows
from triplee.nets.stylizer import Stylizer
from triplee.seeding import generator
from triplee.settings import InputError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

IMAGES_PER_DOMAIN = 2


def choose_images(pool: Pool, domains: Sequence[str], seed: int) -> np.ndarray:
    """Some images of each domain, drawn from the seed."""
    chosen = []
    for name in domains:
        if name not in pool.domains:
            raise InputError(f"unknown domain {name!r} in {pool.name}: {nearest(name, pool.domains)}")
        index_N = np.flatnonzero(pool.domains_N == pool.domains.index(name))
        rng = generator(seed, "style grid", pool.domains.index(name))
        chosen.append(rng.choice(index_N, min(IMAGES_PER_DOMAIN, len(index_N)), replace=False))
    return np.concatenate(chosen)


def draw_style_grid(
    pool: Pool, stylizer: Stylizer, contents: np.ndarray, styles: np.ndarray, strength: float
) -> "Figure":
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    device = next(stylizer.parameters()).device
    table = StyleTable(stylizer, Windows(pool.images_NCHW, device), np.unique(styles))
    shape = (len(contents) + 1, len(styles) + 1)
    figure = Figure(figsize=(1.1 * shape[1] + 0.4, 1.1 * shape[0] + 0.4), layout="constrained")
    axes = figure.subplots(*shape, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        for side in axis.spines.values():
            side.set_visible(False)
    each = np.arange(len(styles))
    for column, image in enumerate(styles):
        axes[0][column + 1].imshow(np.asarray(pool.images_NCHW[int(image)].movedim(0, 2)))
        axes[0][column + 1].set_title(pool.domains[pool.domains_N[image]], fontsize=7)
    for row, image in enumerate(contents):
        content = pool.images_NCHW[int(image)]
        axes[row + 1][0].imshow(np.asarray(content.movedim(0, 2)))
        axes[row + 1][0].set_ylabel(pool.domains[pool.domains_N[image]], fontsize=7)
        views = content.to(device).repeat(len(styles), 1, 1, 1)
        table.restyle_views(views, each, styles, np.full(len(styles), strength))
        for column, view in enumerate(views.cpu()):
            axes[row + 1][column + 1].imshow(np.asarray(torch.movedim(view, 0, 2)))
    figure.suptitle(f"rows: content, columns: style (strength {strength:g})", fontsize=9)
    return figure
