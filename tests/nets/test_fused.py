"""Fused batch norm against torch's, in Triton's interpreter where there is no GPU."""

import copy

import pytest
import torch
from torch import Tensor, nn

from triplee.nets.fused import batch_norm
from triplee.nets.network import Network
from triplee.settings import make_recipe
from triton_interpreter import DEVICE, ON_GPU, needs_triton, run_in_interpreter, runs_kernels, starts_interpreter

pytestmark = needs_triton


@starts_interpreter
def test_all_of_this_file_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


def make_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, momentum=0.03)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2)
        norm.bias.normal_()
        norm.running_mean.normal_()
    return norm.to(DEVICE)


def gradients(y: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    wanted = [tensor for tensor in inputs if tensor is not None]
    weights = torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y)
    return list(torch.autograd.grad((y * weights).sum(), wanted))


@runs_kernels
@pytest.mark.parametrize("with_shortcut, relu", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(3, 64, 5, 7), (5, 128, 1, 1), (2, 64, 70, 61)], ids=str)
def test_outputs_gradients_and_statistics_are_torchs(shape: tuple[int, ...], with_shortcut: bool, relu: bool) -> None:
    from triplee.nets.norm_kernels import BatchNorm

    torch.manual_seed(0)
    x = (torch.randn(shape) + 30).to(DEVICE, memory_format=torch.channels_last)  # far from zero: squares would cancel
    shortcut = torch.randn(shape).to(DEVICE) if with_shortcut else None
    ours, theirs = (norm := make_norm(shape[1])), copy.deepcopy(norm).double()
    inputs = [None if tensor is None else tensor.requires_grad_() for tensor in (x, shortcut)]
    exact = [None if tensor is None else tensor.double() for tensor in inputs]
    y = BatchNorm.apply(*inputs, ours.weight, ours.bias, ours, relu)
    expected = theirs(exact[0]) + (0 if exact[1] is None else exact[1])
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].to(value.dtype), value, rtol=1e-5, atol=1e-5, msg=name)
    got = gradients(y, *inputs, ours.weight, ours.bias)
    wanted = gradients(expected, *exact, theirs.weight, theirs.bias)
    for one, other in zip(got, wanted, strict=True):
        assert (one - other).norm() <= 1e-3 * other.norm()


@runs_kernels
@pytest.mark.parametrize("with_shortcut, relu", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(3, 64, 5, 7), (5, 128, 1, 1), (2, 64, 70, 61)], ids=str)
def test_in_use_statistics_are_the_norms_own(shape: tuple[int, ...], with_shortcut: bool, relu: bool) -> None:
    from triplee.nets.norm_kernels import batch_norm_in_use

    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE)
    shortcut = torch.randn(shape, device=DEVICE) if with_shortcut else None
    norm = make_norm(shape[1]).eval()
    norm.running_var.uniform_(0.5, 2)
    before = copy.deepcopy(norm.state_dict())
    with torch.no_grad():
        expected = copy.deepcopy(norm).double()(x.double()) + (0 if shortcut is None else shortcut.double())
        y = batch_norm_in_use(norm, x, shortcut, relu)
        torch.testing.assert_close(y.double(), expected.relu() if relu else expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_a_network_in_use_is_as_near_to_float64_as_with_torchs() -> None:
    """And with gradients asked for it is torch's: the kernel has none in use."""
    network = Network(make_recipe({"backbone": "resnet18", "image_size": 64}), 3).to(DEVICE).eval()
    images = torch.randint(0, 256, (8, 3, 64, 64), dtype=torch.uint8, device=DEVICE)
    with torch.no_grad():
        network.estimate_statistics([images])
        with torch.autocast("cuda", torch.bfloat16):
            ours = network.eval().features(images)
    with torch.autocast("cuda", torch.bfloat16):
        theirs = network.features(images)
    exact = copy.deepcopy(network).double()
    wanted = exact.backbone(images.double() * exact.scale + exact.shift)  # with gradients: none of our kernels
    assert theirs.requires_grad and not ours.requires_grad
    assert (ours - wanted).norm() <= 1.2 * (theirs - wanted).norm()


@runs_kernels
def test_far_from_zero_the_variance_does_not_cancel() -> None:
    from triplee.nets.norm_kernels import BatchNorm

    torch.manual_seed(0)
    x, norm = torch.randn(1, 64, 90, 9, device=DEVICE) + 300, make_norm(64)
    exact = copy.deepcopy(norm).double()
    BatchNorm.apply(x, None, norm.weight, norm.bias, norm, True)
    exact(x.double())
    torch.testing.assert_close(norm.running_var.double(), exact.running_var, rtol=1e-5, atol=0)


@runs_kernels
def test_what_is_not_finite_goes_through() -> None:
    from triplee.nets.norm_kernels import BatchNorm

    x = torch.randn(2, 64, 4, 4, device=DEVICE)
    x[1, 5, 2, 2] = torch.nan
    norm = make_norm(64)
    y = BatchNorm.apply(x, None, norm.weight, norm.bias, norm, True)
    assert y[:, 5].isnan().all() and y[:, :5].isfinite().all()


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(16, 64, 112, 112), (16, 128, 28, 28), (16, 512, 7, 7), (8, 2048, 5, 5)], ids=str)
def test_usual_shapes_are_as_near_to_float64_as_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    norm = make_norm(shape[1])
    exact = copy.deepcopy(norm).double()
    x, shortcut = (torch.randn(shape, device=DEVICE, dtype=dtype).to(memory_format=torch.channels_last) for _ in "xs")
    x, shortcut = (x * 3 + 1).requires_grad_(), shortcut.requires_grad_()
    results = {}
    for name, layer, inputs, function in (
        ("exact", exact, (x.double(), shortcut.double()), None),
        ("torch", copy.deepcopy(norm), (x, shortcut), None),
        ("ours", norm, (x, shortcut), batch_norm),
    ):
        y = function(layer, *inputs) if function else (layer(inputs[0]) + inputs[1]).relu()
        results[name] = [y.double(), *(g.double() for g in gradients(y, *inputs, layer.weight, layer.bias))]
    for ours, theirs, wanted in zip(results["ours"], results["torch"], results["exact"], strict=True):
        assert (ours - wanted).norm() <= 1.5 * (theirs - wanted).norm() + 1e-6 * wanted.norm()


@runs_kernels
def test_the_same_bits_every_time() -> None:
    from triplee.nets.norm_kernels import BatchNorm

    x, norm = torch.randn(4, 64, 30, 30, device=DEVICE, requires_grad=True), make_norm(64)
    first, second = (BatchNorm.apply(x, None, norm.weight, norm.bias, norm, True) for _ in range(2))
    assert torch.equal(first, second)
    pairs = zip(gradients(first, x, norm.weight), gradients(second, x, norm.weight), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
