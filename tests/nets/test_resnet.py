"""Our ResNets: torchvision's names and shapes, and, where torchvision and timm import, their numbers."""

import pytest
import torch
from published_models import assert_same_numbers, batch_norm_shapes, imported
from torch import nn

from triplee.nets.resnet import resnet18, resnet50

MAKE = {"resnet18": resnet18, "resnet50": resnet50}
DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet50": (3, 4, 6, 3)}


def torchvision_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of torchvision's state dict without `fc`, written out from the architecture's rule."""
    shapes: dict[str, tuple[int, ...]] = {"conv1.weight": (64, 3, 7, 7), **batch_norm_shapes("bn1", 64)}
    wide = 4 if name == "resnet50" else 1
    before = 64
    for stage, depth in enumerate(DEPTHS[name]):
        channels = (64, 128, 256, 512)[stage]
        for k in range(depth):
            block = f"layer{stage + 1}.{k}"
            kernels = [(1, channels), (3, channels), (1, 4 * channels)] if wide == 4 else [(3, channels), (3, channels)]
            inside = before
            for number, (kernel, outside) in enumerate(kernels, 1):
                shapes[f"{block}.conv{number}.weight"] = (outside, inside, kernel, kernel)
                shapes |= batch_norm_shapes(f"{block}.bn{number}", outside)
                inside = outside
            if k == 0 and (stage > 0 or wide == 4):
                shapes[f"{block}.downsample.0.weight"] = (wide * channels, before, 1, 1)
                shapes |= batch_norm_shapes(f"{block}.downsample.1", wide * channels)
            before = wide * channels
    return shapes


# Entries and parameters as torchvision documents them, less the 1000-way `fc`.
@pytest.mark.parametrize(
    ("name", "entries", "parameters"),
    [
        ("resnet18", 122 - 2, 11_689_512 - 512 * 1000 - 1000),
        ("resnet50", 320 - 2, 25_557_032 - 2048 * 1000 - 1000),
    ],
)
def test_names_and_shapes_are_torchvisions(name: str, entries: int, parameters: int) -> None:
    network = MAKE[name]()
    own = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
    assert own == torchvision_shapes(name)
    assert len(own) == entries
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(("name", "width"), [("resnet18", 512), ("resnet50", 2048)])
def test_features_are_pooled(name: str, width: int) -> None:
    network = MAKE[name]().eval()
    assert network.num_features == width
    with torch.no_grad():
        assert network(torch.zeros(2, 3, 32, 32)).shape == network(torch.zeros(2, 3, 50, 70)).shape == (2, width)


def test_starts_from_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    network = resnet18()
    for conv in (network.conv1, network.layer3[0].conv1, network.layer3[0].downsample[0]):
        fan_out = conv.out_channels * conv.kernel_size[0] ** 2
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_a_bottleneck_strides_in_its_3x3_convolution() -> None:
    block = resnet50().layer2[0]
    assert [c.stride[0] for c in (block.conv1, block.conv2, block.conv3, block.downsample[0])] == [1, 2, 1, 2]


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_numbers_are_theirs(library: str, name: str) -> None:
    torch.manual_seed(1)
    if library == "timm":
        theirs = imported("timm").create_model(name, pretrained=False, num_classes=0)
    else:
        theirs = getattr(imported("torchvision.models"), name)(weights=None)
        theirs.fc = nn.Identity()
    assert_same_numbers(MAKE[name](), theirs)
