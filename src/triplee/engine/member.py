"""One member: its network and momenta, and one training step (Algorithm 1, the inner loop).

Comes in: what the member is told by its spec, and uint8 views with labels; goes out: the two losses of the step.
"""

import copy

import torch
from torch import Tensor, nn

from triplee.engine.epoch import MemberSpec
from triplee.engine.losses import replay_loss
from triplee.nets.network import Network

copy_all = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


class Member:
    """A network that trains by itself, eagerly or inside a captured graph."""

    def __init__(self, spec: MemberSpec, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = spec, device, precision
        self.network = spec.build().to(device)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.momenta = [torch.zeros_like(p) for p in self.parameters]
        self.rate = torch.tensor(spec.recipe.lr, device=device)  # on the device, where a captured graph reads it
        twin_of = {}
        self.training_network = self.network
        if precision == "bfloat16":
            self.training_network, twin_of = _rounded_twin(self.network)
        self.leaves = [twin_of.get(p, p) for p in self.parameters]  # where gradients arrive
        self.rounded = [k for k, p in enumerate(self.parameters) if p in twin_of]  # their numbers

    def step(self, views_u8: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch; gives cross-entropy and contrast, still on the device."""
        recipe = self.spec.recipe
        if self.rounded:
            with torch.no_grad():
                copy_all([self.leaves[k] for k in self.rounded], [self.parameters[k] for k in self.rounded])
        loss = replay_loss(self.training_network, views_u8, labels, recipe, self._autocast())
        loss.total.backward()
        gradients = self._take_gradients()
        # What torch.optim.SGD(fused=True) calls: one pass over all weights, on either kind of device.
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            [self.parameters[k] for k in gradients],
            list(gradients.values()),
            [self.momenta[k] for k in gradients],
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return torch.stack([loss.cross_entropy, loss.contrast]).detach()

    def _take_gradients(self) -> dict[int, Tensor]:
        """Of the parameters that took part, by number, in float32; members that take turns on a stream share memory."""
        gradients = {k: leaf.grad for k, leaf in enumerate(self.leaves) if leaf.grad is not None}
        for leaf in self.leaves:
            leaf.grad = None
        exact = {k: torch.empty_like(self.parameters[k]) for k in self.rounded if k in gradients}
        if exact:
            copy_all(list(exact.values()), [gradients[k] for k in exact])
        return gradients | exact

    @torch.inference_mode()
    def predict(self, images_u8: Tensor) -> Tensor:
        """Softmax outputs on clean images; the network must be in evaluation mode."""
        with self._autocast():
            return self.network(images_u8).float().softmax(1)

    def _autocast(self) -> torch.autocast:
        # A new one each time: it remembers what to go back to, so threads cannot share it.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The network's state dict and the momenta by parameter name, not copied."""
        names = [name for name, parameter in self.network.named_parameters() if parameter.requires_grad]
        return dict(self.network.state_dict()), dict(zip(names, self.momenta, strict=True))

    def load(self, weights: dict[str, Tensor], momenta: dict[str, Tensor]) -> None:
        """Take over such tensors, in place: a captured graph knows the old ones by address."""
        self.network.load_state_dict(weights)
        for name, momentum in self.tensors()[1].items():
            momentum.copy_(momenta[name]) if name in momenta else momentum.zero_()


def _rounded_twin(network: Network) -> tuple[Network, dict[nn.Parameter, nn.Parameter]]:
    """A network that shares all with another but the weights that autocast rounds, and for each of these its twin.

    Autocast would round them one by one in every step, and widen each one's gradient; in lists that is one pass each.
    """
    twin, twin_of = copy.deepcopy(network), {}
    for module, other in zip(network.modules(), twin.modules(), strict=True):
        if type(module) in (nn.Conv2d, nn.Linear):  # no kind of them that works on its weights first
            for name, parameter in module.named_parameters(recurse=False):
                twin_of[parameter] = nn.Parameter(parameter.detach().bfloat16())
                setattr(other, name, twin_of[parameter])
        else:
            other._parameters, other._buffers = module._parameters, module._buffers
    return twin, twin_of
