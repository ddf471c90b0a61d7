"""Small real image files for the tests of prepare: image `seed` is the same noise everywhere."""

from pathlib import Path

import numpy as np
from PIL import Image

from triplee.data.folder import list_images
from triplee.data.pool import Pool
from triplee.data.prepare import Prepared, load_images, prepare

SIZE = 8


def noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)


def save(target: Path, seed: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(seed)).save(target)


def save_many(root: Path, num_images: int) -> Path:
    """a/x/0000.bmp, a/x/0001.bmp, … in one domain and class."""
    for seed in range(num_images):
        save(root / f"a/x/{seed:04}.bmp", seed)
    return root


def prepare_folder(root: Path, image_size: int = SIZE) -> Prepared:
    return prepare(list_images(root), image_size)


def load_folder(root: Path, image_size: int = SIZE, skip_bad: bool = False) -> Pool:
    return load_images(list_images(root), "name", image_size, skip_bad)


def assert_images(pool: Pool, seeds: list[int]) -> None:
    images = pool.images_NCHW[:].numpy()
    assert np.array_equal(images.transpose(0, 2, 3, 1), np.stack([noise(seed) for seed in seeds]))
