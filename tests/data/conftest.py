"""Shared by the tests of prepare: a cache of their own and a small folder."""

import time
from pathlib import Path

import pytest
from noise_images import save

from triplee.data import changes


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two domains, two classes, two images each: a/x/0.png … b/y/1.png, images 0 to 7."""
    for seed, name in enumerate(f"{d}/{c}/{i}.png" for d in "ab" for c in "xy" for i in range(2)):
        save(tmp_path / "data" / name, seed)
    return tmp_path / "data"


@pytest.fixture
def settled_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `root`, with files old enough for their times to be believed: 0.1 s here, which saves waiting 2 s."""
    monkeypatch.setattr(changes, "SETTLED_NS", 10**8)
    time.sleep(0.15)
    return root
