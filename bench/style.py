"""What the style op costs: training with it against without, and restyling in batches against one view at a time.

python bench/style.py      # writes bench/results/style.json, on a GPU style-gpu.json
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from measuring import DEVICE, Report, ratios, summary, time_in_turn
from rivals import wait
from step import NUM_CLASSES, Trained, smooth_images
from triplee.augment.style import StyleTable, channel_statistics, move_statistics
from triplee.engine.stack import native_precision
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import freeze
from triplee.recipes import find_recipe
from triplee.settings import make_recipe

ON_GPU = DEVICE.type == "cuda"
ROUNDS = 7
# What, its recipe values, an encoder, how many members, and steps of an epoch.
TRAININGS = [
    ("digit CNN, 32 px", {}, "small", 36 if ON_GPU else 2, 1200 if ON_GPU else 60),
    *([("ResNet-18, 160 px", {"backbone": "resnet18", "image_size": 160, "lr": 1e-4}, "resnet18", 12, 72)] * ON_GPU),
]
# An encoder, a size, and how many views.
RESTYLINGS = [
    ("small", 32, 512 if ON_GPU else 64),
    ("resnet18", 160, 256 if ON_GPU else 8),
    ("vgg19", 224, 64 if ON_GPU else 2),
]


def measure_training(report: Report, what: str, values: dict, encoder: str, members: int, steps: int) -> None:
    images = smooth_images(values.get("image_size", 32))
    labels_N = np.random.default_rng(0).integers(0, NUM_CLASSES, len(images))
    stylizer = freeze(Stylizer(encoder)).to(DEVICE)
    calls = {}
    for ops in ("basic", "style", "fourier"):
        recipe = make_recipe({"members": members, "ops": ops, **values}, find_recipe("digits-triplee-fourier"))
        own = stylizer if ops == "style" else None
        calls[ops] = Trained(images, labels_N, np.arange(len(images)), recipe, steps, own)
    seconds = time_in_turn(calls, ROUNDS)
    row = {"what": what, "members": members, "encoder": encoder}
    row |= {f"{ops}, steps/s": summary([members * steps / s for s in taken], 1) for ops, taken in seconds.items()}
    report.add({**row, "style, times as long": ratios(seconds["style"], seconds["basic"])})


@torch.inference_mode()
def one_at_a_time(stylizer: Stylizer, images: Tensor, index_V: np.ndarray, partner_V: np.ndarray) -> None:
    """As the authors' code has it: both images of each view through the encoder, float32."""
    for index, partner in zip(index_V.tolist(), partner_V.tolist(), strict=True):
        content, style = (images[k : k + 1].to(DEVICE).float() / 255 for k in (index, partner))
        target = channel_statistics(stylizer.encode(style))
        moved = move_statistics(stylizer.encode(content), target, torch.ones(1, device=DEVICE))
        view = stylizer.decode(moved, *images.shape[2:])
        (view * 255).round().clamp(0, 255).to(torch.uint8).cpu()


def measure_restyling(report: Report, encoder: str, size: int, num_views: int) -> None:
    images = smooth_images(size)[:200].to(DEVICE)
    stylizer = freeze(Stylizer(encoder)).to(DEVICE)
    precision = native_precision(find_recipe("digits-triplee-fourier"), DEVICE)
    table = StyleTable(stylizer, images, np.arange(100), precision)
    rng = np.random.default_rng(0)
    index_V, partner_V = rng.integers(200, size=num_views), rng.integers(100, size=num_views)
    views, where, ones = images[torch.from_numpy(index_V).to(DEVICE)], np.arange(num_views), np.ones(num_views)

    def ours() -> None:
        table.restyle_views(views, where, partner_V, ones)
        wait()

    calls: dict[str, Callable[[], None]] = {
        "one at a time": lambda: one_at_a_time(stylizer, images, index_V, partner_V),
        "ours": ours,
    }
    seconds = time_in_turn(calls, ROUNDS)
    row = {"what": f"restyling, {size} px", "encoder": encoder, "views": num_views, "precision": precision}
    row |= {f"{name}, views/s": summary([num_views / s for s in taken], 1) for name, taken in seconds.items()}
    report.add({**row, "times as fast": ratios(seconds["one at a time"], seconds["ours"])})


def main() -> None:
    report = Report("style")
    for restyling in RESTYLINGS:
        with report.section(f"restyling {restyling}"), torch.backends.cudnn.flags(enabled=True, benchmark=True):
            measure_restyling(report, *restyling)
    for training in TRAININGS:
        with report.section(training[0]):
            measure_training(report, *training)


if __name__ == "__main__":
    main()
