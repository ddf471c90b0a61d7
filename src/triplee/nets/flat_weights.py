"""The weights that autocast rounds, end to end in one tensor, with their momenta and bfloat16 copies beside them.

Autocast would round them one by one in every step, and widen each one's gradient; like this an update is one pass over
memory, which rounds as well. Comes in: a network; goes out: its twin, which computes with the copies.
"""

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from triplee.augment.available import find_kernels
from triplee.nets.network import Network
from triplee.settings import Recipe

ALIGNMENT = 64  # elements: each weight begins a line of memory

copy_all = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


class FlatWeights:
    """Takes over the weights of a network that are rounded; `copies` holds them rounded, but for during `update`."""

    def __init__(self, network: Network) -> None:
        self.twin, twin_of = _rounded_twin(network)
        self.parameters, self.leaves = list(twin_of), list(twin_of.values())  # gradients arrive at the leaves
        self.offsets, size = [], 0
        for parameter in self.parameters:
            self.offsets.append(size)
            size += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self.device = self.parameters[0].device
        self.weights, self.all_momenta = (torch.zeros(size, device=self.device) for _ in range(2))
        self.copies = torch.zeros_like(self.weights, dtype=torch.bfloat16)
        self.momenta = self._views(self.all_momenta)
        for parameter, weights in zip(self.parameters, self._views(self.weights), strict=True):
            parameter.data = weights.copy_(parameter.detach())
        for leaf, copies in zip(self.leaves, self._views(self.copies), strict=True):
            leaf.data = copies
        self.round()
        # For the kernel, which could update many members and count their steps.
        self.first_member, self.no_step = (torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(2))

    @property
    def has_kernel(self) -> bool:
        return self.device.type == "cuda" and find_kernels("cuda") is not None

    def _views(self, flat: Tensor) -> list[Tensor]:
        """A flat tensor as one for each weight, laid out as the weight is."""
        pairs = zip(self.parameters, self.offsets, strict=True)
        return [flat.as_strided(parameter.shape, parameter.stride(), offset) for parameter, offset in pairs]

    def round(self) -> None:
        """Once the weights were written by others."""
        self.copies.copy_(self.weights)

    def update(self, gradients: Sequence[Tensor | None], rates: Tensor, recipe: Recipe) -> None:
        """SGD by the copies' gradients, those of weights that took part; `rates`: a row of the kernel's."""
        there = {k: gradient for k, gradient in enumerate(gradients) if gradient is not None}
        if self.has_kernel and len(there) == len(gradients):
            from triplee.nets.update_kernel import update_members

            flat = torch.empty_like(self.copies)  # anew in each step: members that take turns on a stream share it
            copy_all(self._views(flat), list(there.values()))
            tensors = (self.weights, self.all_momenta, flat, self.copies)
            update_members(self.first_member, *tensors, rates, self.no_step, advance=0)
            return
        exact = {k: torch.empty_like(self.parameters[k]) for k in there}
        copy_all(list(exact.values()), list(there.values()))
        sgd([self.parameters[k] for k in there], exact.values(), [self.momenta[k] for k in there], rates, recipe)
        self.round()


def sgd(
    parameters: Sequence[Tensor], gradients: Iterable[Tensor], momenta: Sequence[Tensor], rates: Tensor, recipe: Recipe
) -> None:
    """What torch.optim.SGD(fused=True) calls: one pass over all weights, on either kind of device."""
    torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
        list(parameters),
        list(gradients),
        list(momenta),
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        lr=rates[0, 0],  # on the device, where a captured graph reads it
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def _rounded_twin(network: Network) -> tuple[Network, dict[nn.Parameter, nn.Parameter]]:
    """A network that shares all with another but the weights that autocast rounds, and for each of these its twin."""
    twin, twin_of = copy.deepcopy(network), {}
    for module, other in zip(network.modules(), twin.modules(), strict=True):
        own = dict(module.named_parameters(recurse=False))
        # No kind of them that works on its weights first, and none that stays as it is.
        if type(module) in (nn.Conv2d, nn.Linear) and all(parameter.requires_grad for parameter in own.values()):
            for name, parameter in own.items():
                setattr(other, name, twin_of.setdefault(parameter, nn.Parameter(parameter.detach().bfloat16())))
        else:
            other._parameters, other._buffers = module._parameters, module._buffers
    return twin, twin_of
