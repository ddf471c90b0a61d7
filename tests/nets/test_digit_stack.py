"""The batched digit network against the member it stands for: autograd's step on the Network itself.

Without a GPU Triton's interpreter carries the kernels out in float32, in a process of its own, where step and state
agree to rounding; on a GPU the kernels multiply in bfloat16, and the first step is compared as closely as that allows.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

from triplee.engine.losses import SupConLoss, replay_loss
from triplee.nets.network import PROJECTION_SIZE, Network, build_network
from triplee.settings import Recipe, make_recipe
from triton_interpreter import (
    DEVICE,
    INTERPRETED,
    ON_GPU,
    needs_triton,
    run_in_interpreter,
    runs_kernels,
    starts_interpreter,
)

DTYPE = torch.bfloat16 if ON_GPU else torch.float32
TOLERANCE = 0.03 if ON_GPU else 1e-4
STEPS, MEMBERS, VIEWS, CLASSES = 2, 2, 8, 5
SHARED_BYTES = 166912  # what a program of an A100 can have

pytestmark = needs_triton


@starts_interpreter
def test_all_of_this_file_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


class Trial:
    """Two members, two steps' tables, and the networks as they were before."""

    def __init__(self, slots: int | None = None, **values: object) -> None:
        from triplee.nets.digit_stack import DigitStack

        self.recipe = make_recipe({"image_size": 16, "batch_size": 2, "lr": 0.003, "temperature": 0.1, **values})
        size, generator = self.recipe.image_size, torch.Generator().manual_seed(0)
        self.networks = [build_network(self.recipe, CLASSES, seed, 0).to(DEVICE) for seed in range(MEMBERS)]
        self.stack = DigitStack(self.networks, size, VIEWS, DTYPE, DEVICE, slots)
        self.stack.rates[:] = torch.tensor(rates_of(self.recipe))
        self.images = torch.randint(256, (20, 3, size, size), dtype=torch.uint8, generator=generator).to(DEVICE)
        self.index = torch.randint(20, (STEPS, MEMBERS, VIEWS), generator=generator).to(DEVICE)
        samples = torch.randint(3, (STEPS, MEMBERS, VIEWS // 4), generator=generator)
        self.labels = samples.repeat_interleave(4, 2).to(DEVICE)
        self.counts = torch.full((STEPS, MEMBERS), VIEWS, dtype=torch.int32, device=DEVICE)
        self.counts[1, 0] = 4  # a batch of one sample less
        self.losses = torch.zeros(STEPS, MEMBERS, 2, device=DEVICE)

    def step(self, members: int = MEMBERS) -> None:
        self.stack.step(self.images, self.index, self.labels, self.counts, self.losses, members)

    def plain_step(
        self, optimizer: torch.optim.SGD, network: Network, step: int, member: int, dtype: torch.dtype = torch.float32
    ) -> list[float]:
        count = int(self.counts[step, member])
        views, labels = self.images[self.index[step, member, :count]], self.labels[step, member, :count]
        autocast = torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32)
        loss = replay_loss(network, views, labels, self.recipe, autocast)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        return [float(loss.cross_entropy.detach()), float(loss.contrast.detach())]


def rates_of(recipe: Recipe) -> tuple[float, ...]:
    return recipe.lr, recipe.momentum, recipe.weight_decay, recipe.supcon_weight, 1 / recipe.temperature


def sgd(network: Network, recipe: Recipe) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """By the length of the difference: single weights may differ more in bfloat16."""
    ours, theirs = ours.cpu().double(), theirs.cpu().double()
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-3))


@runs_kernels
@pytest.mark.parametrize(
    "values",
    [{"image_size": 20, "supcon_weight": 0.5}, {"supcon_weight": 0.0}],
    ids=["odd sides, half the contrast", "no contrast"],
)
def test_a_step_is_the_step_of_autograd(values: dict) -> None:
    """Losses, weights, running statistics and momenta, over two steps, the second with a smaller batch.

    On a GPU one step, which may be as far from float32 as autograd in bfloat16 is, and half as far again.
    """
    trial = Trial(**values)
    rounded = [copy.deepcopy(network) for network in trial.networks]
    optimizers = [sgd(network, trial.recipe) for network in trial.networks]
    for step in range(STEPS if INTERPRETED else 1):
        trial.step()
        for member, network in enumerate(trial.networks):
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                expected = trial.plain_step(optimizers[member], network, step, member)
            assert trial.losses[step, member].tolist() == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)
            weights, momenta, _ = trial.stack.state(member)
            assert weights.keys() == network.state_dict().keys()
            exact = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
            allowed = dict.fromkeys(exact, TOLERANCE)
            if ON_GPU:
                trial.plain_step(sgd(rounded[member], trial.recipe), rounded[member], step, member, torch.bfloat16)
                theirs = rounded[member].state_dict()
                allowed = {name: TOLERANCE + 1.5 * apart(theirs[name], tensor) for name, tensor in exact.items()}
            for name, tensor in exact.items():
                assert apart(weights[name], tensor) < allowed[name], name
            for name, parameter in network.named_parameters():
                # Batch norm takes any shift away: the gradient of this bias is rounding and no more.
                if not ON_GPU and name != "head.0.bias":
                    assert apart(momenta[name], optimizers[member].state[parameter]["momentum_buffer"]) < TOLERANCE, (
                        name
                    )


@runs_kernels
@pytest.mark.parametrize(("views", "count"), [(8, 1), (16, 16), (32, 20), (64, 64), (96, 90), (128, 128), (128, 100)])
def test_losses_of_many_views_are_those_of_autograd(views: int, count: int) -> None:
    """The losses' kernel by itself, in a table's second step, beside a member of all views: gradients, and zeros."""
    from triplee.nets.digit_head_kernels import losses
    from triplee.nets.digit_stack import loss_blocks

    weight, temperature, generator = 0.7, 0.1, torch.Generator().manual_seed(views)
    logits = torch.randn(MEMBERS, views, CLASSES, generator=generator).to(DEVICE)
    projections = 3 * torch.randn(MEMBERS, views, PROJECTION_SIZE, generator=generator).to(DEVICE)
    labels = torch.randint(CLASSES - 1, (STEPS, MEMBERS, views), generator=generator).to(DEVICE)
    labels[:, :, 0] = CLASSES - 1  # nothing else is of its class
    counts = torch.tensor([[0, 0], [count, views]], dtype=torch.int32, device=DEVICE)
    rates = torch.tensor([[0.0, 0.0, 0.0, weight, 1 / temperature]] * MEMBERS, device=DEVICE)
    sums = torch.zeros(STEPS, MEMBERS, 2, device=DEVICE)
    gradients = torch.full_like(logits, torch.nan), torch.full_like(projections, torch.nan)
    rows = max(16, 1 << (views - 1).bit_length())
    losses[(MEMBERS,)](
        *(torch.arange(MEMBERS, device=DEVICE), logits, projections, labels, counts, torch.tensor(1, device=DEVICE)),
        *(rates, sums, *gradients, MEMBERS, views, CLASSES, rows, 16, PROJECTION_SIZE),
        CONTRAST=True,
        **loss_blocks(rows),
    )
    for member, valid in enumerate((count, views)):
        inputs = [tensor[member].double().requires_grad_() for tensor in (logits, projections)]
        own = labels[1, member, :valid]
        cross_entropy = F.cross_entropy(inputs[0][:valid], own)
        contrast = SupConLoss(temperature)(inputs[1][:valid], own)
        (cross_entropy + weight * contrast).backward()
        assert sums[1, member].tolist() == pytest.approx([cross_entropy.item(), contrast.item()], rel=1e-5, abs=1e-6)
        for got, expected in zip(gradients, inputs, strict=True):
            assert apart(got[member], expected.grad) < 1e-5
            assert not got[member, valid:].any()


@starts_interpreter
@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_contrast_fits_shared_memory(rows: int, capability: int) -> None:
    """Compiled for a GPU that need not be there; an A100 has the least shared memory of the two."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from triplee.nets.digit_head_kernels import losses
    from triplee.nets.digit_stack import loss_blocks

    names, blocks = losses.arg_names, loss_blocks(rows)
    options = {"num_warps": blocks.pop("num_warps")}
    constants = {"ROWS": rows, "CLASSES": 16, "SIZE": PROJECTION_SIZE, "CONTRAST": True, **blocks}
    kinds = {"active": "*i64", "labels": "*i64", "step": "*i64", "counts": "*i32"}
    kinds |= dict.fromkeys(("members", "views", "classes"), "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(
        losses,
        {name: kinds.get(name, "*fp32") for name in names},
        {(names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert 0 < compiled.metadata.shared <= SHARED_BYTES


@runs_kernels
def test_members_that_rest_stay_as_they_are() -> None:
    """One of two rests; the other trains to the same bits as in a step of both, taken one after the other.

    What is loaded comes out again.
    """
    trial, both = Trial(), Trial(slots=1)
    before = trial.stack.state(0)
    trial.stack.active.copy_(torch.tensor([1, 0]))
    trial.step(members=1)
    both.step()
    for got, expected in ((trial.stack.state(0), before), (trial.stack.state(1), both.stack.state(1))):
        assert all(torch.equal(got[0][name], tensor) for name, tensor in expected[0].items())
        assert all(torch.equal(got[1][name], tensor) for name, tensor in expected[1].items())
    assert torch.equal(both.losses[0, 1], trial.losses[0, 1])
    assert int(both.stack.step_number) == int(trial.stack.step_number) == 1
    weights, momenta, _ = trial.stack.state(1)
    trial.stack.load(0, weights, momenta, {})
    again = trial.stack.state(0)
    assert all(torch.equal(again[0][name], tensor) for name, tensor in weights.items())
    assert all(torch.equal(again[1][name], tensor) for name, tensor in momenta.items())
    trial.networks[0].load_state_dict(weights)


@runs_kernels
def test_predictions_are_the_networks() -> None:
    trial = Trial()
    index = torch.tensor([3, 0, 19, 7, 7], device=DEVICE)
    logits = trial.stack.predict([1, 0], trial.images, index)
    for row, member in enumerate((1, 0)):
        with torch.no_grad():
            expected = trial.networks[member].eval()(trial.images[index])
        torch.testing.assert_close(logits[row], expected, rtol=TOLERANCE, atol=TOLERANCE / 10)


@runs_kernels
def test_averages_predict() -> None:
    """Of one member half of the way to its trained weights, of the other all of it."""
    trial = Trial()
    start = trial.stack.state(0)[0]
    trial.step()
    trial.stack.average({0: 0.5, 1: 1.0})
    states = [trial.stack.state(member) for member in range(MEMBERS)]
    for name, tensor in start.items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(states[0][2][name], (tensor + states[0][0][name]) / 2)
    assert all(torch.equal(states[1][2][name], tensor) for name, tensor in states[1][0].items())
    index = torch.arange(5, device=DEVICE)
    logits = trial.stack.predict([0, 1], trial.images, index)
    for network, state, got in zip(trial.networks, states, logits, strict=True):
        network.load_state_dict(state[2])
        with torch.no_grad():
            torch.testing.assert_close(got, network.eval()(trial.images[index]), rtol=TOLERANCE, atol=TOLERANCE / 10)


@runs_kernels
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=str)
def test_what_is_not_finite_reaches_the_loss(value: float) -> None:
    """Neither pooling nor ReLU may swallow it: the loss is where a failed member is noticed."""
    trial = Trial()
    weights, momenta, _ = trial.stack.state(0)
    weights["backbone.layers.3.weight"][5] = value
    trial.stack.load(0, weights, momenta, {})
    trial.step()
    assert not trial.losses[0, 0].isfinite().all() and trial.losses[0, 1].isfinite().all()
    assert not trial.stack.predict([0], trial.images, torch.arange(3, device=DEVICE)).isfinite().all()
