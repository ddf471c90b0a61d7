"""Real runs to look at: two methods, two targets, two seeds, trained once."""

from pathlib import Path

import pytest
import torch

from triplee.data.load import load_data
from triplee.data.split import split_pool
from triplee.engine.run_state import Run
from triplee.engine.train import train_runs
from triplee.recipes import find_recipe
from triplee.settings import make_recipe


class Nobody:
    def start(self, *_: object) -> None: ...
    def note(self, *_: object) -> None: ...
    def progress(self, *_: object) -> None: ...
    def epoch(self, *_: object) -> None: ...


@pytest.fixture(scope="session")
def some_runs(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs. Do not change it."""
    folder, pool = tmp_path_factory.mktemp("some") / "runs", load_data(str(small_folder), 16)
    runs = [
        Run(
            split_pool(pool, target, seed),
            make_recipe({"image_size": 16, "epochs": 3, **changes}, find_recipe(name)),
            folder / f"{name}-{target}-{seed}",
            name,
            seed,
        )
        for name, changes in (("digits-vanilla", {"batch_size": 16}), ("digits-triplee-fourier", {"members": 2}))
        for target in ("blue", "red")
        for seed in (0, 1)
    ]
    train_runs(pool, runs, observer=Nobody(), device=torch.device("cpu"))
    return folder
