"""Where a step's time goes on a GPU, and the two floors under it: arithmetic and memory.

FLOPs are those of all convolutions and matrix products, forward and backward, as torch counts them. Bytes are what has
to go through memory at least, as if nothing stayed in a cache: per weight 30 (bfloat16 copy written and read twice,
float32 gradient written and read, weight and momentum read and written), per number that a layer hands on 10
(bfloat16: written, read forward and backward; its gradient written and read), and every view read twice. A ResNet's
stem writes no such gradient, which is 5 to 7 % less for ResNet-18.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from measuring import DEVICE
from rivals import wait
from triplee.engine.losses import replay_loss
from triplee.nets.network import build_network
from triplee.settings import Recipe

BYTES_PER_WEIGHT, BYTES_PER_OUTPUT, BYTES_PER_PIXEL = 30, 10, 2
# By parts of the names of cuDNN's and torch's kernels, the first that fits.
GROUPS = {
    "weight gradient": ("wgrad",),
    "input gradient": ("dgrad",),
    "convolution forward": ("fprop", "convolve"),
    "norm": (
        "bn_",
        "batch_norm",
        "batchnorm",
    ),
    "matrix products": ("gemm", "nvjet", "cublas", "splitk", "cutlass"),
    "losses": ("softmax", "nll_loss", "logsumexp"),
    "update": ("sgd", "multi_tensor"),
    "pooling": ("pool",),
    "copies": ("copy", "memcpy", "memset", "index", "gather", "nchw", "nhwc", "fill", "catarray"),
    "elementwise": ("elementwise", "reduce"),
}
OWN = {
    "convolution forward": ("forward", "first_forward", "_convolve"),
    "weight gradient": ("backward_weights", "first_weights", "_convolution_gradients", "_add_parts"),
    "input gradient": ("backward_inputs",),
    "matrix products": ("linear_forward", "linear_inputs", "linear_weights"),
    "norm": (
        *("norm_forward", "norm_backward"),
        *("_statistics", "_finish_statistics", "_normalise"),
        *("_gradient_sums", "_finish_gradient_sums", "_gradients"),
    ),
    "pooling": ("_pool",),
    "copies": ("_pad",),
    "losses": ("losses",),
    "update": ("update",),
}


def group_of(kernel: str) -> str:
    for group, names in OWN.items():
        if kernel in names:
            return group
    lower = kernel.lower()
    return next((group for group, parts in GROUPS.items() if any(part in lower for part in parts)), "other")


def kernel_times(run: Callable[[], object], steps: int) -> dict[str, Any]:
    """Microseconds per step by kind of kernel, and of the eight kernels that take most, in `run`'s `steps` steps."""
    run()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
    groups: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for event in profiler.events() or []:
        if str(event.device_type).endswith("CUDA"):
            duration = event.time_range.elapsed_us() / steps
            groups[group_of(event.name)] = groups.get(group_of(event.name), 0.0) + duration
            kernels[event.name] = kernels.get(event.name, 0.0) + duration
    largest = sorted(kernels, key=lambda name: -kernels[name])[:8]
    return {
        "sum of kernels, µs": round(sum(groups.values()), 1),
        "by kind, µs": {name: round(groups[name], 1) for name in sorted(groups, key=lambda name: -groups[name])},
        "largest, µs": {short_name(name): round(kernels[name], 1) for name in largest},
    }


def short_name(kernel: str) -> str:
    return kernel.removeprefix("void ").replace("at::native::", "").replace("|", "/")[:60]


def work_of_step(recipe: Recipe, num_classes: int) -> tuple[float, float]:
    """FLOPs and bytes of one member's step."""
    network = build_network(recipe, num_classes, 0, 0).to(DEVICE)
    num_views = recipe.batch_size * recipe.replay
    views = torch.zeros(num_views, 3, recipe.image_size, recipe.image_size, dtype=torch.uint8, device=DEVICE)
    handed_on = 0

    def count(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        nonlocal handed_on
        handed_on += output.numel()

    kind = nn.MaxPool2d if recipe.backbone == "digit-cnn" else nn.Conv2d  # ours pools before anything is stored
    for module in network.modules():
        if isinstance(module, kind):
            module.register_forward_hook(count)
    labels = torch.zeros(num_views, dtype=torch.int64, device=DEVICE)
    with FlopCounterMode(display=False) as counter:
        replay_loss(network, views, labels, recipe, torch.autocast(DEVICE.type, enabled=False)).total.backward()
    num_weights = sum(parameter.numel() for parameter in network.parameters())
    moved = BYTES_PER_WEIGHT * num_weights + BYTES_PER_OUTPUT * handed_on + BYTES_PER_PIXEL * views.numel()
    return counter.get_total_flops(), moved


def floors(recipe: Recipe, num_classes: int, reached: dict[str, float]) -> dict[str, Any]:
    """What one member's step takes at the least, by either limit, in microseconds."""
    flops, moved = work_of_step(recipe, num_classes)
    return {
        "GFLOP": round(flops / 1e9, 2),
        "TFLOP/s reached by a product": round(reached["FLOP/s"] / 1e12),
        "arithmetic floor, µs": round(1e6 * flops / reached["FLOP/s"], 1),
        "MB": round(moved / 1e6, 1),
        "TB/s reached by a copy": round(reached["bytes/s"] / 1e12, 2),
        "memory floor, µs": round(1e6 * moved / reached["bytes/s"], 1),
    }


def ceilings() -> dict[str, float]:
    """What this GPU reaches: FLOP/s of a large bfloat16 product, bytes/s of a large copy."""
    side, size = 8192, 1 << 30
    left, right = (torch.randn(side, side, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return {
        "FLOP/s": 2 * side**3 / _best_seconds(lambda: left @ right),
        "bytes/s": 2 * size / _best_seconds(lambda: target.copy_(source)),
    }


def _best_seconds(call: Callable[[], object], rounds: int = 10, calls: int = 10) -> float:
    times = []
    for _ in range(rounds):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        times.append((time.perf_counter() - start) / calls)
    return min(times)
