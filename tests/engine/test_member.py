"""One step of a member against autocast and torch.optim.SGD."""

import numpy as np
import pytest
import torch

from triplee.data.pool import Pool
from triplee.engine.epoch import MemberSpec
from triplee.engine.losses import replay_loss
from triplee.engine.member import Member
from triplee.settings import make_recipe


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("backbone", ["digit-cnn", "resnet18"])
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
