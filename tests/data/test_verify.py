"""Verify tells a benchmark that is whole from one that is not, and finds what would spoil results."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triplee.data.catalog import Benchmark, find_benchmark
from triplee.data.folder import list_images
from triplee.data.verify import Verdict, verify_images

ENTRY = {
    **find_benchmark("pacs").model_dump(),
    "domains": {"day": [], "night": []},
    "classes": {"deer": [], "fox": []},
    "val_images": None,
    "variants": [
        {"name": "small", "note": "as published", "counts": {"day": {"deer": 3, "fox": 2}, "night": {"deer": 1}}},
        {"name": "large", "note": "with copies", "counts": {"day": 9, "night": 4}},
    ],
}
BENCHMARK = Benchmark.model_validate(ENTRY)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six images, no two alike: the variant "small"."""
    rng = np.random.default_rng(0)
    for name in ("day/deer/1", "day/deer/2", "day/deer/3", "day/fox/1", "day/fox/2", "night/deer/1"):
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return tmp_path


def verify(root: Path, benchmark: Benchmark | None = BENCHMARK) -> Verdict:
    return verify_images(list_images(root), benchmark)


def test_as_published(root: Path) -> None:
    told: list[tuple[int, int]] = []
    verdict = verify_images(list_images(root), BENCHMARK, lambda done, total: told.append((done, total)))
    assert verdict.faults == () and verdict.notes == ()
    assert verdict.variant is not None and verdict.variant.name == "small"
    assert verdict.counts_DK.tolist() == [[3, 2], [1, 0]]
    assert verdict.split_counts() == (0, 0, 6)
    assert told[-1] == (6, 6)


def test_a_lost_image_is_counted_by_class(root: Path) -> None:
    (root / "day/fox/2.png").unlink()
    verdict = verify(root)
    assert verdict.variant is None
    assert verdict.faults == ("5 images, PACS has 6 or 13", "day/fox: 1 image, 2 are published")


def test_what_training_would_warn_of_or_refuse_is_noted_of_a_folder(root: Path) -> None:
    assert verify(root, None).notes == ("domain 'night' has no image of class 'fox'",)
    shutil.rmtree(root / "day/fox")
    shutil.rmtree(root / "night")
    assert verify(root, None).notes == (
        "'day' is the only domain: training holds one out, and needs another one",
        "'deer' is the only class: training needs another one",
    )


def test_one_too_many_in_one_class_and_one_too_few_in_another(root: Path) -> None:
    (root / "day/fox/2.png").rename(root / "day/deer/4.png")
    assert verify(root).faults == (
        "day/deer: 4 images, 3 are published",
        "day/fox: 1 image, 2 are published",
    )


def test_unreadable_images_are_named(root: Path) -> None:
    (root / "day/deer/1.png").write_text("no image at all")
    whole = (root / "day/deer/2.png").read_bytes()
    (root / "day/deer/2.png").write_bytes(whole[:-30])
    (root / "day/deer/3.png").unlink()
    (root / "day/deer/3.png").symlink_to("nowhere")
    (fault,) = verify(root).faults
    assert fault.startswith("3 images that cannot be read: day/deer/1.png (not an image")
    assert "day/deer/3.png (No such file" in fault


def test_copies_within_a_domain_are_noted(root: Path) -> None:
    shutil.copy(root / "day/deer/1.png", root / "day/deer/2.png")
    shutil.copy(root / "day/deer/3.png", root / "day/fox/1.png")
    verdict = verify(root)
    assert verdict.faults == ()
    assert verdict.notes == (
        "1 image of two classes: day/deer/3.png = day/fox/1.png",
        "1 image copied exactly within a domain: day/deer/1.png = day/deer/2.png",
    )


@pytest.mark.parametrize("benchmark", [BENCHMARK, None], ids=["benchmark", "folder"])
def test_a_leak_is_a_fault_of_a_folder_and_a_note_of_a_published_set(root: Path, benchmark: Benchmark | None) -> None:
    shutil.copy(root / "day/deer/1.png", root / "night/deer/1.png")
    verdict = verify(root, benchmark)
    (line,) = verdict.notes if benchmark else verdict.faults
    assert line.startswith("1 image in two domains") and line.endswith("day/deer/1.png = night/deer/1.png")
    assert (verdict.faults == ()) == (benchmark is not None)


def test_many_faults_are_counted_and_a_few_shown(root: Path) -> None:
    for path in (root / "day").rglob("*.png"):
        path.write_bytes(b"")
    (fault,) = verify(root).faults
    assert fault.startswith("5 images that cannot be read") and fault.count("day/") == 3 and fault.endswith(", …")
