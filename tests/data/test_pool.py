"""Images that stay on disk: read as a tensor would be indexed, and without filling the memory."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from noise_images import SIZE, assert_images, load_folder, noise, prepare_folder, save

from triplee.data.pool import MappedImages
from triplee.settings import InputError

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def mapped(root: Path) -> MappedImages:
    return MappedImages(prepare_folder(root).manifest.pixels, (8, 3, SIZE, SIZE))


def test_mapped_images_equal_resident_ones(mapped: MappedImages) -> None:
    resident = torch.from_numpy(np.stack([noise(seed).transpose(2, 0, 1) for seed in range(8)]))
    assert mapped.shape == resident.shape and len(mapped) == 8
    assert (mapped.dtype, mapped.device) == (resident.dtype, resident.device)
    for index in (
        torch.tensor([5, 0, 5, 7, -1]),
        torch.tensor([], dtype=torch.int64),
        slice(None),
        slice(2, 5),
        slice(-3, None, 2),
        slice(6, 2),
        3,
        -8,
    ):
        images = mapped[index]
        assert images.dtype == torch.uint8 and torch.equal(images, resident[index])


@pytest.mark.parametrize(
    "index", [8, -9, torch.tensor([0, 8]), torch.tensor([True] * 8), torch.tensor([0.5]), torch.tensor([[0]])]
)
def test_mapped_images_refuse_other_indices(mapped: MappedImages, index: Any) -> None:
    with pytest.raises(IndexError):
        mapped[index]


def test_mapped_images_outlive_the_store_they_come_from(mapped: MappedImages, root: Path) -> None:
    save(root / "a/x/0.png", 9)
    assert prepare_folder(root).num_decoded == 1
    assert not mapped.file.exists()
    assert np.array_equal(mapped[0].numpy().transpose(1, 2, 0), noise(0))
    assert_images(load_folder(root), [9, 1, 2, 3, 4, 5, 6, 7])


def test_a_file_cut_off_under_mapped_images_is_one_line(mapped: MappedImages) -> None:
    os.truncate(mapped.file, 100)
    with pytest.raises(InputError, match="cut off"):
        mapped[torch.tensor([3])]


READ_ALL = """
import resource, sys
from pathlib import Path
import torch
from triplee.data.pool import MappedImages

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

images = MappedImages(Path(sys.argv[1]), (1000, 3, 160, 160))
windows = torch.randperm(1000, generator=torch.Generator().manual_seed(0)).split(16)
for window in windows[:10]:  # what torch itself takes once
    images[window].sum()
before = resident_bytes()
total = sum(int(images[window].sum()) for window in windows)
print(total, resident_bytes() - before)
"""


def test_memory_stays_flat_while_all_images_are_read(tmp_path: Path) -> None:
    pixels = np.arange(1000 * 3 * 160 * 160, dtype=np.uint8)
    pixels.tofile(tmp_path / "pixels.u8")
    command = [sys.executable, "-c", READ_ALL, str(tmp_path / "pixels.u8")]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    total, grown = map(int, output.split())
    assert total == pixels.sum(dtype=np.int64)
    assert grown < pixels.nbytes / 10
