"""Views per second of ESAug: ours against Pillow one view at a time, and our Fourier mix against numpy's.

python bench/augment.py            # minutes; writes bench/results/augment.json
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from measuring import ratios, save, summary, time_in_turn
from pillow_style import numpy_fourier, pillow_view
from triplee.augment import apply_draw, draw_views, fourier_mix
from triplee.engine.stack import AUGMENT_BYTES
from triplee.seeding import generator
from triplee.settings import make_recipe

ROUNDS = 31


def make_pool(size: int, num_images: int = 256) -> torch.Tensor:
    """Patches of real photographs, (N,3,size,size)."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images
    patches = []
    for k in range(num_images):
        photo = photos[k % len(photos)]
        top, left = rng.integers(photo.shape[0] - 224), rng.integers(photo.shape[1] - 224)
        patch = Image.fromarray(photo[top : top + 224, left : left + 224]).resize((size, size))
        patches.append(np.asarray(patch).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(patches))


def our_views(pool: torch.Tensor, num_views: int, ops: str) -> Callable[[], torch.Tensor]:
    """Draw, apply and normalise a batch of views: everything a training step would have to do."""
    recipe = make_recipe({"ops": ops})
    rng = generator(0, "bench")

    def make() -> torch.Tensor:
        draw = draw_views(recipe, rng, num_views, np.arange(len(pool)))
        views = apply_draw(pool, rng.integers(len(pool), size=num_views), draw)
        return views.float().mul_(1 / 127.5).sub_(1)

    return make


def main() -> None:
    rows: list[dict[str, Any]] = []
    # Views at once: one batch of b·r = 16, and as many as the engine augments at once (at 224² that is one batch).
    for size, num_views in ((32, 16), (32, AUGMENT_BYTES["cpu"] // (3 * 32 * 32)), (224, 16)):
        pool = make_pool(size)
        pictures = [Image.fromarray(image) for image in pool.permute(0, 2, 3, 1).numpy()]
        sample = min(num_views, 256)

        def pillow(pictures: list[Image.Image] = pictures, sample: int = sample) -> torch.Tensor:
            return torch.stack([pillow_view(picture) for picture in pictures[:sample]])

        for threads in (1, 2):
            torch.set_num_threads(threads)
            rivals = {"pillow": pillow, "ours": our_views(pool, num_views, "basic")}
            seconds = time_in_turn({**rivals, "ours+fourier": our_views(pool, num_views, "fourier")}, ROUNDS)
            per_view = {"pillow": [s / sample for s in seconds.pop("pillow")]}
            per_view |= {name: [s / num_views for s in values] for name, values in seconds.items()}
            row: dict[str, Any] = {"size": size, "views at once": num_views, "threads": threads}
            for name, values in per_view.items():
                row[f"{name} views/s"] = summary([1 / v for v in values], 0)
            for name in seconds:
                row[f"{name} / pillow"] = ratios(per_view["pillow"], per_view[name])
            rows.append(row)
            print(row, flush=True)

    torch.set_num_threads(1)
    pool = make_pool(224, 16)
    partners, shares = pool.roll(1, 0), torch.rand(16)
    pairs = list(zip(pool.numpy(), partners.numpy(), shares.tolist(), strict=True))
    seconds = time_in_turn(
        {
            "numpy": lambda: [numpy_fourier(*pair) for pair in pairs[:4]],
            "ours": lambda: fourier_mix(pool, partners, shares),
        },
        ROUNDS,
    )
    numpy_each, ours_each = [s / 4 for s in seconds["numpy"]], [s / 16 for s in seconds["ours"]]
    row = {"what": "fourier mix 224, one thread"}
    row |= {"numpy images/s": summary([1 / s for s in numpy_each], 0)}
    row |= {"ours images/s": summary([1 / s for s in ours_each], 0), "ours / numpy": ratios(numpy_each, ours_each)}
    rows.append(row)
    print(row)
    save("augment", rows)


if __name__ == "__main__":
    main()
