"""Eight floats at once, against NumPy doing the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import njit

from triplee.augment.lanes import LANES, LINE, aligned, load, spread, spread_from, sqrt, store, turn, where_above

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}


def floats(seed: int, length: int = 5 * LANES) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=length).astype(np.float32)


@pytest.mark.parametrize("name", OPERATORS)
def test_arithmetic_is_that_of_numpy(name: str) -> None:
    function = OPERATORS[name]
    inner = njit(function)

    @njit
    def kernel(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        store(out, 7, inner(load(a, 3), load(b, 11)))

    a, b, out = floats(0), floats(1), floats(2)
    expected = out.copy()
    expected[7 : 7 + LANES] = function(a[3 : 3 + LANES], b[11 : 11 + LANES])
    kernel(a, b, out)
    assert np.array_equal(out, expected)


def test_roots_and_choices_lane_by_lane() -> None:
    @njit
    def kernel(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
        store(out, 0, sqrt(load(a, 0)))
        store(out, LANES, where_above(load(a, 0), load(b, 0), load(b, LANES), load(b, 2 * LANES)))

    a, b, out = np.abs(floats(0)), np.abs(floats(1)), floats(2)
    b[3] = a[3]  # not above
    kernel(a, b, out)
    assert np.array_equal(out[:LANES], np.sqrt(a[:LANES]))
    above = a[:LANES] > b[:LANES]
    assert 0 < above.sum() < LANES
    assert np.array_equal(out[LANES : 2 * LANES], np.where(above, b[LANES : 2 * LANES], b[2 * LANES : 3 * LANES]))


def test_one_number_in_all_lanes() -> None:
    @njit
    def kernel(a: np.ndarray, value: np.float32, out: np.ndarray) -> None:
        store(out, 0, spread(value))
        store(out, LANES, spread_from(a, 5))

    a, out = floats(0), floats(1, 2 * LANES)
    kernel(a, np.float32(1.25), out)
    assert np.array_equal(out, np.repeat(np.array([1.25, a[5]], np.float32), LANES))


def test_bytes_are_read_whole_and_written_to_the_nearest_level() -> None:
    @njit
    def kernel(levels: np.ndarray, values: np.ndarray, back: np.ndarray, out: np.ndarray) -> None:
        for at in range(0, len(levels), LANES):
            store(values, at, load(levels, at))
            store(out, at, load(back, at))

    levels = np.arange(256, dtype=np.uint8)
    values, out = np.zeros(256, np.float32), np.zeros(256, np.uint8)
    back = np.linspace(-40, 300, 256).astype(np.float32)
    back[:10] = [-0.5, 0.5, 1.5, 2.5, 254.5, 255.5, 255.49, -1e30, 1e30, 127.500008]
    kernel(levels, values, back, out)
    assert np.array_equal(values, levels)
    assert np.array_equal(out, np.clip(np.rint(back), 0, 255).astype(np.uint8))


@pytest.mark.parametrize("step", [LANES, 2 * LANES, 11])
def test_a_block_is_transposed_and_nothing_beside_it_moves(step: int) -> None:
    @njit
    def kernel(values: np.ndarray, step: int) -> None:
        turn(values, 3, step)

    values = floats(0, 3 + LANES * step)
    expected = values.copy()
    block = expected[3 : 3 + LANES * step].reshape(LANES, step)[:, :LANES]
    block[:] = block.T.copy()
    kernel(values, step)
    assert np.array_equal(values, expected)


def test_memory_begins_with_a_cache_line() -> None:
    kept = []
    for length in range(1, 60):
        kept.append(aligned(2, length))
        assert kept[-1].shape == (2, length) and kept[-1].ctypes.data % LINE == 0
        assert kept[-1].flags.c_contiguous and kept[-1].dtype == np.float32
