"""One member: its network and momenta, and one training step (Algorithm 1, the inner loop).

Comes in: what the member is told by its spec, and uint8 views with labels; goes out: the two losses of the step.
"""

import torch
from torch import Tensor

from triplee.engine.epoch import MemberSpec
from triplee.engine.losses import replay_loss


class Member:
    """A network that trains by itself, eagerly or inside a captured graph."""

    def __init__(self, spec: MemberSpec, device: torch.device, precision: str) -> None:
        self.spec, self.device, self.precision = spec, device, precision
        self.network = spec.build().to(device)
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.momenta = [torch.zeros_like(p) for p in self.parameters]
        self.rate = torch.tensor(spec.recipe.lr, device=device)  # on the device, where a captured graph reads it

    def step(self, views_u8: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch; gives cross-entropy and contrast, still on the device."""
        recipe = self.spec.recipe
        loss = replay_loss(self.network, views_u8, labels, recipe, self._autocast())
        loss.total.backward()
        used = [(p, p.grad, m) for p, m in zip(self.parameters, self.momenta, strict=True) if p.grad is not None]
        # What torch.optim.SGD(fused=True) calls: one pass over all weights, on either kind of device.
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            *map(list, zip(*used, strict=True)),
            weight_decay=recipe.weight_decay,
            momentum=recipe.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        for parameter in self.parameters:
            parameter.grad = None  # at once: members that take turns on a stream share this memory
        return torch.stack([loss.cross_entropy, loss.contrast]).detach()

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
