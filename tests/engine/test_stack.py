"""The stack: members alone and together, views by the book, deterministic."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack, native_precision
from triplee.nets.network import Network
from triplee.settings import Recipe, make_recipe

CPU = torch.device("cpu")


def make_stack(pool: Pool, chosen: list[int], precision: str = "float32", seed: int = 0, **values: object) -> Stack:
    recipe = make_recipe({"image_size": 16, **values})
    train_N = split_pool(pool, "blue", seed).train_N
    specs = [MemberSpec(recipe, seed, k, train_N, len(pool.classes)) for k in chosen]
    return Stack(specs, pool.images_NCHW, pool.labels_N, CPU, precision)


def network_of(stack: Stack, member: int) -> Network:
    return stack.executors[member].members[member].network


def train(stack: Stack, epochs: int = 2) -> list[EpochProgress]:
    history = []
    for epoch in range(epochs):
        progress = EpochProgress.start(len(stack.specs))
        stack.train_epoch([epoch] * len(stack.specs), progress, lambda: False)
        history.append(progress)
    return history


@pytest.mark.parametrize("ensemble", ["parts", "whole"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_member_of_a_stack_equals_the_member_alone(small: Pool, ensemble: str, precision: str) -> None:
    """Tolerance zero: on one thread each, their arithmetic is the same."""
    together = make_stack(small, [0, 1, 2], precision, ensemble=ensemble)
    losses = train(together)
    for k in range(3):
        alone = make_stack(small, [k], precision, ensemble=ensemble)
        alone_losses = train(alone)
        assert [p.cross_entropy[0] for p in alone_losses] == [p.cross_entropy[k] for p in losses]
        for name, tensor in alone.member_tensors(0).items():
            assert torch.equal(tensor, together.member_tensors(k)[name]), (k, name)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_members_side_by_side_equal_members_in_turn(small: Pool) -> None:
    """Three members on two threads, a thread each: tolerance zero against one after another on one thread."""
    together = make_stack(small, [0, 1, 2], "bfloat16")
    losses, outputs = train(together), together.probabilities([0, 1, 2], np.arange(40))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    in_turn = make_stack(small, [0, 1, 2], "bfloat16")
    assert train(in_turn) == losses
    assert torch.equal(in_turn.probabilities([0, 1, 2], np.arange(40)), outputs)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_going_on_with_one_member_left_changes_nothing(small: Pool, precision: str) -> None:
    """A member has as many threads when the others are done: another number would add up in another order."""
    straight, stack = (make_stack(small, [0, 1], precision, members=2) for _ in range(2))
    expected = train(straight, 1)[0]
    progress, done = EpochProgress.start(2), [stack.specs[0].plan(0).num_steps, 0]
    alone = Stack(stack.specs[:1], small.images_NCHW, small.labels_N, CPU, precision)
    first = EpochProgress.start(1)
    alone.train_epoch([0], first, lambda: False)
    stack.load_member_tensors(0, alone.member_tensors(0))
    progress.steps, progress.cross_entropy[0], progress.contrast[0] = done, first.cross_entropy[0], first.contrast[0]
    stack.train_epoch([0, 0], progress, lambda: False)
    assert progress == expected
    for k in range(2):
        assert all(torch.equal(t, straight.member_tensors(k)[n]) for n, t in stack.member_tensors(k).items())


@pytest.mark.usefixtures("two_threads")
def test_a_member_whose_loss_is_not_finite_stops_alone(small: Pool) -> None:
    stack, straight = (make_stack(small, [0, 1, 2], replay=8) for _ in range(2))
    with torch.no_grad():
        network_of(stack, 0).classifier.weight.fill_(torch.nan)
    progress, expected = train(stack, 1)[0], train(straight, 1)[0]
    assert progress.failed == {0: 1} and progress.steps[0] == 1
    assert progress.cross_entropy[1:] == expected.cross_entropy[1:] and progress.steps[1:] == expected.steps[1:]
    assert torch.get_num_threads() == 2


def test_a_failure_of_the_computation_stops_all(small: Pool) -> None:
    stack = make_stack(small, [0, 1, 2])
    network_of(stack, 1).classifier = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError, match="shapes"):
        train(stack, 1)


def test_members_rest_where_they_have_no_epoch(small: Pool) -> None:
    stack, progress = make_stack(small, [0, 1]), EpochProgress.start(2)
    before = {n: t.clone() for n, t in stack.member_tensors(0).items()}
    stack.train_epoch([None, 4], progress, lambda: False)
    assert progress.steps == [0, stack.specs[1].plan(4).num_steps]
    assert all(torch.equal(t, before[n]) for n, t in stack.member_tensors(0).items())


def test_members_of_different_runs_share_a_stack(small: Pool) -> None:
    """Targets, seeds and recipes may differ within a stack: nothing leaks from one member to the next."""
    recipes = [make_recipe({"image_size": 16}), make_recipe({"image_size": 16, "augment": "standard", "lr": 0.002})]
    specs = [
        MemberSpec(recipe, seed, 0, split_pool(small, target, seed).train_N, 3)
        for recipe, seed, target in zip(recipes, (0, 5), ("blue", "red"), strict=True)
    ]
    mixed = Stack(specs, small.images_NCHW, small.labels_N, CPU, "float32")
    train(mixed, 1)
    for k, spec in enumerate(specs):
        alone = Stack([spec], small.images_NCHW, small.labels_N, CPU, "float32")
        train(alone, 1)
        assert all(torch.equal(t, mixed.member_tensors(k)[n]) for n, t in alone.member_tensors(0).items())


def test_members_start_differently_and_from_the_seed(small: Pool) -> None:
    def first_weights(seed: int) -> list[torch.Tensor]:
        stack = make_stack(small, [0, 1], seed=seed)
        return [stack.member_weights(k)["backbone.layers.0.weight"] for k in range(2)]

    (a, b), (again, _), (other, _) = first_weights(0), first_weights(0), first_weights(1)
    assert torch.equal(a, again)
    assert not torch.equal(a, b) and not torch.equal(a, other)


def test_same_seed_same_numbers(small: Pool) -> None:
    one, two = make_stack(small, [0, 1], "bfloat16"), make_stack(small, [0, 1], "bfloat16")
    assert train(one) == train(two)
    for k in range(2):
        assert all(torch.equal(t, two.member_tensors(k)[n]) for n, t in one.member_tensors(k).items())


class Recorder(torch.nn.Module):
    """Stands in the way of a network's input and keeps what it sees."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        network = network_of(stack, 0)
        inner = network.features

        def features(images: torch.Tensor) -> torch.Tensor:
            self.seen.append(images.clone())
            return inner(images)

        network.features = features


def test_every_sample_appears_exactly_r_times_in_its_batch(small: Pool) -> None:
    stack = make_stack(small, [0], augment="none", batch_size=5, replay=3, members=2)
    recorder = Recorder(stack)
    train(stack, 1)
    plan = stack.specs[0].plan(0)
    assert len(recorder.seen) == plan.num_steps
    for views, start, stop in zip(recorder.seen, plan.bounds, plan.bounds[1:], strict=False):
        samples = plan.order_S[start:stop]
        assert len(set(samples.tolist())) == len(samples)
        assert torch.equal(views, small.images_NCHW[np.repeat(samples, 3)])


def test_validation_and_test_views_are_never_augmented(small: Pool) -> None:
    stack = make_stack(small, [0])
    recorder = Recorder(stack)
    index_N = np.array([5, 100, 17])
    stack.probabilities([0], index_N)
    assert torch.equal(torch.cat(recorder.seen), small.images_NCHW[index_N])


def test_training_only_ever_reads_source_training_images(small: Pool) -> None:
    """With every other image blanked out, training is the same: views, partners and labels."""
    recipe = make_recipe({"image_size": 16, "cross_image_probability": 0.5})
    split = split_pool(small, "blue", 0)
    images, labels = torch.zeros_like(small.images_NCHW), np.zeros_like(small.labels_N)
    images[split.train_N], labels[split.train_N] = small.images_NCHW[split.train_N], small.labels_N[split.train_N]
    spec = MemberSpec(recipe, 0, 0, split.train_N, 3)
    whole = Stack([spec], small.images_NCHW, small.labels_N, CPU, "float32")
    blanked = Stack([spec], images, labels, CPU, "float32")
    assert train(whole) == train(blanked)


def test_stopping_and_going_on_changes_nothing(small: Pool) -> None:
    straight = make_stack(small, [0, 1], "bfloat16")
    expected = train(straight, 1)[0]
    stack, progress = make_stack(small, [0, 1], "bfloat16"), EpochProgress.start(2)
    for _ in range(200):
        stack.train_epoch([0, 0], progress, lambda: True)  # stop after every single step
        saved = [{n: t.clone() for n, t in stack.member_tensors(k).items()} for k in range(2)]
        stack = make_stack(small, [0, 1], "bfloat16")
        for k in range(2):
            stack.load_member_tensors(k, saved[k])
    assert progress == expected
    assert all(torch.equal(t, straight.member_tensors(1)[n]) for n, t in stack.member_tensors(1).items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_averaged_weights_follow_the_trained_ones(small: Pool, precision: str) -> None:
    """Of three epochs with a window of two, by hand; they predict, are kept, and survive a checkpoint."""
    plain, stack = (
        make_stack(small, [0], precision, epochs=4),
        make_stack(small, [0], precision, epochs=4, average_share=0.5),
    )
    expected, index_N = {}, np.arange(60)
    for epoch, weight in enumerate((1.0, 0.5, 0.5)):
        for one in (plain, stack):
            one.train_epoch([epoch], EpochProgress.start(1), lambda: False)
        trained = plain.member_weights(0)
        expected = {
            n: t.clone() if epoch == 0 else expected[n].lerp(t, weight) for n, t in trained.items() if n[0] != "h"
        }
    assert all(torch.equal(plain.member_weights(0)[n], stack.executors[0].tensors(0).network[n]) for n in expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(stack.member_weights(0)[name], tensor, msg=name)
    outputs = stack.probabilities([0], index_N)
    assert not torch.equal(outputs, plain.probabilities([0], index_N))
    plain.load_member_tensors(0, {f"network.{n}": t for n, t in stack.member_weights(0).items()})
    assert torch.equal(outputs, plain.probabilities([0], index_N))
    again = make_stack(small, [0], precision, epochs=4, average_share=0.5)
    again.load_member_tensors(0, stack.member_tensors(0))
    assert torch.equal(outputs, again.probabilities([0], index_N))
    for one in (again, stack):
        one.train_epoch([3], EpochProgress.start(1), lambda: False)
    assert all(torch.equal(t, stack.member_tensors(0)[n]) for n, t in again.member_tensors(0).items())


def test_an_average_takes_an_epoch_in_once(small: Pool) -> None:
    """However often the epoch is stopped."""
    straight, stack = (make_stack(small, [0], epochs=6, average_share=0.5) for _ in range(2))
    progress = EpochProgress.start(1)
    train(straight, 2)
    train(stack, 1)
    for _ in range(100):
        stack.train_epoch([1], progress, lambda: True)
    assert all(torch.equal(t, straight.member_tensors(0)[n]) for n, t in stack.member_tensors(0).items())


def test_a_single_view_without_contrast_trains(small: Pool) -> None:
    """b·r = 1 is allowed without contrast; a last batch of one view with contrast has no batch statistics to use."""
    train(make_stack(small, [0], batch_size=1, replay=1, supcon_weight=0.0), 1)
    odd = make_stack(small, [0], batch_size=2, replay=1, members=1)
    odd.specs[0] = MemberSpec(odd.specs[0].recipe, 0, 0, odd.specs[0].train_N[:3], 3)
    progress = EpochProgress.start(1)
    odd.train_epoch([0], progress, lambda: False)
    assert progress.steps == [2] and np.isfinite(progress.cross_entropy[0])


def test_the_average_covers_a_share_of_the_epochs() -> None:
    recipe = make_recipe({"epochs": 40, "average_share": 0.1})
    assert recipe.averages and [recipe.average_weight(e) for e in (0, 1, 3, 4, 39)] == [1, 1 / 2, 1 / 4, 1 / 4, 1 / 4]
    short = make_recipe({"epochs": 10, "average_share": 0.1})
    assert not short.averages and [short.average_weight(e) for e in (0, 9)] == [1, 1]


def test_learning_rate_is_halved_every_step() -> None:
    recipe = make_recipe({"lr": 0.01})
    assert [recipe.learning_rate(e) for e in (0, 29, 30, 59, 60, 99)] == [0.01, 0.01, 0.005, 0.005, 0.0025, 0.00125]


def test_precision_is_the_recipes_or_the_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_precision(make_recipe({"precision": "float32"}), CPU) == "float32"
    assert native_precision(make_recipe({"precision": "bfloat16"}), CPU) == "bfloat16"
    for has_native, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has_native=has_native: has_native)
        assert native_precision(Recipe(), CPU) == expected
