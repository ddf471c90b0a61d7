"""What several seeds amount to: mean, standard error, and the paired difference from a baseline with its interval.

Comes in: accuracies by seed; goes out: an Estimate. All spread here is over seeds.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its standard error (none for a single seed)."""

    mean: float
    standard_error: float | None
    num_seeds: int

    def interval(self, level: float = 0.95) -> tuple[float, float] | None:
        """Student's t interval of the mean; none for a single seed."""
        if self.standard_error is None:
            return None
        from scipy.special import stdtrit  # slow to import

        reach = float(stdtrit(self.num_seeds - 1, (1 + level) / 2)) * self.standard_error
        return self.mean - reach, self.mean + reach


def estimate(by_seed: Mapping[int, float]) -> Estimate:
    values = list(by_seed.values())
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), error, len(values))


def paired_difference(by_seed: Mapping[int, float], baseline: Mapping[int, float]) -> Estimate:
    """Of two rows trained with the same seeds: seed by seed, what one is above the other."""
    return estimate({seed: value - baseline[seed] for seed, value in by_seed.items()})


def mean_by_seed(columns: list[Mapping[int, float]]) -> dict[int, float]:
    """The average column: for each seed the mean over columns."""
    return {seed: statistics.fmean(column[seed] for column in columns) for seed in columns[0]}
