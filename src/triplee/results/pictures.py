"""Pictures made of runs: what ESAug does to images, and how accuracy grew epoch by epoch.

Comes in: a pool and the rows of metrics.jsonl; goes out: a figure.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from triplee.augment import OPS, apply_op, fourier_mix
from triplee.data.pool import Pool
from triplee.data.split import Split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTH = 20  # at which the ops are shown


def draw_demo_picture(
    pool: Pool, split: Split, curves: Mapping[str, Sequence[Mapping[str, Any]]], title: str
) -> "Figure":
    """Views of one training image per source domain under every op, and the runs' accuracy on the target by epoch."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    columns = [*OPS, "fourier"]
    domains = [pool.domains.index(name) for name in split.source_domains]
    figure = Figure(figsize=(13, 6.4), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[len(domains), 3.4], squeeze=False).flat
    top.suptitle(f"One op per view: every op of ESAug at strength {STRENGTH} of 30", fontsize=11)
    axes = top.subplots(len(domains), len(columns), squeeze=False)
    samples = [split.train_N[pool.domains_N[split.train_N] == domain][7 * (k + 1)] for k, domain in enumerate(domains)]
    for row, sample in enumerate(samples):
        image, partner = pool.images_NCHW[sample], pool.images_NCHW[samples[(row + 1) % len(samples)]]
        views = [apply_op(name, image, STRENGTH) for name in OPS] + [fourier_mix(image[None], partner[None], 0.7)[0]]
        for column, (axis, view) in enumerate(zip(axes[row], views, strict=True)):
            axis.imshow(np.asarray(torch.movedim(view, 0, 2)))
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(columns[column], fontsize=7)
        axes[row][0].set_ylabel(pool.domains[domains[row]], fontsize=8)

    left, right = bottom.subplots(1, 2, sharex=True)
    for axis, key, what in (
        (left, "target_accuracy", f"held-out domain “{split.target}”"),
        (right, "val_accuracy", "source validation"),
    ):
        for name, rows in curves.items():
            axis.plot([row["epoch"] for row in rows], [row[key] for row in rows], marker="o", markersize=3, label=name)
        axis.set(xlabel="epoch", ylabel="accuracy (%)", title=what)
        axis.grid(alpha=0.3)
        axis.legend(loc="lower right")
    bottom.suptitle(title, fontsize=11)
    return figure
