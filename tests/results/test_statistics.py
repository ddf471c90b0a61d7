"""Means, standard errors and paired intervals, against SciPy's own tests."""

import numpy as np
import pytest
from scipy import stats

from triplee.results.statistics import estimate, mean_by_seed, paired_difference

OURS, BASE = {0: 81.2, 1: 80.1, 2: 82.9}, {2: 78.0, 1: 79.5, 0: 77.7}


def test_mean_and_standard_error() -> None:
    found = estimate(OURS)
    assert found.mean == pytest.approx(np.mean(list(OURS.values())))
    assert found.standard_error == pytest.approx(stats.sem(list(OURS.values())))
    low, high = found.interval() or (0, 0)
    oracle = stats.t.interval(0.95, 2, found.mean, found.standard_error)
    assert (low, high) == pytest.approx(oracle)


def test_differences_are_taken_seed_by_seed() -> None:
    found = paired_difference(OURS, BASE)
    seeds = sorted(OURS)
    oracle = stats.ttest_rel([OURS[s] for s in seeds], [BASE[s] for s in seeds])
    interval = oracle.confidence_interval(0.95)
    assert found.interval() == pytest.approx((interval.low, interval.high))
    assert found.mean == pytest.approx(np.mean([OURS[s] - BASE[s] for s in seeds]))


def test_one_seed_has_no_spread() -> None:
    found = estimate({0: 70.0})
    assert (found.mean, found.standard_error, found.interval()) == (70.0, None, None)


def test_the_average_is_over_columns_of_one_seed() -> None:
    assert mean_by_seed([{0: 10.0, 1: 20.0}, {1: 40.0, 0: 30.0}]) == {0: 20.0, 1: 30.0}
