"""Maps of features: each on a thread of its own, in the order of the features, the same as one by one."""

import os
import subprocess
import sys

import numpy as np
import pytest

from triplee.results.embedding import make_map, make_maps
from triplee.settings import InputError


def test_features_that_are_all_alike_have_no_map() -> None:
    for features in (np.zeros((300, 16)), np.ones((300, 16)), np.eye(3)):
        with pytest.raises(InputError, match="nothing to map"):
            make_map(features.astype(np.float32))


def test_maps_come_in_order_and_those_that_cannot_be_had_are_none() -> None:
    first, last = (np.random.default_rng(seed).random((20, 4), np.float32) for seed in (0, 1))
    maps = make_maps([first, np.zeros((20, 4), np.float32), last])
    assert maps[1] is None
    assert np.array_equal(maps[0], make_map(first)) and np.array_equal(maps[2], make_map(last))  # pyright: ignore[reportArgumentType]


COUNT_THREADS = """
import numpy as np
from threadpoolctl import threadpool_info
from triplee.results import embedding

def count_threads(_):
    import sklearn.manifold
    found = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"]
    return np.array(found)

embedding.make_map = count_threads
print(*np.concatenate(embedding.make_maps([np.zeros(1)] * 3)))
"""


def test_a_map_has_one_thread() -> None:
    """In a process that has not loaded scikit-learn yet, as a report's has not."""
    asked = [sys.executable, "-c", COUNT_THREADS]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    answer = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    assert set(answer.stdout.split()) == {"1"}
