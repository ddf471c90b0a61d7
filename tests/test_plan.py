"""EReplayD's parts and EReplayB's batches."""

import numpy as np
import pytest

from triplee import PartSampler
from triplee.plan import plan_epoch, split_parts
from triplee.settings import InputError, make_recipe


@pytest.mark.parametrize("num_parts", range(1, 8))
@pytest.mark.parametrize("num_samples", [7, 50, 1001])
def test_parts_are_disjoint_cover_all_and_are_even(num_samples: int, num_parts: int) -> None:
    for epoch in range(3):
        parts = split_parts(num_samples, num_parts, seed=3, epoch=epoch)
        assert sorted(np.concatenate(parts).tolist()) == list(range(num_samples))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_parts_are_new_every_epoch_and_equal_for_equal_keys() -> None:
    for num_parts in range(2, 8):
        first = split_parts(500, num_parts, seed=1, epoch=0)
        again = split_parts(500, num_parts, seed=1, epoch=0)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        for other in (split_parts(500, num_parts, seed=1, epoch=1), split_parts(500, num_parts, seed=2, epoch=0)):
            assert all(set(a.tolist()) != set(b.tolist()) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("num_samples, batch_size", [(10, 4), (9, 4), (3, 4), (400, 64), (5, 1)])
def test_a_member_passes_once_over_its_part_in_even_batches(num_samples: int, batch_size: int) -> None:
    train_N = np.arange(100, 100 + num_samples)
    recipe = make_recipe({"batch_size": batch_size, "members": 2})
    plans = [plan_epoch(train_N, recipe, 0, member, 5) for member in range(2)]
    assert sorted(np.concatenate([plan.order_S for plan in plans]).tolist()) == train_N.tolist()
    for plan in plans:
        sizes = np.diff(plan.bounds)
        assert plan.bounds[0] == 0 and plan.bounds[-1] == len(plan.order_S)
        assert sizes.max() <= batch_size and sizes.max() - sizes.min() <= 1
        assert plan.num_steps == -(-len(plan.order_S) // batch_size)


def test_the_traditional_ensemble_sees_everything_in_orders_of_its_own() -> None:
    recipe = make_recipe({"ensemble": "whole"})
    orders = [plan_epoch(np.arange(60), recipe, 0, member, 0).order_S for member in range(3)]
    assert all(sorted(order.tolist()) == list(range(60)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])


def test_part_sampler_is_the_engines_split() -> None:
    samplers = [PartSampler(101, 4, part, seed=9) for part in range(4)]
    for epoch in (0, 7):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        parts = split_parts(101, 4, 9, epoch)
        assert [list(sampler) for sampler in samplers] == [part.tolist() for part in parts]
        assert [len(sampler) for sampler in samplers] == [len(part) for part in parts]


@pytest.mark.parametrize("arguments", [(3, 4, 0), (10, 0, 0), (10, 2, 2), (10, 2, -1)])
def test_part_sampler_refuses_what_cannot_be(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(InputError):
        PartSampler(*arguments)
