"""Our MobileNetV2 against a plain forward pass from the paper's table, and torchvision's names, shapes and numbers."""

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from published_models import assert_same_numbers, batch_norm_shapes, far, imported, set_statistics
from torch import Tensor, nn

from triplee.nets.mobilenet import MobileNetV2

# Table 2 of the paper: every line's expansion t, channels c, repeats n and first stride s.
TABLE = """
1 16 1 1
6 24 2 2
6 32 3 2
6 64 4 2
6 96 3 1
6 160 3 2
6 320 1 1
"""


def blocks() -> list[tuple[str, int, int, int, int]]:
    """Name, channels in, expansion, channels out and stride of all 17 bottlenecks."""
    found, before = [], 32
    for t, c, n, s in (map(int, line.split()) for line in TABLE.split("\n") if line):
        for stride in [s] + [1] * (n - 1):
            found.append((f"features.{len(found) + 1}.conv", before, t, c, stride))
            before = c
    return found


def torchvision_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's state dict without `classifier`, written out from the table."""
    shapes: dict[str, tuple[int, ...]] = {}

    def add(conv: str, norm: str, *shape: int) -> None:
        shapes.update({f"{conv}.weight": shape, **batch_norm_shapes(norm, shape[0])})

    add("features.0.0", "features.0.1", 32, 3, 3, 3)
    for name, before, t, c, _ in blocks():
        place = itertools.count()
        if t > 1:
            next(place)
            add(f"{name}.0.0", f"{name}.0.1", t * before, before, 1, 1)
        k = next(place)
        add(f"{name}.{k}.0", f"{name}.{k}.1", t * before, 1, 3, 3)
        add(f"{name}.{k + 1}", f"{name}.{k + 2}", c, t * before, 1, 1)
    add("features.18.0", "features.18.1", 1280, 320, 1, 1)
    return shapes


def test_names_and_shapes_are_torchvisions() -> None:
    """Entries and parameters as torchvision documents them, less the 1000-way classifier."""
    network = MobileNetV2()
    own = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    assert own == torchvision_shapes()
    assert len(own) == 314 - 2
    assert sum(p.numel() for p in network.parameters()) == 3_504_872 - 1280 * 1000 - 1000


def test_features_are_pooled() -> None:
    network = MobileNetV2().eval()
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == network(torch.zeros(2, 3, 50, 70)).shape == (2, 1280)


def test_starts_from_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    network = MobileNetV2()
    for conv in (m for m in network.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 1000):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2  # of all groups together, as torch counts
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.07)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


def plain_forward(images: Tensor, tensors: dict[str, Tensor], normalise: Callable[[Tensor, str], Tensor]) -> Tensor:
    """The network line by line, from nothing but its state dict and the table."""

    def step(x: Tensor, conv: str, norm: str, stride: int = 1, clamped: bool = True) -> Tensor:
        weight = tensors[f"{conv}.weight"]
        x = F.conv2d(x, weight, None, stride, weight.shape[-1] // 2, 1, x.shape[1] // weight.shape[1])
        x = normalise(x, norm)
        return x.clamp(0, 6) if clamped else x

    x = step(images, "features.0.0", "features.0.1", 2)
    for name, before, t, c, stride in blocks():
        wide, k = x, 0
        if t > 1:
            wide, k = step(x, f"{name}.0.0", f"{name}.0.1"), 1
        wide = step(wide, f"{name}.{k}.0", f"{name}.{k}.1", stride)
        narrow = step(wide, f"{name}.{k + 1}", f"{name}.{k + 2}", clamped=False)
        x = x + narrow if stride == 1 and before == c else narrow
    return step(x, "features.18.0", "features.18.1").flatten(2).mean(2)


@pytest.mark.parametrize("training", [False, True])
def test_numbers_are_those_of_the_table(training: bool) -> None:
    """Features, gradients and running statistics, in float64."""
    torch.manual_seed(2)
    network = MobileNetV2().double()
    set_statistics(network)
    tensors = {name: tensor.clone().requires_grad_(tensor.ndim == 4) for name, tensor in network.state_dict().items()}
    after: dict[str, Tensor] = {}

    def normalise(x: Tensor, norm: str) -> Tensor:
        mean, variance = tensors[f"{norm}.running_mean"], tensors[f"{norm}.running_var"]
        if training:
            values = x.transpose(0, 1).flatten(1)
            now_mean, now_variance = values.mean(1), values.var(1)
            after[f"{norm}.running_mean"] = 0.9 * mean + 0.1 * now_mean
            after[f"{norm}.running_var"] = 0.9 * variance + 0.1 * now_variance
            mean, variance = now_mean, values.var(1, correction=0)
        x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return x * tensors[f"{norm}.weight"][:, None, None] + tensors[f"{norm}.bias"][:, None, None]

    images = 2 * torch.randn(3, 3, 64, 96, dtype=torch.float64)
    expected, found = plain_forward(images, tensors, normalise), network.train(training)(images)
    assert expected.std() > 0.1 and far(found, expected) < 1e-10
    expected.square().mean().backward()
    found.square().mean().backward()
    for name, parameter in network.named_parameters():
        if parameter.ndim == 4:
            torch.testing.assert_close(parameter.grad, tensors[name].grad, rtol=1e-6, atol=1e-10, msg=name)
    for name, tensor in network.state_dict().items():
        if "running" in name:
            assert far(tensor, after.get(name, tensors[name])) < 1e-10, name
    assert len(after) == (2 * 52 if training else 0)


def test_numbers_are_torchvisions() -> None:
    torch.manual_seed(1)
    theirs = imported("torchvision.models").mobilenet_v2(weights=None)
    theirs.classifier = nn.Identity()
    assert_same_numbers(MobileNetV2(), theirs)
