"""One member: its network, momenta and averaged weights, and one training step (Algorithm 1, the inner loop).

Comes in: what the member is told by its spec, and uint8 views with labels; goes out: the two losses of the step.
"""

import copy

import torch
from torch import Tensor

from triplee.augment.style import Images
from triplee.engine.epoch import MemberSpec, MemberTensors
from triplee.engine.losses import replay_loss
from triplee.nets.flat_weights import FlatWeights, copy_all, sgd
from triplee.nets.network import Network
from triplee.plan import statistics_batches

lerp_all = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]


class Member:
    """A network that trains by itself, eagerly or inside a captured graph."""

    def __init__(self, spec: MemberSpec, device: torch.device, precision: str) -> None:
        recipe = spec.recipe
        self.spec, self.device, self.precision = spec, device, precision
        self.network = self.training_network = self.averaged = spec.build().to(device)
        if recipe.averages:
            self.averaged = copy.deepcopy(self.network)
        named = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.flat = FlatWeights(self.network) if precision == "bfloat16" else None
        flat_momentum: dict[Tensor, Tensor] = {}
        if self.flat:
            self.training_network = self.flat.twin
            flat_momentum = dict(zip(self.flat.parameters, self.flat.momenta, strict=True))
        self.rest = {name: p for name, p in named.items() if p not in flat_momentum}
        self.momenta = {
            name: torch.zeros_like(p) if name in self.rest else flat_momentum[p] for name, p in named.items()
        }
        self.statistics_batches = statistics_batches(spec.train_N, spec.seed)
        # Gathered once: to go through the modules takes longer than to average.
        self.averages, self.followed = _floats_and_counts(self.averaged), _floats_and_counts(self.network)
        # A row of the update kernel's. On the device, where a captured graph reads it.
        self.rates = torch.tensor([[recipe.lr, recipe.momentum, recipe.weight_decay, 0.0, 0.0]], device=device)

    def set_rate(self, rate: float) -> None:
        self.rates[0, 0].fill_(rate)

    def step(self, views_u8: Tensor, labels: Tensor) -> Tensor:
        """Train on one batch; gives cross-entropy and contrast, still on the device."""
        recipe = self.spec.recipe
        loss = replay_loss(self.training_network, views_u8, labels, recipe, self._autocast())
        loss.total.backward()
        with torch.no_grad():
            if self.flat:
                self.flat.update([leaf.grad for leaf in self.flat.leaves], self.rates, recipe)
                for leaf in self.flat.leaves:
                    leaf.grad = None
            gradients = {name: p.grad for name, p in self.rest.items() if p.grad is not None}
            if gradients:
                parameters, momenta = ([tensors[name] for name in gradients] for tensors in (self.rest, self.momenta))
                sgd(parameters, gradients.values(), momenta, self.rates, recipe)
            for parameter in self.rest.values():
                parameter.grad = None
        return torch.stack([loss.cross_entropy, loss.contrast]).detach()

    def end_epoch(self, weight: float, images: Images) -> None:
        """Make the network that is tested: averaged weights, with the statistics of their own features."""
        self.average(weight)
        parts = (torch.from_numpy(part).to(self.device) for part in self.statistics_batches)
        with self._autocast():
            self.averaged.estimate_statistics(images[part] for part in parts)

    @torch.no_grad()
    def average(self, weight: float) -> None:
        """Move the averaged network towards the trained one, by so much of the way."""
        if self.averaged is self.network:
            return
        (averages, counts), (trained, trained_counts) = self.averages, self.followed
        lerp_all(averages, trained, weight)
        if counts:
            copy_all(counts, trained_counts)

    @torch.inference_mode()
    def predict(self, images_u8: Tensor) -> Tensor:
        """Softmax outputs on clean images; the averaged network must be in evaluation mode."""
        with self._autocast():
            return self.averaged(images_u8).float().softmax(1)

    def _autocast(self) -> torch.autocast:
        # A new one each time: it remembers what to go back to, so threads cannot share it.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16")

    def tensors(self) -> MemberTensors:
        """The member by name, not copied."""
        averages = {} if self.averaged is self.network else dict(self.averaged.state_dict())
        return MemberTensors(dict(self.network.state_dict()), self.momenta, averages)

    def written(self) -> list[Tensor]:
        """All that a step changes."""
        tensors = self.tensors()
        copies = [self.flat.copies] if self.flat else []
        return [*tensors.network.values(), *tensors.momentum.values(), *copies]

    def load(self, tensors: MemberTensors) -> None:
        """Take over such tensors, in place: a captured graph knows the old ones by address."""
        self.network.load_state_dict(tensors.network)
        if self.averaged is not self.network:
            self.averaged.load_state_dict(tensors.average or tensors.network)
        if self.flat:
            self.flat.round()
        for name, momentum in self.momenta.items():
            momentum.copy_(tensors.momentum[name]) if name in tensors.momentum else momentum.zero_()


def _floats_and_counts(network: Network) -> tuple[list[Tensor], list[Tensor]]:
    """Its tensors, each once: a module may have several names."""
    tensors = [*network.parameters(), *network.buffers()]
    return [t for t in tensors if t.is_floating_point()], [t for t in tensors if not t.is_floating_point()]
