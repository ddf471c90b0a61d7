"""Both executors of a GPU against the CPU and against eager steps: same draws, same losses; memory; unequal epochs."""

import gc
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from observing import Silent
from torch.optim.swa_utils import update_bn

from triplee.augment import apply_draw
from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import batched, captured, gpu, style_fit, windows
from triplee.engine.batched import BatchedMembers
from triplee.engine.captured import CapturedMembers
from triplee.engine.epoch import EpochProgress, MemberSpec, MemberTensors, Share
from triplee.engine.member import Member
from triplee.engine.run_state import Run
from triplee.engine.stack import Stack
from triplee.engine.train import Interrupted, train_runs
from triplee.nets.network import build_network
from triplee.plan import statistics_batches
from triplee.runfolder import RunFolder
from triplee.settings import InputError, make_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
STEPS = 50  # of a trace
# What is trained how: the digit network in bfloat16 is batched, all else is captured member by member.
BATCHED = {"backbone": "digit-cnn", "image_size": 32, "batch_size": 4, "replay": 4}
CAPTURED = {"backbone": "resnet18", "image_size": 32, "batch_size": 4, "replay": 4, "lr": 1e-3, "flip": True}


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # float32 means float32 here
        yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def make_specs(pool: Pool, members: int = 3, sizes: tuple[int, ...] = (), **values: object) -> list[MemberSpec]:
    """Members on the sources of "blue"; `sizes` cuts the training images of each."""
    recipe = make_recipe({"members": members, **values})
    train_N = split_pool(pool, "blue", 0).train_N
    chosen = [train_N[: sizes[k]] if sizes else train_N for k in range(members)]
    return [MemberSpec(recipe, 0, k, chosen[k], len(pool.classes)) for k in range(members)]


def make_stack(pool: Pool, specs: list[MemberSpec], device: torch.device = GPU, precision: str = "bfloat16") -> Stack:
    return Stack(specs, pool.images_NCHW, pool.labels_N, device, precision)


def train(stack: Stack, epochs: int = 2) -> list[EpochProgress]:
    history = []
    for epoch in range(epochs):
        progress = EpochProgress.start(len(stack.specs))
        stack.train_epoch([epoch] * len(stack.specs), progress, lambda: False)
        history.append(progress)
    return history


class Plain:
    """One member in a plain loop, a step at a time."""

    def __init__(self, pool: Pool, spec: MemberSpec, device: torch.device, precision: str) -> None:
        self.member = Member(spec, device, precision)
        self.images, self.labels_N = pool.images_NCHW.to(device), torch.from_numpy(pool.labels_N).to(device)

    def steps(self, share: Share, first: int, stop: int) -> np.ndarray:
        """Losses (steps, 2) of some steps of an epoch."""
        self.member.set_rate(share.rate)
        losses = []
        for start, end in zip(share.bounds[first:stop], share.bounds[first + 1 : stop + 1], strict=True):
            index_V = share.index_V[start:end]
            views = apply_draw(self.images, index_V, share.draw[start:end])
            labels = self.labels_N[torch.from_numpy(index_V).to(self.labels_N.device)]
            losses.append(self.member.step(views, labels).tolist())
        return np.array(losses)


def eager_trace(pool: Pool, spec: MemberSpec, device: torch.device, precision: str, off: float = 0.0) -> np.ndarray:
    """Losses (STEPS, 2) of one member by itself, whose weights start `off` by that share of themselves."""
    plain, trace, epoch = Plain(pool, spec, device, precision), np.zeros((0, 2)), 0
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in plain.member.network.parameters():
            parameter.mul_(1 + off * torch.randn(parameter.shape, generator=noise).to(device))
    while len(trace) < STEPS:
        share = Share.of(spec, epoch)
        trace = np.concatenate([trace, plain.steps(share, 0, share.num_steps)])
        epoch += 1
    return trace[:STEPS]


def stack_trace(pool: Pool, spec: MemberSpec, precision: str) -> np.ndarray:
    """The same from a stack that is stopped after every chunk; chunks are made a single step long."""
    stack, trace, epoch = make_stack(pool, [spec], GPU, precision), [], 0
    while len(trace) < STEPS:
        progress = EpochProgress.start(1)
        sums = np.zeros(2)

        def note() -> bool:
            nonlocal sums
            now = np.array([progress.cross_entropy[0], progress.contrast[0]])  # noqa: B023
            if progress.steps[0] > note.steps:  # noqa: B023
                trace.append((now - sums).tolist())
                note.steps, sums = progress.steps[0], now  # noqa: B023
            return False

        note.steps = 0
        stack.train_epoch([epoch], progress, note)
        epoch += 1
    return np.array(trace[:STEPS])


@pytest.mark.parametrize("values", [CAPTURED, BATCHED], ids=["resnet", "digits"])
def test_captured_steps_are_those_of_eager_and_of_cpu(
    small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 steps in float32 with the 14 ops, whose bytes are equal everywhere; devices only add in another order.

    Two steps at a time from the same weights: a difference in the last bit is a tenth of the loss ten steps on.
    """
    monkeypatch.setattr(gpu, "CHUNK_BYTES", 1)
    spec = make_specs(small_32, members=1, ops="basic", **values)[0]
    stack, done, epoch = make_stack(small_32, [spec], GPU, "float32"), 0, 0
    plain = {"eager": Plain(small_32, spec, GPU, "float32"), "cpu": Plain(small_32, spec, CPU, "float32")}
    apart: dict[str, list[float]] = {f"{what}, {name}": [] for what in ("losses", "weights") for name in plain}
    while done < STEPS:
        share, progress = Share.of(spec, epoch), EpochProgress.start(1)
        while (first := progress.steps[0]) < share.num_steps:
            kinds = [{n: t.clone() for n, t in tensors.items()} for tensors in stack.executors[0].tensors(0)]
            before = MemberTensors(*kinds)
            sums = np.array([progress.cross_entropy[0], progress.contrast[0]])
            stack.train_epoch([epoch], progress, lambda: True)
            ours = np.array([progress.cross_entropy[0], progress.contrast[0]]) - sums
            after = stack.member_weights(0)
            for name, one in plain.items():
                one.member.load(before)
                theirs = one.steps(share, first, progress.steps[0]).sum(0)
                apart[f"losses, {name}"].append(float(np.abs(ours / theirs - 1).max()))
                learned = one.member.tensors().network
                moved = [(learned[n].to(GPU) - before.network[n]).double().norm() for n in before.momentum]
                missed = [(learned[n].to(GPU) - after[n]).double().norm() for n in before.momentum]
                apart[f"weights, {name}"].append(float(torch.stack(missed).norm() / torch.stack(moved).norm()))
            done += progress.steps[0] - first
        epoch += 1
    print({name: f"{max(values):.1e}" for name, values in apart.items()})
    assert all(max(apart[f"losses, {name}"]) < 5e-3 for name in plain)
    # A ReLU that a last bit opens here and not there moves some weights by a few percent of their way, now and then.
    assert all(np.median(apart[f"weights, {name}"]) < 5e-3 for name in plain)
    assert all(max(apart[f"weights, {name}"]) < 0.2 for name in plain)


@pytest.mark.parametrize("values", [CAPTURED, BATCHED], ids=["resnet", "digits"])
def test_captured_traces_are_those_of_eager_and_of_cpu(
    small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 steps left to themselves: as near as the CPU is to itself when its weights start a millionth off."""
    monkeypatch.setattr(gpu, "CHUNK_BYTES", 1)
    spec = make_specs(small_32, members=1, ops="basic", **values)[0]
    captured, eager = stack_trace(small_32, spec, "float32"), eager_trace(small_32, spec, GPU, "float32")
    on_cpu, off = (eager_trace(small_32, spec, CPU, "float32", off) for off in (0.0, 1e-6))
    own = np.abs(off / on_cpu - 1).mean()
    for name, trace in (("eager", eager), ("cpu", on_cpu)):
        apart = np.abs(captured / trace - 1)
        print(f"{name}: first 3 steps {apart[:3].max():.1e}, mean of 50 {apart.mean():.1e}; cpu with itself {own:.1e}")
        assert apart[:2].max() < 1e-3
        assert apart.mean() < 2 * own + 1e-3


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_bfloat16_is_as_near_to_float32_as_torchs(
    small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 steps: at most twice as far from the CPU's float32 as the CPU's bfloat16, which runs none of our kernels."""
    monkeypatch.setattr(gpu, "CHUNK_BYTES", 1)
    spec = make_specs(small_32, members=1, **values)[0]
    stack = stack_trace(small_32, spec, "bfloat16")
    exact, rounded = (eager_trace(small_32, spec, CPU, precision) for precision in ("float32", "bfloat16"))
    ours, theirs = (np.abs(trace - exact) for trace in (stack, rounded))
    print("ours", ours.mean(0), ours.max(0), "torch's", theirs.mean(0), theirs.max(0))
    assert (ours[0] <= 2 * theirs[0] + 0.02).all()
    assert (ours.mean(0) <= 2 * theirs.mean(0) + 0.02).all()


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_unequal_epochs_neither_wait_nor_leak(small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of a stack of unequal ones, in several chunks, against the same member alone."""
    monkeypatch.setattr(gpu, "CHUNK_BYTES", 16 * 3 * 32 * 32 * 3 * 4)
    specs = make_specs(small_32, sizes=(41, 97, 60), **values)
    together = make_stack(small_32, specs)
    histories = train(together)
    assert histories[0].steps == [spec.plan(0).num_steps for spec in specs]
    for k, spec in enumerate(specs):
        alone = make_stack(small_32, [spec])
        expected = [progress.cross_entropy[0] for progress in train(alone)]
        tolerance = 0 if values is BATCHED else 2e-2  # cuDNN may choose another algorithm
        np.testing.assert_allclose([p.cross_entropy[k] for p in histories], expected, rtol=tolerance)
        outputs = together.probabilities([k], np.arange(100))
        torch.testing.assert_close(outputs, alone.probabilities([0], np.arange(100)), atol=5 * tolerance, rtol=0)


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_members_rest_stop_and_go_on(small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """One member rests; the other is stopped after each chunk, saved, loaded into a new stack and goes on."""
    monkeypatch.setattr(gpu, "CHUNK_BYTES", 16 * 3 * 32 * 32 * 2 * 4)
    specs = make_specs(small_32, members=2, **values)
    straight, stack = make_stack(small_32, specs), make_stack(small_32, specs)
    before = {n: t.clone() for n, t in straight.member_tensors(0).items()}
    expected = EpochProgress.start(2)
    straight.train_epoch([None, 3], expected, lambda: False)
    assert all(torch.equal(t, before[n]) for n, t in straight.member_tensors(0).items())
    progress, parts = EpochProgress.start(2), 0
    while progress.steps[1] < specs[1].plan(3).num_steps:
        stack.train_epoch([None, 3], progress, lambda: True)
        saved = [{n: t.clone() for n, t in stack.member_tensors(k).items()} for k in range(2)]
        stack, parts = make_stack(small_32, specs), parts + 1
        for k in range(2):
            stack.load_member_tensors(k, saved[k])
    assert parts > 1
    tolerance = 1e-5 if values is BATCHED else 2e-2
    np.testing.assert_allclose(progress.cross_entropy, expected.cross_entropy, rtol=tolerance)
    for name, tensor in straight.member_tensors(1).items():
        torch.testing.assert_close(tensor.cpu(), stack.member_tensors(1)[name].cpu(), rtol=0.05, atol=0.02, msg=name)


def test_images_that_do_not_consist_of_words_train(small_folder: Path) -> None:
    """Picked byte by byte; at a rate so small that the contrast tells the views from others and little else."""
    pool = load_data(str(small_folder), 33)
    specs = make_specs(pool, members=2, ops="basic", **{**CAPTURED, "image_size": 33, "lr": 1e-6})
    stack = make_stack(pool, specs, GPU, "float32")
    assert stack.executors[0].words.dtype == torch.uint8  # pyright: ignore[reportAttributeAccessIssue]
    ours = train(stack, epochs=1)[0]
    on_cpu = train(make_stack(pool, specs, CPU, "float32"), epochs=1)[0]
    assert ours.steps == on_cpu.steps
    np.testing.assert_allclose(ours.contrast, on_cpu.contrast, rtol=1e-3)


@pytest.mark.parametrize("weight", [1.0, 0.0], ids=["contrast", "no contrast"])
@pytest.mark.parametrize(("b", "r"), [(4, 8), (4, 16), (16, 8), (16, 16)], ids=lambda value: str(value))
def test_digit_steps_of_any_size_train(small_32: Pool, b: int, r: int, weight: float) -> None:
    """Batched as long as a program holds the views, and one by one beyond that: losses of the first epoch."""
    sizes = {"batch_size": b, "replay": r, "supcon_weight": weight}
    specs = make_specs(small_32, members=2, ops="basic", ensemble="whole", **{**BATCHED, **sizes})
    stack = make_stack(small_32, specs)
    assert isinstance(stack.executors[0], BatchedMembers if b * r <= 128 else CapturedMembers)
    ours = train(stack, epochs=1)[0]
    on_cpu = train(make_stack(small_32, specs, CPU, "float32"), epochs=1)[0]
    assert ours.steps == on_cpu.steps
    np.testing.assert_allclose(ours.cross_entropy, on_cpu.cross_entropy, rtol=0.05)
    np.testing.assert_allclose(ours.contrast, on_cpu.contrast, rtol=0.05)


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_averages_are_taken_over_epochs_and_survive_a_checkpoint(small_32: Pool, values: dict) -> None:
    """Weights after three epochs by hand from the stack's own; a new stack goes on from the saved one."""
    recipe = {**values, "epochs": 4, "average_share": 0.5, "members": 2}
    specs = make_specs(small_32, **recipe)
    stack, expected = make_stack(small_32, specs), {}
    for epoch, weight in enumerate((1.0, 0.5, 0.5)):
        stack.train_epoch([epoch] * 2, EpochProgress.start(2), lambda: False)
        network = stack.executors[1].tensors(1).network
        trained = {n: t.clone().cpu() for n, t in network.items() if t.is_floating_point() and n[:4] != "head"}
        expected = {n: expected[n].lerp(t, weight) if epoch else t for n, t in trained.items()}
    kept = stack.member_weights(1)
    for name, tensor in expected.items():
        if "running" not in name:
            torch.testing.assert_close(kept[name].cpu(), tensor, rtol=1e-4, atol=1e-6, msg=name)
    again = make_stack(small_32, specs)
    for k in range(2):
        again.load_member_tensors(k, {n: t.clone() for n, t in stack.member_tensors(k).items()})
    one, other = (s.probabilities([0, 1], np.arange(60)) for s in (stack, again))
    assert torch.equal(one, other)
    alone = make_stack(small_32, specs)
    alone.load_member_tensors(1, {f"network.{n}": t for n, t in kept.items()})
    torch.testing.assert_close(alone.probabilities([1], np.arange(60))[0], one[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("average_share", [0.0, 0.5])
def test_captured_members_are_tested_with_the_statistics_of_their_features(
    small_32: Pool, average_share: float
) -> None:
    """As torch's own helper gathers them, on the CPU in float32."""
    specs = make_specs(small_32, **{**CAPTURED, "epochs": 4, "average_share": average_share, "members": 2})
    stack = make_stack(small_32, specs)
    train(stack)
    kept = stack.member_weights(1)
    network = build_network(specs[1].recipe, specs[1].num_classes, 0, 1)
    network.load_state_dict(kept)
    batches = statistics_batches(specs[1].train_N, specs[1].seed)
    update_bn([small_32.images_NCHW[torch.from_numpy(batch)] for batch in batches], network)
    for name, tensor in network.backbone.state_dict().items():
        if "running" in name:
            missed = (kept[f"backbone.{name}"].cpu() - tensor).norm()
            assert missed <= 0.03 * tensor.norm() + 1e-3, name  # bfloat16 through up to 17 layers


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_a_loss_that_is_not_finite_stays_with_its_member(small_32: Pool, values: dict) -> None:
    specs = make_specs(small_32, **values)
    stack = make_stack(small_32, specs)
    broken = {n: t.clone() for n, t in stack.member_tensors(1).items()}
    name = "network.backbone.layers.3.weight" if values is BATCHED else "network.backbone.conv1.weight"
    broken[name].fill_(torch.nan)  # deep inside: pooling and ReLU must let it through
    stack.load_member_tensors(1, broken)
    progress = train(stack, 1)[0]
    assert progress.failed == {1: 1}
    assert progress.steps[0] == specs[0].plan(0).num_steps and np.isfinite(progress.cross_entropy[0])


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_memory_does_not_grow(small_32: Pool, values: dict) -> None:
    """Over more than 1,000 replays; what libraries take for themselves once, a stream at a time, is there before."""
    specs = make_specs(small_32, members=1, epochs=60, **values)
    stack = make_stack(small_32, specs)
    train(stack, 2)
    stack.probabilities([0], np.arange(50))
    before, steps = torch.cuda.memory_allocated(), 0
    for epoch in range(2, 50):
        progress = EpochProgress.start(1)
        stack.train_epoch([epoch], progress, lambda: False)
        stack.probabilities([0], np.arange(50))
        steps += progress.steps[0]
    assert steps > 1000
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_a_student_learns_in_a_captured_step(small_32: Pool, values: dict) -> None:
    """The outputs of a network of its own: after a few epochs the student says what it says."""
    recipe = make_recipe({"members": 1, "epochs": 40, **values, "supcon_weight": 0.0, "augment": "none"})
    teaching = build_network(recipe, 3, 7, 0).to(GPU).eval()

    @torch.no_grad()
    def teacher(views: torch.Tensor) -> torch.Tensor:
        return (teaching(views) * 1000).softmax(1)  # a classifier starts near zero

    train_N = split_pool(small_32, "blue", 0).train_N
    stack = make_stack(small_32, [MemberSpec(recipe, 0, 0, train_N, 3, teacher=teacher)])
    first, *_, last = (progress.cross_entropy[0] for progress in train(stack, 30))
    said = teacher(small_32.images_NCHW[train_N].to(GPU)).argmax(1)
    agree = (stack.probabilities([0], train_N)[0].argmax(1) == said).float().mean()
    print(f"cross-entropy {first:.2f} to {last:.2f}, agrees on {agree:.2f}")
    assert last < first and agree > 0.8


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_two_stacks_in_one_process(small_32: Pool, values: dict) -> None:
    specs = make_specs(small_32, **values)
    first, second = make_stack(small_32, specs), make_stack(small_32, specs)
    first_losses, second_losses = [], []
    for _ in range(2):  # in turn, so that each finds its own weights again
        first_losses.append(train(first, 1)[0].cross_entropy)
        second_losses.append(train(second, 1)[0].cross_entropy)
    assert first_losses[0] != first_losses[1]
    np.testing.assert_allclose(first_losses, second_losses, rtol=1e-5 if values is BATCHED else 5e-2)


def test_too_little_memory_means_fewer_streams(small_32: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six members on six streams do not fit: the stack says so and trains on fewer, to the same losses."""
    specs = make_specs(small_32, members=6, **{**CAPTURED, "batch_size": 32, "replay": 8, "ensemble": "whole"})

    def train_six(allowed: int | None = None) -> tuple[str, list[float], int]:
        """The stack's note, its losses and the bytes it took at most; `allowed`: how many it may."""
        gc.collect()
        torch.cuda.empty_cache()
        before, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
        if allowed is not None:
            torch.cuda.set_per_process_memory_fraction((before + allowed) / total)
        stack = make_stack(small_32, specs)
        losses = train(stack, 1)[0].cross_entropy
        return stack.note, losses, torch.cuda.max_memory_reserved() - before

    note, expected, on_six = train_six()
    assert note == ""
    with monkeypatch.context() as patch:  # known beforehand
        patch.setattr(captured, "activation_bytes", lambda device: 0)
        note, losses, on_one = train_six()
        assert "6 members on 1 stream:" in note
        np.testing.assert_allclose(losses, expected, rtol=5e-2)
    note, losses, _ = train_six(allowed=(on_one + on_six) // 2)  # met on the way
    assert "6 members on " in note
    np.testing.assert_allclose(losses, expected, rtol=5e-2)


def test_a_step_that_does_not_fit_is_one_clear_line(small_32: Pool) -> None:
    specs = make_specs(small_32, members=1, **{**CAPTURED, "batch_size": 32, "replay": 64})
    stack = make_stack(small_32, specs)
    allowed = torch.cuda.memory_reserved() + (64 << 20)
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    with pytest.raises(InputError, match="does not fit the GPU's memory: lower batch_size"):
        train(stack, 1)


def test_too_little_memory_means_fewer_at_a_time(small_32: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = make_specs(small_32, members=5, **BATCHED)
    expected = train(make_stack(small_32, specs), 1)[0]
    monkeypatch.setattr(batched, "activation_bytes", lambda device: 2 * batched.slot_bytes(specs[0]))
    tight = make_stack(small_32, specs)
    assert "5 members, 2 at a time" in tight.note
    assert train(tight, 1)[0] == expected


@pytest.mark.parametrize("values", [BATCHED, CAPTURED], ids=["batched", "captured"])
def test_images_that_do_not_fit_come_in_windows(small_32: Pool, values: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = make_specs(small_32, **values)
    resident = make_stack(small_32, specs)
    expected, outputs = train(resident, 1)[0], resident.probabilities([0, 1], np.arange(50))
    monkeypatch.setattr(windows, "SHARE_OF_FREE_MEMORY", 0.0)
    stack = make_stack(small_32, specs)
    np.testing.assert_allclose(train(stack, 1)[0].cross_entropy, expected.cross_entropy, rtol=5e-2)
    torch.testing.assert_close(stack.probabilities([0, 1], np.arange(50)), outputs, atol=0.1, rtol=0)


def test_runs_are_interrupted_and_resumed(small_32: Pool, tmp_path: Path) -> None:
    """Two runs in one stack, stopped in the middle, end as two that were not."""
    runs = [
        Run(split_pool(small_32, target, 0), make_recipe({"epochs": 6, "members": 2}), tmp_path / target)
        for target in ("red", "blue")
    ]

    class Stopping(Silent):
        def epoch(self, row: dict, name: str) -> None:
            if row["epoch"] == 3:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train_runs(small_32, runs, observer=Stopping(), device=GPU)
    results = train_runs(small_32, runs, observer=Silent(), device=GPU, resume=True)
    whole = [replace(run, out=tmp_path / f"{run.split.target}-whole") for run in runs]
    expected = train_runs(small_32, whole, observer=Silent(), device=GPU)
    assert [result["accuracy"] for result in results] == [result["accuracy"] for result in expected]


def test_runs_with_styles_of_their_own_share_a_stack(
    small_32: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two targets, two stylizers, and a run without any, together; fitted there."""
    monkeypatch.setattr(style_fit, "STEPS", 4)
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))
    runs = [
        Run(
            split_pool(small_32, target, 0),
            make_recipe({"epochs": 2, "ops": ops, **BATCHED}),
            tmp_path / f"{target}-{ops}",
        )
        for target, ops in (("blue", "style"), ("red", "both"), ("blue", "fourier"))
    ]
    observer = Silent()
    results = train_runs(small_32, runs, observer=observer, device=GPU)
    assert len(results) == 3 and sum("fitting" in note for note in observer.notes) == 2
    alone = [replace(runs[0], out=tmp_path / "alone")]
    train_runs(small_32, alone, observer=Silent(), device=GPU)
    one, two = (RunFolder(run.out).read_metrics()[0]["cross_entropy"] for run in (runs[0], alone[0]))
    assert one == pytest.approx(two, rel=1e-2)
