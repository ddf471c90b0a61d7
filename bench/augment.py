"""Views per second of ESAug, normalised and ready for a network: ours against Pillow style and other libraries.

    python bench/augment.py            # minutes; writes bench/results/augment.json (with a GPU: augment-gpu.json)

What is timed is all that a step needs: draw, apply, normalise to floats. Ours draws as the engine does, many batches at
once, and that time counts too. Every rival has as many threads, and writes into a float batch that is there already.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from libraries import LIBRARIES, normalise_into
from measuring import ratios, save, summary, time_in_turn
from pillow_style import numpy_fourier, numpy_rfft, pillow_pixels, pillow_view
from triplee.augment import apply_draw, draw_views, fourier_mix, normalise
from triplee.augment.apply import plain_pass
from triplee.seeding import generator
from triplee.settings import make_recipe

ROUNDS = 31
HALF = (0.5, 0.5, 0.5)  # mean and standard deviation of digits
# Several batches in a turn, as in an epoch: else what the rival before left in the caches counts.
VIEWS_PER_TURN = {32: 1600, 224: 320}
DRAWN_AHEAD = 20  # batches
LARGEST_BYTES = 64 << 20  # of views augmented at once on a GPU


def make_pool(size: int, num_images: int = 256) -> Tensor:
    """Patches of real photographs, (N,3,size,size)."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    patches = []
    for k in range(num_images):
        photo = photos[k % len(photos)]
        top, left = rng.integers(photo.shape[0] - 224), rng.integers(photo.shape[1] - 224)
        patch = Image.fromarray(photo[top : top + 224, left : left + 224]).resize((size, size))
        patches.append(np.asarray(patch).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(patches)).contiguous()  # as the engine's pools lie in memory


def our_views(pool: Tensor, batch: Tensor, ops: str, plain: bool = False) -> Callable[[], Tensor]:
    """As the engine does it: draws are made many batches ahead. `plain`: torch alone, where no compiled code runs."""
    recipe, rng, num_views = make_recipe({"ops": ops}), generator(0, "bench"), len(batch)

    def batches() -> Iterator[Tensor]:
        while True:
            index_N = rng.integers(len(pool), size=DRAWN_AHEAD * num_views)
            draws = draw_views(recipe, rng, len(index_N), np.arange(len(pool)))
            for start in range(0, len(index_N), num_views):
                index_V, draw = index_N[start : start + num_views], draws[start : start + num_views]
                if plain:
                    views = plain_pass(pool, index_V, draw.op_VK[:, 0], draw.argument_VK[:, 0], None, None)
                else:
                    views = apply_draw(pool, index_V, draw)
                yield normalise_into(batch, views) if plain else normalise(views, HALF, HALF, batch)

    return partial(next, batches())


def library_views(images: Tensor, batch: Tensor) -> dict[str, Callable[[], Tensor]]:
    rivals = {}
    for name, maker in LIBRARIES.items():
        if images.is_cuda and name == "albumentations":
            continue  # it has no GPU side
        try:
            rivals[name] = maker(images, batch)
        except (ImportError, RuntimeError) as error:
            print(f"{name} is left out: {error}")
    return rivals


def compare(rivals: Mapping[str, Callable[[], object]], num_views: int, row: dict[str, Any]) -> dict[str, Any]:
    """One row: everybody's views per second, and how many times ours is faster than each."""
    batches = max(1, VIEWS_PER_TURN[row["size"]] // num_views)

    def several(make: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            for _ in range(batches):
                make()

        return call

    seconds = time_in_turn({name: several(make) for name, make in rivals.items()}, ROUNDS)
    row |= {
        f"{name} views/s": summary([batches * num_views / s for s in values], 0) for name, values in seconds.items()
    }
    row |= {f"ours / {name}": ratios(values, seconds["ours"]) for name, values in seconds.items() if name != "ours"}
    print(row, flush=True)
    return row


def on_cpu(size: int, num_views: int, threads: int) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    pool, batch = make_pool(size), torch.empty(num_views, 3, size, size)
    pictures = [Image.fromarray(image) for image in pool.permute(0, 2, 3, 1).numpy()]
    chosen = pictures[:num_views]

    def pillow(partners: list[Image.Image]) -> Tensor:
        return torch.stack([pillow_view(picture, partners) for picture in chosen], out=batch)

    def pillow_batched() -> Tensor:
        views = torch.from_numpy(np.stack([pillow_pixels(picture) for picture in chosen]))
        return normalise_into(batch, views.permute(0, 3, 1, 2))

    row = {"device": "cpu", "size": size, "views": num_views, "threads": threads}
    basic = {
        "ours": our_views(pool, batch, "basic"),
        "ours in plain torch": our_views(pool, batch, "basic", plain=True),
        "pillow style": lambda: pillow([]),
        "pillow + batched normalise": pillow_batched,
        **library_views(pool[:num_views], batch),
    }
    fourier = {"ours": our_views(pool, batch, "fourier"), "pillow style": lambda: pillow(pictures)}
    return [
        compare(basic, num_views, {**row, "ops": "basic"}),
        compare(fourier, num_views, {**row, "ops": "fourier"}),
    ]


def on_cuda(size: int, num_views: int) -> list[dict[str, Any]]:
    pool, batch = make_pool(size).cuda(), torch.empty(num_views, 3, size, size, device="cuda")

    def waited_for(make: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            make()
            torch.cuda.synchronize()

        return call

    rows = []
    for ops in ("basic", "fourier"):
        rivals = {"ours": our_views(pool, batch, ops)}
        if ops == "basic":
            rivals["ours in plain torch"] = our_views(pool, batch, ops, plain=True)
            if num_views <= len(pool):  # image by image, they would take minutes
                rivals |= library_views(pool[:num_views], batch)
        row = {"device": "cuda", "size": size, "views": num_views, "ops": ops}
        rows.append(compare({name: waited_for(make) for name, make in rivals.items()}, num_views, row))
    return rows


def threads_alone(size: int, num_views: int) -> dict[str, Any]:
    """Two threads against one, in turn, nobody else in between."""
    views = our_views(make_pool(size), torch.empty(num_views, 3, size, size), "basic")

    def on(threads: int) -> Callable[[], None]:
        def call() -> None:
            torch.set_num_threads(threads)
            views()

        return call

    row = {"device": "cpu", "size": size, "views": num_views, "threads": 2, "ops": "basic, threads alone"}
    return compare({"ours": on(2), "ours on one thread": on(1)}, num_views, row)


def fourier_alone(size: int) -> dict[str, Any]:
    """The Fourier mix by itself, 16 images, one thread, against numpy's."""
    torch.set_num_threads(1)
    pool = make_pool(size, 16)
    partners, shares = pool.roll(1, 0), torch.rand(16)
    pairs = list(zip(pool.numpy(), partners.numpy(), shares.tolist(), strict=True))
    rivals = {
        "ours": lambda: fourier_mix(pool, partners, shares),
        "numpy": lambda: [numpy_fourier(*pair) for pair in pairs],
        "numpy, float32 rfft2": lambda: [numpy_rfft(*pair) for pair in pairs],
    }
    return compare(rivals, 16, {"device": "cpu", "size": size, "views": 16, "threads": 1, "ops": "fourier alone"})


def main() -> None:
    sizes = ((32, 16), (224, 64))
    if torch.cuda.is_available():
        largest = [(size, LARGEST_BYTES // (3 * size * size)) for size, _ in sizes]
        save("augment-gpu", [row for size, views in (*sizes, *largest) for row in on_cuda(size, views)])
    else:
        rows = [row for size, views in sizes for threads in (1, 2) for row in on_cpu(size, views, threads)]
        save("augment", [*rows, threads_alone(*sizes[1]), *(fourier_alone(size) for size, _ in sizes)])


if __name__ == "__main__":
    main()
