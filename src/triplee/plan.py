"""Which samples a member sees in an epoch, and in which batches: EReplayD's parts and EReplayB's order (Algorithm 1).

Comes in: the training indices and (seed, member, epoch); goes out: index arrays. Parts depend on (seed, epoch) alone,
so any worker computes its own without talking to the others, and a resumed run sees the same ones.
Axes: N training images, S samples in the order of visit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Sampler

from triplee.seeding import generator
from triplee.settings import InputError, Recipe

# Source validation was as good with 512 as with 4,096 images, in batches of 64 as of 256 (docs/choices.md#batch-norm).
STATISTICS_IMAGES = 1024
STATISTICS_BATCH = 128


def split_parts(num_samples: int, num_parts: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Shuffle 0..num_samples−1 and cut it into `num_parts` disjoint parts of equal size (±1)."""
    return np.array_split(generator(seed, "parts", epoch).permutation(num_samples), num_parts)


@dataclass(frozen=True)
class EpochPlan:
    """One member's epoch: pool indices in the order of visit, and where each batch begins (and the last one ends)."""

    order_S: np.ndarray
    bounds: np.ndarray

    @property
    def num_steps(self) -> int:
        return len(self.bounds) - 1


def plan_epoch(train_N: np.ndarray, recipe: Recipe, seed: int, member: int, epoch: int) -> EpochPlan:
    """One pass over the member's share, in batches of at most b samples whose sizes differ by at most one."""
    if recipe.ensemble == "parts":
        positions = split_parts(len(train_N), recipe.members, seed, epoch)[member]
    else:
        positions = generator(seed, "order", member, epoch).permutation(len(train_N))
    num_steps = -(-len(positions) // recipe.batch_size)
    bounds = np.arange(num_steps + 1) * len(positions) // num_steps
    return EpochPlan(train_N[positions], bounds)


def statistics_batches(train_N: np.ndarray, seed: int) -> list[np.ndarray]:
    """Training images, in large batches, whose features a network's batch norm is given the statistics of.

    The same in every epoch, and for all members: what differs between two tests are the weights alone.
    """
    chosen_N = train_N[generator(seed, "statistics").permutation(len(train_N))[:STATISTICS_IMAGES]]
    return np.array_split(chosen_N, -(-len(chosen_N) // STATISTICS_BATCH))


class PartSampler(Sampler[int]):
    """EReplayD for a DataLoader: the indices of one part, re-split whenever `set_epoch` names a new epoch."""

    def __init__(self, num_samples: int, num_parts: int, part: int, seed: int = 0) -> None:
        if not 1 <= num_parts <= num_samples:
            raise InputError(f"{num_samples} samples cannot be cut into {num_parts} parts")
        if not 0 <= part < num_parts:
            raise InputError(f"part {part} does not exist: parts are counted from 0 to {num_parts - 1}")
        self.num_samples, self.num_parts, self.part, self.seed = num_samples, num_parts, part, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(split_parts(self.num_samples, self.num_parts, self.seed, self.epoch)[self.part].tolist())

    def __len__(self) -> int:
        smaller, larger = divmod(self.num_samples, self.num_parts)
        return smaller + (self.part < larger)
