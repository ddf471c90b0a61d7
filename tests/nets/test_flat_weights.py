"""The one-pass update against torch's SGD, in Triton's interpreter where there is no GPU."""

import pytest
import torch

from triplee.nets.flat_weights import FlatWeights, sgd
from triplee.nets.network import Network, build_network
from triplee.settings import make_recipe
from triton_interpreter import DEVICE, INTERPRETED, needs_triton, run_in_interpreter, runs_kernels, starts_interpreter

pytestmark = needs_triton


@starts_interpreter
def test_all_of_this_file_in_the_interpreter() -> None:
    run_in_interpreter(__file__)


@runs_kernels
def test_one_pass_is_torchs_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates by the kernel, against two in float32 on a network of torch's own; the copies are its weights."""
    if INTERPRETED:
        monkeypatch.setattr("triplee.nets.flat_weights.FlatWeights.has_kernel", True)
    recipe = make_recipe({"image_size": 16, "lr": 0.01})
    rates = torch.tensor([[recipe.lr, recipe.momentum, recipe.weight_decay, 0, 0]], device=DEVICE)
    network, plain = (build_network(recipe, 5, 0, 0).to(DEVICE) for _ in range(2))
    flat, theirs = FlatWeights(network), _rounded(plain)
    momenta, generator = [torch.zeros_like(p) for p in theirs], torch.Generator().manual_seed(0)
    assert flat.has_kernel
    for _ in range(2):
        noise = [torch.randn(leaf.shape, generator=generator) for leaf in flat.leaves]
        gradients = [torch.empty_like(leaf).copy_(values) for leaf, values in zip(flat.leaves, noise, strict=True)]
        flat.update(gradients, rates, recipe)
        sgd(theirs, [gradient.float() for gradient in gradients], momenta, rates, recipe)
    for ours, other, momentum, wanted in zip(flat.parameters, theirs, flat.momenta, momenta, strict=True):
        torch.testing.assert_close(ours.detach(), other)
        torch.testing.assert_close(momentum, wanted)
    for parameter, leaf in zip(flat.parameters, flat.leaves, strict=True):
        # The interpreter cuts off where a GPU rounds.
        torch.testing.assert_close(
            leaf.detach(), parameter.detach().bfloat16(), rtol=2**-7 if INTERPRETED else 0, atol=0
        )


def _rounded(network: Network) -> list[torch.Tensor]:
    kinds = (torch.nn.Conv2d, torch.nn.Linear)
    return [p.detach() for module in network.modules() if isinstance(module, kinds) for p in module.parameters()]
