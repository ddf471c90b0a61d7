"""Digit networks of many members as one: their weights in one tensor, a training step of all in a few launches.

Comes in: Networks with a DigitCNN of equal shapes; goes out: the same weights, trained. No autograd: the backward pass
is written out, so that a step is a fixed list of kernels (digit_kernels.py) which a CUDA graph can replay.
Axes: M members, V views, P weights of a member, F features, S steps.
"""

# Triton's kernels are functions to a type checker, and Triton is not everywhere.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from triplee.nets import digit_head_kernels as head_kernels
from triplee.nets import digit_kernels as kernels
from triplee.nets.digit_cnn import DigitCNN
from triplee.nets.network import PROJECTION_SIZE, Network
from triplee.nets.update_kernel import RATES, update_members

CONVOLUTIONS = tuple(f"backbone.layers.{k}" for k in (0, 3, 6, 9))
ALIGNMENT = 16  # elements: each layer begins where a wide load may


def loss_blocks(rows: int) -> dict[str, int]:
    """How `losses` takes projections of so many rows apart, and its warps: as registers have room for them."""
    return {"DEPTH": min(PROJECTION_SIZE, max(32, 2048 // rows)), "num_warps": 4 if rows <= 32 else 8}


@dataclass(frozen=True)
class _Layer:
    """Where a layer's weights begin in a member's row; its bias follows them."""

    name: str
    offset: int
    shape: tuple[int, ...]  # of the weights, as the kernels lay them out
    num_biases: int

    @property
    def num_weights(self) -> int:
        return int(torch.Size(self.shape).numel())


def _layers(num_features: int, num_classes: int, has_head: bool) -> tuple[list[_Layer], int]:
    shapes: list[tuple[str, tuple[int, ...], int]] = [(CONVOLUTIONS[0], (32, 64), 64)]
    shapes += [(name, (9, 64, 64), 64) for name in CONVOLUTIONS[1:]]
    shapes.append(("classifier", (num_classes, num_features), num_classes))
    if has_head:
        shapes.append(("head.0", (num_features, num_features), num_features))
        shapes.append(("head.1", (num_features,), num_features))
        shapes.append(("head.3", (PROJECTION_SIZE, num_features), PROJECTION_SIZE))
    layers, offset = [], 0
    for name, shape, num_biases in shapes:
        layers.append(_Layer(name, offset, shape, num_biases))
        offset += -(-(layers[-1].num_weights + num_biases) // ALIGNMENT) * ALIGNMENT
    return layers, offset


class DigitStack:
    """M digit networks, each training on `views` views a step; `slots` of them at once, for the sake of memory."""

    def __init__(
        self,
        networks: Sequence[Network],
        image_size: int,
        views: int,
        dtype: torch.dtype,
        device: torch.device,
        slots: int | None = None,
    ) -> None:
        first = networks[0]
        self.size, self.views, self.dtype, self.device = image_size, views, dtype, device
        self.num_members = members = len(networks)
        self.slots = min(slots or members, members)
        self.num_classes = first.classifier.out_features
        self.num_features = features = first.classifier.in_features
        self.has_head = first.head is not None
        self.layers, row = _layers(features, self.num_classes, self.has_head)
        self.by_name = {layer.name: layer for layer in self.layers}
        self.weights = torch.zeros(members, row, device=device)
        self.momenta, self.gradients = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.averages = torch.zeros_like(self.weights)  # what predicts
        self.copies = self.weights if dtype == torch.float32 else torch.zeros_like(self.weights, dtype=dtype)
        self.running = torch.zeros(members, 2, features, device=device)
        self.batches_M = [0] * members
        self.rates = torch.zeros(members, RATES, device=device)
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        self.active = torch.arange(members, device=device)  # which members a step is for: its first ones
        for member, network in enumerate(networks):
            self.load(member, network.state_dict(), {}, {})
        self.activations = self._activations(views, self.slots)
        self._make_buffers()

    def _activations(self, views: int, members: int) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs of the four convolutions (the last one planar: the features), and who won each pool."""
        outputs, codes, side = [], [], self.size
        for _ in CONVOLUTIONS:
            side //= 2
            shape = (members, views, side, side, 64)
            outputs.append(torch.empty(shape, dtype=self.dtype, device=self.device))
            codes.append(torch.empty(shape, dtype=torch.uint8, device=self.device))
        return outputs, codes

    def _make_buffers(self) -> None:
        shape, device = (self.slots, self.views), self.device
        outputs, _ = self.activations
        self.back = [torch.empty_like(output) for output in outputs]
        self.logits = torch.empty(*shape, self.num_classes, device=device)
        self.logit_gradients = torch.empty_like(self.logits)
        self.hidden = torch.empty(*shape, self.num_features, device=device)
        self.hidden_gradients = torch.empty_like(self.hidden)
        self.rectified = torch.empty_like(self.hidden, dtype=self.dtype)
        self.rectified_gradients = torch.empty_like(self.rectified)
        self.projections = torch.empty(*shape, PROJECTION_SIZE, device=device)
        self.projection_gradients = torch.empty_like(self.projections)
        # Enough programs for a GPU even when the members are few: a view each, or several where views are many.
        self.views_at_once = max(1, self.views // 16)
        parts = -(-self.views // self.views_at_once)
        self.partial = torch.empty(self.num_members, parts, 33 * 64, device=device)

    def load(
        self, member: int, weights: dict[str, Tensor], momenta: dict[str, Tensor], averages: dict[str, Tensor]
    ) -> None:
        """Take over one member's state dict, momenta and averages by name; without these zeros and the weights."""
        self._put(self.weights[member], weights)
        self.momenta[member].zero_()
        if momenta:
            self._put(self.momenta[member], momenta)
        self._put(self.averages[member], averages or weights)
        self.copies[member].copy_(self.weights[member])
        if self.has_head:
            self.running[member, 0].copy_(weights["head.1.running_mean"])
            self.running[member, 1].copy_(weights["head.1.running_var"])
            self.batches_M[member] = int(weights["head.1.num_batches_tracked"])

    def average(self, weights: dict[int, float]) -> None:
        """Move these members' averages towards their weights, by so much of the way."""
        members = list(weights)
        shares = torch.tensor(list(weights.values()), device=self.device)[:, None]
        self.averages[members] = self.averages[members].lerp(self.weights[members], shares)

    def state(self, member: int) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """One member's state dict, momenta and averages, copies under torch's names and in torch's layout."""
        weights, averages = self._take(self.weights[member]), self._take(self.averages[member])
        if self.has_head:
            running = {
                "head.1.running_mean": self.running[member, 0].clone(),
                "head.1.running_var": self.running[member, 1].clone(),
                "head.1.num_batches_tracked": torch.tensor(self.batches_M[member]),
            }
            weights, averages = weights | running, averages | {name: t.clone() for name, t in running.items()}
        return weights, self._take(self.momenta[member]), averages

    def _put(self, row: Tensor, tensors: dict[str, Tensor]) -> None:
        for layer in self.layers:
            weight = tensors[f"{layer.name}.weight"].to(row.device)
            if layer.name == CONVOLUTIONS[0]:
                weight = weight.permute(1, 2, 3, 0).reshape(27, 64)  # rows 27 to 31 stay zero
            elif layer.name in CONVOLUTIONS:
                weight = weight.permute(2, 3, 1, 0)
            end = layer.offset + layer.num_weights
            row[layer.offset : layer.offset + weight.numel()].copy_(weight.reshape(-1))
            row[end : end + layer.num_biases].copy_(tensors[f"{layer.name}.bias"])

    def _take(self, row: Tensor) -> dict[str, Tensor]:
        tensors = {}
        for layer in self.layers:
            end = layer.offset + layer.num_weights
            weight = row[layer.offset : end].view(layer.shape)
            if layer.name == CONVOLUTIONS[0]:
                weight = weight[:27].view(3, 3, 3, 64).permute(3, 0, 1, 2)
            elif layer.name in CONVOLUTIONS:
                weight = weight.view(3, 3, 64, 64).permute(3, 2, 0, 1)
            tensors[f"{layer.name}.weight"] = weight.contiguous().clone()
            tensors[f"{layer.name}.bias"] = row[end : end + layer.num_biases].clone()
        return tensors

    def step(self, images: Tensor, index: Tensor, labels: Tensor, counts: Tensor, sums: Tensor, members: int) -> None:
        """One step of the first `members` of the active members: only launches, no waiting.

        `images` (N,3,H,W) uint8; for every step, by `step_number`: `index` and `labels` (S, M, V), how many of the
        views are valid `counts` (S, M); the two losses go to `sums` (S, M, 2).
        """
        for first in range(0, members, self.slots):
            last = min(first + self.slots, members)
            self._step(images, index, labels, counts, sums, self.active[first:last], advance=int(last == members))

    def _step(
        self,
        images: Tensor,
        index: Tensor,
        labels: Tensor,
        counts: Tensor,
        sums: Tensor,
        active: Tensor,
        advance: int,
    ) -> None:
        outputs, codes = self.activations
        self._convolve(images, index, self.views, outputs, codes, self.views, active, self.copies)
        features = outputs[-1]
        self._linear("classifier", features, self.logits, active)
        if self.has_head:
            self._linear("head.0", features, self.hidden, active)
            self._norm(counts, active)
            self._linear("head.3", self.rectified, self.projections, active)
        head_kernels.losses[(len(active),)](
            *(active, self.logits, self.projections, labels, counts, self.step_number, self.rates, sums),
            *(self.logit_gradients, self.projection_gradients, self.num_members, self.views, self.num_classes),
            *(self._rows, max(16, triton.next_power_of_2(self.num_classes)), PROJECTION_SIZE),
            CONTRAST=self.has_head,
            **loss_blocks(self._rows),
        )
        self._linear_back("classifier", features, self.logit_gradients, self.back[-1], active)
        if self.has_head:
            self._linear_back("head.3", self.rectified, self.projection_gradients, self.rectified_gradients, active)
            self._norm_back(counts, active)
            self._linear_back("head.0", features, self.hidden_gradients, self.back[-1], active, add=True)
        self._convolve_back(images, index, active)
        update_members(
            *(active, self.weights, self.momenta, self.gradients, self.copies, self.rates, self.step_number, advance)
        )

    def _norm(self, counts: Tensor, active: Tensor) -> None:
        head_kernels.norm_forward[(triton.cdiv(self.num_features, 32), len(active))](
            *(active, self.hidden, self.weights, self.rectified, self.running, counts, self.step_number),
            *(self.num_members, self.views, self.num_features, self.by_name["head.1"].offset),
            *(self.weights.shape[1], self._rows, 32),
        )

    def _norm_back(self, counts: Tensor, active: Tensor) -> None:
        head_kernels.norm_backward[(triton.cdiv(self.num_features, 32), len(active))](
            *(active, self.hidden, self.rectified, self.rectified_gradients, self.weights),
            *(self.hidden_gradients, self.gradients, counts, self.step_number, self.num_members, self.views),
            *(self.num_features, self.by_name["head.1"].offset, self.weights.shape[1], self._rows, 32),
        )

    def predict(self, members: Sequence[int], images: Tensor, index_V: Tensor) -> Tensor:
        """Logits (members, V, classes) of some members' averages on the images that `index_V` names."""
        count, views = len(members), len(index_V)
        weights = self.averages[list(members)]
        outputs, codes = self._activations(views, count)
        logits = torch.empty(count, views, self.num_classes, device=self.device)
        self.step_number.zero_()
        rounded = weights.to(self.dtype)
        self._convolve(images, index_V, 0, outputs, codes, views, torch.arange(count, device=self.device), rounded)
        features = outputs[-1].view(count, views, self.num_features)
        layer = self.by_name["classifier"]
        end = layer.offset + layer.num_weights
        weight = rounded[:, layer.offset : end].view(count, *layer.shape)
        bias = weights[:, end : end + layer.num_biases]
        torch.baddbmm(bias[:, None], features.float(), weight.float().transpose(1, 2), out=logits)
        return logits

    @property
    def _rows(self) -> int:
        return max(16, triton.next_power_of_2(self.views))

    def _convolve(
        self,
        images: Tensor,
        index: Tensor,
        index_stride: int,
        outputs: list[Tensor],
        codes: list[Tensor],
        views: int,
        active: Tensor,
        weights: Tensor,
    ) -> None:
        stride, side = weights.shape[1], self.size
        scale, shift = _normalisation()
        grid = (triton.cdiv(views * (side // 2) ** 2, 64), len(active))
        kernels.first_forward[grid](
            *(active, images, index, index_stride, self.step_number, weights, outputs[0], codes[0]),
            *(self.num_members, views, side, side, scale, shift, self.layers[0].offset, stride, 64),
        )
        for k in range(1, len(CONVOLUTIONS)):
            side //= 2
            grid = (triton.cdiv(views * (side // 2) ** 2, 64), len(active))
            kernels.forward[grid](
                *(active, outputs[k - 1], weights, outputs[k], codes[k], views, side, side),
                *(self.layers[k].offset, stride, 64, k == len(CONVOLUTIONS) - 1),
            )

    def _convolve_back(self, images: Tensor, index: Tensor, active: Tensor) -> None:
        outputs, codes = self.activations
        stride = self.weights.shape[1]
        for k in range(len(CONVOLUTIONS) - 1, 0, -1):
            side, layer, planar = self.size >> k, self.layers[k], k == len(CONVOLUTIONS) - 1
            kernels.backward_weights[(9, len(active))](
                *(active, outputs[k - 1], self.back[k], codes[k], self.gradients, self.views, side, side),
                *(layer.offset, stride, 64, planar),
            )
            kernels.backward_inputs[(triton.cdiv(self.views * side * side, 64), len(active))](
                *(active, self.back[k], codes[k], self.copies, self.back[k - 1], self.views, side, side),
                *(layer.offset, stride, 64, planar),
            )
        scale, shift = _normalisation()
        kernels.first_weights[(self.partial.shape[1], len(active))](
            *(active, images, index, self.views, self.step_number, self.back[0], codes[0], self.partial),
            *(self.num_members, self.views, self.size, self.size, scale, shift, self.views_at_once, 64),
        )
        begin = self.layers[0].offset
        torch.sum(self.partial, 1, out=self.gradients[:, begin : begin + 33 * 64])

    def _linear(self, name: str, inputs: Tensor, outputs: Tensor, active: Tensor) -> None:
        layer = self.by_name[name]
        size_out, size_in = layer.shape
        head_kernels.linear_forward[(triton.cdiv(size_out, 32), len(active))](
            *(active, inputs, self.copies, outputs, inputs.shape[1], size_in, size_out, layer.offset),
            *(self.weights.shape[1], max(16, triton.next_power_of_2(inputs.shape[1])), 32, 64),
        )

    def _linear_back(
        self, name: str, inputs: Tensor, gradients: Tensor, input_gradients: Tensor, active: Tensor, add: bool = False
    ) -> None:
        layer = self.by_name[name]
        size_out, size_in = layer.shape
        shape = (self.views, size_in, size_out, layer.offset, self.weights.shape[1])
        head_kernels.linear_weights[(triton.cdiv(size_in, 64), triton.cdiv(size_out, 64), len(active))](
            active, inputs, gradients, self.gradients, *shape, 64, 64, self._rows
        )
        head_kernels.linear_inputs[(triton.cdiv(size_in, 32), len(active))](
            active, gradients, self.copies, input_gradients, *shape, self._rows, 32, 64, add
        )


def _normalisation() -> tuple[float, float]:
    """Scale and shift of 0..255; the same for all channels of digits."""
    return 1 / (255 * DigitCNN.std[0]), -DigitCNN.mean[0] / DigitCNN.std[0]
