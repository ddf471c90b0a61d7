"""What a network is tested with: batch norm's statistics must be those of its features, however small its batches."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from torch.optim.swa_utils import update_bn

from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack
from triplee.nets.network import Network, build_network
from triplee.plan import statistics_batches
from triplee.settings import make_recipe

EPOCHS = 4
RESNET = {"backbone": "resnet18", "image_size": 32, "members": 1, "epochs": EPOCHS, "weight_decay": 5e-4}


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """Bars of four directions in three colours, so faint that some hundred steps are needed to tell them apart."""
    root = tmp_path_factory.mktemp("bars")
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]
    stripes = {"across": y // 5 % 2, "down": x // 5 % 2, "rising": (x + y) // 7 % 2, "falling": (x - y) // 7 % 2}
    for d, domain in enumerate(("red", "green", "blue")):
        for name, stripe in stripes.items():
            folder = root / domain / name
            folder.mkdir(parents=True)
            for k in range(28):
                pixels = rng.integers(0, 120, (32, 32, 3))
                pixels[..., d] += (stripe * rng.integers(20, 130)).astype(int)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{k:02}.png")
    return load_data(str(root), 32)


def make_stack(pool: Pool, **values: object) -> Stack:
    """One member of b = 4, r = 4, 50 steps an epoch."""
    recipe = make_recipe({**RESNET, "lr": 3e-3, "precision": "float32", **values})
    spec = MemberSpec(recipe, 0, 0, split_pool(pool, "blue", 0).train_N, len(pool.classes))
    return Stack([spec], pool.images_NCHW, pool.labels_N, torch.device("cpu"), "float32")


def accuracy(network: Network, pool: Pool, index_N: np.ndarray) -> float:
    with torch.inference_mode():
        said = network.eval()(pool.images_NCHW[torch.from_numpy(index_N)]).argmax(1).numpy()
    return 100 * float((said == pool.labels_N[index_N]).mean())


@pytest.mark.slow
@pytest.mark.parametrize("average_share", [0.0, 0.5])
def test_what_is_kept_tests_as_well_as_statistics_taken_anew(bars: Pool, average_share: float) -> None:
    """Running averages of training's own batches lost 24 points here, on the mean of the epochs."""
    stack, kept, anew = make_stack(bars, average_share=average_share), [], []
    (spec,) = stack.specs
    network = build_network(spec.recipe, spec.num_classes, 0, 0)
    batches = [bars.images_NCHW[torch.from_numpy(part)] for part in np.array_split(spec.train_N[::-1].copy(), 2)]
    for epoch in range(EPOCHS):
        stack.train_epoch([epoch], EpochProgress.start(1), lambda: False)
        network.load_state_dict(stack.member_weights(0))
        kept.append(accuracy(network, bars, spec.train_N))
        update_bn(batches, network)
        anew.append(accuracy(network, bars, spec.train_N))
    stack.close()
    assert anew[-1] > 80, "it must have learned something"
    assert np.mean(kept) > np.mean(anew) - 1, f"{kept} as kept, {anew} with statistics taken anew"


def test_statistics_fit_the_weights_that_are_tested(bars: Pool) -> None:
    """Averaged weights have features of their own; those of a checkpoint are the ones that were tested."""
    stack = make_stack(bars, average_share=0.5)
    stack.specs[0] = spec = MemberSpec(stack.specs[0].recipe, 0, 0, stack.specs[0].train_N[:24], 4)
    for epoch in range(2):
        stack.train_epoch([epoch], EpochProgress.start(1), lambda: False)
    stack.close()
    tested = stack.member_weights(0)
    network = build_network(spec.recipe, 4, 0, 0)
    network.load_state_dict(tested)
    batches = statistics_batches(stack.executors[0].members[0].spec.train_N, 0)  # type: ignore[attr-defined]
    update_bn([bars.images_NCHW[torch.from_numpy(batch)] for batch in batches], network)
    for name, tensor in network.backbone.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(tested[f"backbone.{name}"], tensor, msg=name)
    saved = copy.deepcopy(stack.member_tensors(0))
    other = make_stack(bars, average_share=0.5)
    other.load_member_tensors(0, saved)
    other.close()
    index_N = np.arange(0, len(bars), 7)
    assert torch.equal(stack.probabilities([0], index_N), other.probabilities([0], index_N))


def test_the_images_are_many_in_large_batches_and_always_the_same() -> None:
    train_N = np.arange(100, 5100, 2)
    batches = statistics_batches(train_N, 3)
    assert [len(batch) for batch in batches] == [128] * 8
    assert len(set(np.concatenate(batches)) & set(train_N)) == 1024
    assert all(np.array_equal(a, b) for a, b in zip(batches, statistics_batches(train_N, 3), strict=True))
    assert not np.array_equal(batches[0], statistics_batches(train_N, 4)[0])
    assert [len(batch) for batch in statistics_batches(train_N[:130], 3)] == [65, 65]
    assert [len(batch) for batch in statistics_batches(train_N[:5], 3)] == [5]
