"""How many threads a member's step takes: what its spec says, chosen once and kept by the run."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from observing import Silent, StopAfter

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack
from triplee.engine.threads import choose_threads, quickest_threads
from triplee.engine.train import Interrupted, train_run
from triplee.runfolder import read_config
from triplee.settings import make_recipe

CPU = torch.device("cpu")
ONE = {"image_size": 16, "epochs": 2, "members": 1, "batch_size": 8, "replay": 2}


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("there", "members", "said", "expected"),
    [(4, 1, None, 4), (4, 1, 1, 1), (4, 1, 2, 2), (4, 2, None, 2), (4, 3, None, 1), (1, 1, 2, 2)],
)
def test_a_step_takes_as_many_threads_as_its_spec_says(
    small: Pool, there: int, members: int, said: int | None, expected: int
) -> None:
    """Without a word in the spec a run's members share what there is."""
    seen = set()

    def teacher(views: torch.Tensor) -> torch.Tensor:  # called within the step
        seen.add(torch.get_num_threads())
        return torch.full((len(views), 3), 1 / 3)

    torch.set_num_threads(there)
    recipe = make_recipe({**ONE, "members": members, "supcon_weight": 0.0})
    train_N = split_pool(small, "blue", 0).train_N
    specs = [MemberSpec(recipe, 0, k, train_N, 3, teacher=teacher, threads=said) for k in range(members)]
    stack = Stack(specs, small.images_NCHW, small.labels_N, CPU, "float32")
    stack.train_epoch([0] * members, EpochProgress.start(members), lambda: False)
    stack.close()
    assert seen == {expected} and torch.get_num_threads() == there


def test_the_quickest_number_of_threads_leaves_no_trace(small: Pool) -> None:
    spec = MemberSpec(make_recipe(ONE), 0, 0, np.arange(4), 3)
    torch.set_num_threads(1)
    assert quickest_threads(spec, small.images_NCHW, "float32") == 1
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    assert quickest_threads(spec, small.images_NCHW, "float32") in (1, 2)
    assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [({1: 1.0, 2: 0.6}, 2), ({1: 1.0, 2: 0.9}, 1), ({1: 1.0, 2: 3.0}, 1), ({1: 1.0, 2: 0.6, 4: 0.5, 8: 0.7}, 4)],
)
def test_more_threads_must_be_worth_it(seconds: dict[int, float], expected: int) -> None:
    assert choose_threads(seconds) == expected


def test_a_run_keeps_the_threads_it_began_with(small: Pool, tmp_path: Path) -> None:
    """And with them the bytes it ends with, however many cores it is resumed on."""
    split, recipe = split_pool(small, "blue", 0), make_recipe(ONE)
    torch.set_num_threads(2)
    with pytest.raises(Interrupted):
        train_run(small, split, recipe, out=tmp_path / "begun", observer=StopAfter(4), device=CPU)
    config = read_config(tmp_path / "begun")
    assert config["threads_each"] in (1, 2) and config["threads"] == 2
    ends = {}
    for threads_each in (1, 2):  # whichever was chosen
        for cores in (1, 2):
            out = tmp_path / f"{threads_each} on {cores}"
            shutil.copytree(tmp_path / "begun", out)
            (out / "config.yaml").write_text(yaml.safe_dump({**config, "threads_each": threads_each}))
            torch.set_num_threads(cores)
            train_run(small, split, recipe, out=out, observer=Silent(), device=CPU, resume=True)
            assert read_config(out)["threads_each"] == threads_each
            ends[threads_each, cores] = (out / "best" / "member-0.safetensors").read_bytes()
    assert ends[1, 1] == ends[1, 2] and ends[2, 1] == ends[2, 2]
    assert ends[1, 1] != ends[2, 1], "their number must matter, or the test could not fail"
