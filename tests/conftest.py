"""Shared by all tests: one thread per process (tests run two at a time), a cache of their own, small real data."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from PIL import Image

from triplee.data.digits import load_digits
from triplee.data.load import load_data
from triplee.data.pool import Pool

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All tests of a session share one cache, which is not the user's."""
    # With several workers the parent of the base folder is common to them: the digits are built once.
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    os.environ["TRIPLEE_CACHE"] = str(shared / "cache")


@pytest.fixture(scope="session")
def digits() -> Pool:
    return load_digits(32)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three domains × three classes × 20 images: bars of three directions in three colour schemes, 16×16."""
    root = tmp_path_factory.mktemp("small")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:16, :16]
    stripes = {"across": y // 3 % 2, "down": x // 3 % 2, "slanting": (x + y) // 3 % 2}
    for d, domain in enumerate(("red", "green", "blue")):
        for name, stripe in stripes.items():
            folder = root / domain / name
            folder.mkdir(parents=True)
            for k in range(20):
                pixels = rng.integers(0, 60, (16, 16, 3))
                pixels[..., d] += (stripe * rng.integers(90, 190)).astype(int)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k:02}.png")
    return root


@pytest.fixture(scope="session")
def small(small_folder: Path) -> Pool:
    return load_data(str(small_folder), 16)


@pytest.fixture(scope="session")
def small_32(small_folder: Path) -> Pool:
    return load_data(str(small_folder), 32)


@pytest.fixture
def triplee() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The real command in a real process."""

    def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "triplee.cli", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]

    return run
