"""The fused stem of a ResNet against torch's layers, in Triton's interpreter where there is no GPU.

The interpreter cannot multiply matrices of bfloat16, in which a GPU runs the stem: there it runs in float32.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from triplee.nets.network import Network
from triplee.recipes import find_recipe
from triplee.settings import make_recipe
from triton_interpreter import DEVICE, ON_GPU, needs_triton, run_in_interpreter, runs_kernels, starts_interpreter

pytestmark = needs_triton

DTYPE = torch.bfloat16 if ON_GPU else torch.float32
# One pixel more or less on each side, sizes that no tile divides, and less than one tile in all.
SMALL = [(2, 37, 30), (1, 18, 33), (1, 5, 3)]
LARGE = [(16, 224, 224), (16, 160, 160), (64, 96, 97)] if ON_GPU else []


@starts_interpreter
def test_all_of_this_file_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


class Trial:
    """Views, and a stem whose norm has scales of either sign, one of them next to nothing."""

    def __init__(self, views: int, height: int, width: int) -> None:
        torch.manual_seed(0)
        noise = torch.randint(256, (views, 3, height, width)).float()
        self.views = F.avg_pool2d(noise, 5, 1, 2).byte().to(DEVICE)
        self.scale = torch.tensor([0.017, 0.018, 0.016], device=DEVICE).view(3, 1, 1)
        self.shift = torch.tensor([-2.1, -2.0, -1.8], device=DEVICE).view(3, 1, 1)
        conv = nn.Conv2d(3, 64, 7, 2, 3, bias=False).to(DEVICE, DTYPE)
        self.conv = conv.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.norm = nn.BatchNorm2d(64, momentum=0.03).to(DEVICE)
        with torch.no_grad():
            self.norm.weight.uniform_(-1, 2)[3] = 1e-9
            self.norm.bias.normal_()
            self.norm.running_mean.normal_()  # pyright: ignore[reportOptionalMemberAccess]

    def ours(self) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        from triplee.nets.stem_kernels import Stem

        norm = copy.deepcopy(self.norm)
        weights = (self.conv.weight, norm.weight, norm.bias)
        y = Stem.apply(self.views, self.scale, self.shift, *weights, norm)
        return y.detach(), self.gradients(y, weights), norm.state_dict()

    def torchs(self, dtype: torch.dtype) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """In this precision, but for images as a network takes them; norms in float32 are as torch computes them."""
        conv = copy.deepcopy(self.conv).to(dtype)
        norm = copy.deepcopy(self.norm).to(torch.float32 if dtype == torch.bfloat16 else dtype)
        images = torch.addcmul(self.shift, self.views.float(), self.scale).to(DTYPE).to(dtype)
        y = F.max_pool2d(F.relu(norm(conv(images))), 3, stride=2, padding=1)
        return y.detach(), self.gradients(y, (conv.weight, norm.weight, norm.bias)), norm.state_dict()

    @staticmethod
    def gradients(y: Tensor, weights: tuple[Tensor, ...]) -> list[Tensor]:
        wanted = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.device, y.dtype)
        return list(torch.autograd.grad((y * wanted).sum(), weights))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.detach().double() - other.detach().double()).norm() / other.detach().double().norm())


@runs_kernels
@pytest.mark.parametrize("most_programs", [2, 256])  # two have several tiles each to do
@pytest.mark.parametrize("size", SMALL + LARGE, ids=str)
def test_outputs_gradients_and_statistics_are_torchs(
    size: tuple[int, int, int], most_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triplee.nets import stem_kernels

    monkeypatch.setattr(stem_kernels, "MOST_CONVOLVING", most_programs)
    monkeypatch.setattr(stem_kernels, "MOST_ADDING", most_programs)
    trial = Trial(*size)
    y, gradients, statistics = trial.ours()
    exact_y, exact_gradients, exact_statistics = trial.torchs(torch.float64)
    their_y, their_gradients, _ = trial.torchs(DTYPE)
    # bfloat16 rounds, and chooses another of two pixels that are nearly alike: torch's own distance is the measure.
    assert distance(y, exact_y) <= 1.1 * distance(their_y, exact_y) + 1e-6
    for one, exact, theirs in zip(gradients, exact_gradients, their_gradients, strict=True):
        assert one.dtype == theirs.dtype and one.shape == theirs.shape
        assert distance(one, exact) <= 1.2 * distance(theirs, exact) + 2e-6
    for name, value in exact_statistics.items():
        tolerance = 1e-3 if ON_GPU else 1e-5
        torch.testing.assert_close(statistics[name].to(value.dtype), value, rtol=tolerance, atol=tolerance, msg=name)


@runs_kernels
def test_what_is_not_finite_goes_through() -> None:
    trial = Trial(1, 20, 20)
    with torch.no_grad():
        trial.conv.weight[5, 1, 2, 3] = torch.nan
    y, _, _ = trial.ours()
    assert y[:, 5].isnan().all() and y[:, :5].isfinite().all() and y[:, 6:].isfinite().all()


@runs_kernels
def test_the_same_bits_every_time() -> None:
    trial = Trial(2, 25, 20)
    (y, gradients, _), (again, gradients_again, _) = trial.ours(), trial.ours()
    assert torch.equal(y, again)
    assert all(torch.equal(one, other) for one, other in zip(gradients, gradients_again, strict=True))


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_a_network_takes_it_in_training_with_rounded_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from triplee.nets import stem_kernels

    torch.manual_seed(0)
    values = {"backbone": "resnet18", "weights": "none", "image_size": 64}
    network = Network(make_recipe(values, find_recipe("pacs-resnet18-vanilla")), 5)
    network = network.to(DEVICE, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    views = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8, device=DEVICE)
    used: list[int] = []
    apply = stem_kernels.Stem.apply
    monkeypatch.setattr(stem_kernels.Stem, "apply", lambda *inputs: used.append(1) or apply(*inputs))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        plain = copy.deepcopy(network).features(views)
        assert not used, "weights are not rounded"
        network.backbone.conv1.bfloat16()  # pyright: ignore[reportCallIssue]
        fused = network.features(views)
        assert used == [1]
        network.eval()
        network.features(views)
        assert used == [1], "not in training"
    assert distance(fused, plain) < 0.05
