"""Training steps per second on digits (b = 4, r = 4): the stack as it trains against the usual loop, in one run.

Says how much of a step is augmentation, and what bfloat16 gains where the chip has it.

    python bench/step.py               # a few minutes; writes bench/results/step.json
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from measuring import ratios, save, summary, time_in_turn
from pillow_style import pillow_view
from triplee import SupConLoss
from triplee.augment import apply_draw, draw_views
from triplee.data.load import load_data
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import stack as stack_module
from triplee.engine.stack import EpochProgress, MemberSpec, Stack, native_precision
from triplee.nets.network import build_network
from triplee.recipes import find_recipe
from triplee.seeding import generator
from triplee.settings import make_recipe

STEPS, ROUNDS = 300, 7
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stack_steps(pool: Pool, train_N: np.ndarray, members: int = 3, **values: object) -> Callable[[], None]:
    """STEPS steps, exactly as a run takes them."""
    recipe = make_recipe({"members": members, **values}, find_recipe("digits-triplee-fourier"))
    specs = [MemberSpec(recipe, 0, k, train_N, 10) for k in range(members)]
    stack = Stack(specs, pool.images_NCHW, pool.labels_N, DEVICE, native_precision(recipe, DEVICE))
    epoch = 0

    def steps() -> None:
        nonlocal epoch
        done = 0

        def stop() -> bool:
            nonlocal done
            done += 1
            return done >= STEPS

        stack.train_epoch(epoch, EpochProgress.start(members), stop)
        epoch += 1

    return steps


def usual_steps(pool: Pool, train_N: np.ndarray) -> Callable[[], None]:
    """Such steps the usual way: Pillow views one by one (the 14 ops, no Fourier), float32, an eager step."""
    recipe = find_recipe("digits-triplee-fourier")
    network = build_network(recipe, 10, 0, 0).to(DEVICE, memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay)
    contrast, rng = SupConLoss(), np.random.default_rng(0)
    pictures = [Image.fromarray(image) for image in pool.images_NCHW[:].permute(0, 2, 3, 1).numpy()]

    def steps() -> None:
        for _ in range(STEPS):
            samples = rng.choice(train_N, recipe.batch_size)
            views = torch.stack([pillow_view(pictures[s]) for s in samples for _ in range(recipe.replay)]).to(DEVICE)
            labels = torch.from_numpy(pool.labels_N[samples]).repeat_interleave(recipe.replay).to(DEVICE)
            features = network.backbone(views)
            loss = F.cross_entropy(network.classifier(features), labels)
            loss = loss + contrast(network.head(features), labels)  # pyright: ignore[reportOptionalCall]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return steps


def augmentation_share(pool: Pool, train_N: np.ndarray) -> dict[str, float]:
    """Percent of a step's time spent on drawing and applying ESAug, in the chunks in which the engine does it."""
    recipe = find_recipe("digits-triplee-fourier")
    views_per_step = recipe.batch_size * recipe.replay
    num_steps = stack_module.AUGMENT_BYTES[DEVICE.type] // (views_per_step * pool.images_NCHW[0].numel())
    rng, images = generator(0, "bench"), pool.images_NCHW[:].to(DEVICE)

    def augment() -> None:
        num_views = num_steps * views_per_step
        draw = draw_views(recipe, rng, num_views, train_N)
        apply_draw(images, rng.choice(train_N, num_views), draw)

    steps = stack_steps(pool, train_N, members=1)
    shares = []
    augment()
    steps()
    # On one thread, as each member of a stack has it.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for _ in range(ROUNDS):
        start = time.perf_counter()
        augment()
        middle = time.perf_counter()
        steps()
        end = time.perf_counter()
        shares.append(100 * ((middle - start) / num_steps) / ((end - middle) / STEPS))
    torch.set_num_threads(threads)
    return summary(shares, 1)


def main() -> None:
    pool = load_data("digits", 32)
    train_N = split_pool(pool, "textured", 0).train_N
    rivals = {
        "usual loop": usual_steps(pool, train_N),
        "stack float32": stack_steps(pool, train_N, precision="float32"),
        "stack": stack_steps(pool, train_N),
        "stack without augmentation": stack_steps(pool, train_N, augment="none"),
        "one member alone": stack_steps(pool, train_N, members=1),
    }
    rows: list[dict[str, Any]] = []
    seconds = time_in_turn(rivals, ROUNDS)
    for name, values in seconds.items():
        per_second = summary([STEPS / v for v in values], 1)
        rows.append(
            {"what": name, "steps/s": per_second, "times the usual loop": ratios(seconds["usual loop"], values)}
        )
        print(rows[-1], flush=True)
    rows.append({"what": "share of augmentation in a step, percent", "percent": augmentation_share(pool, train_N)})
    print(rows[-1])
    precision = native_precision(find_recipe("digits-triplee-fourier"), DEVICE)
    rows.append({"what": "precision of the stack", "precision": precision, "threads": torch.get_num_threads()})
    save("step", rows)


if __name__ == "__main__":
    main()
