"""One step of a member against autocast and torch.optim.SGD."""

import numpy as np
import pytest
import torch
from torch import nn

from triplee.data.pool import Pool
from triplee.engine.epoch import MemberSpec
from triplee.engine.losses import replay_loss
from triplee.engine.member import Member
from triplee.settings import make_recipe

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("backbone", ["digit-cnn", "resnet18", "mobilenet-v2"])
def test_a_step_is_that_of_autocast_and_sgd(small_32: Pool, backbone: str, precision: str) -> None:
    """To the bit: weights rounded together are the weights autocast rounds one by one."""
    recipe = make_recipe({"backbone": backbone, "image_size": 32, "lr": 1e-3})
    spec = MemberSpec(recipe, 0, 0, np.arange(40), 3)
    member, network = Member(spec, torch.device("cpu"), precision), spec.build()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3, 0.9, weight_decay=recipe.weight_decay, fused=True)
    for step in range(3):
        # The last has a single view, which the head takes no part in.
        index = torch.arange(16)[: 1 if step == 2 else 16] * 11
        views, labels = small_32.images_NCHW[index], torch.from_numpy(small_32.labels_N)[index]
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16")
        loss = replay_loss(network, views, labels, recipe, autocast)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
        assert member.step(views, labels).tolist() == [loss.cross_entropy.item(), loss.contrast.item()]
    for name, tensor in network.state_dict().items():
        assert torch.equal(member.network.state_dict()[name], tensor), name


def make_member(pool: Pool, precision: str, **values: object) -> tuple[Member, torch.Tensor, torch.Tensor]:
    spec = MemberSpec(make_recipe({"image_size": 32, "lr": 0.05, **values}), 0, 0, np.arange(40), 3)
    index = torch.arange(16) * 11
    return Member(spec, CPU, precision), pool.images_NCHW[index], torch.from_numpy(pool.labels_N)[index]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_a_step_has_written_can_be_put_back(small_32: Pool, precision: str) -> None:
    """As before a capture: the step after that is the step that was taken."""
    member, views, labels = make_member(small_32, precision)
    member.step(views, labels)
    kept = [tensor.clone() for tensor in member.written()]
    first = [member.step(views, labels).tolist() for _ in range(2)]
    for tensor, old in zip(member.written(), kept, strict=True):
        tensor.copy_(old)
    assert [member.step(views, labels).tolist() for _ in range(2)] == first


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_layers_that_are_shared_or_frozen(small_32: Pool, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of two names moves the average once, tied weights train as one, a frozen layer stays as it is."""

    class Twice(nn.Module):
        mean, std, num_features = (0.5,) * 3, (0.5,) * 3, 8

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 8)
            self.same, self.tied, self.frozen = self.first, nn.Linear(3, 8), nn.Linear(8, 8)
            self.norm = nn.BatchNorm1d(8)
            self.tied.weight = self.first.weight
            self.frozen.requires_grad_(False)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            colour = images.mean((2, 3))
            return self.frozen(self.norm(self.first(colour) + self.same(colour) + self.tied(colour)).relu())

    monkeypatch.setattr("triplee.nets.network.make_backbone", lambda recipe: Twice())
    member, views, labels = make_member(small_32, precision, epochs=4, average_share=0.5)
    start = {name: tensor.clone() for name, tensor in member.network.state_dict().items()}
    member.step(views, labels)
    member.average(0.5)
    trained, averaged = member.network.state_dict(), member.averaged.state_dict()
    assert torch.equal(trained["backbone.frozen.weight"], start["backbone.frozen.weight"])
    assert not torch.equal(trained["backbone.first.weight"], start["backbone.first.weight"])
    assert torch.equal(trained["backbone.first.weight"], trained["backbone.tied.weight"])
    followed = [f"backbone.{name}" for name in ("first.weight", "tied.bias", "norm.running_mean", "norm.running_var")]
    for name in (*followed, "classifier.weight"):
        assert not torch.equal(trained[name], start[name])
        torch.testing.assert_close(averaged[name], (start[name] + trained[name]) / 2, msg=name)
    assert averaged["backbone.norm.num_batches_tracked"] == trained["backbone.norm.num_batches_tracked"] == 1
    if member.flat:
        twin = member.training_network.backbone
        assert torch.equal(twin.tied.weight, twin.first.weight) and twin.first.weight.dtype == torch.bfloat16
