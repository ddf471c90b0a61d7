"""TerraIncognita is made of the camera traps' frames and labels as the field makes it."""

import json
import tarfile
from pathlib import Path

import pytest
from watching import Watcher

from triplee.data.camera_traps import arrange_camera_traps
from triplee.data.catalog import find_benchmark
from triplee.data.download import download_set
from triplee.data.locate import list_benchmark
from triplee.settings import InputError

TERRA = find_benchmark("terra-incognita")
CATEGORIES = [{"id": 6, "name": "bobcat"}, {"id": 30, "name": "empty"}, {"id": 33, "name": "car"}]
# frame, camera, categories
FRAMES = [
    ("a", 38, [6]),
    ("b", 38, [6, 6]),  # two boxes of one class
    ("c", "43", [6, 30]),  # two classes
    ("d", 46, [33]),  # a class that the benchmark has not
    ("e", 46, [30, 33]),
    ("f", 100, [30]),
    ("g", 7, [6]),  # another camera
]


def make_download(folder: Path) -> Path:
    images = folder / "eccv_18_all_images_sm"
    labels = folder / "eccv_18_annotation_files"
    for part in (images, labels):
        part.mkdir(parents=True)
    for number, half in enumerate((FRAMES[:3], FRAMES[3:])):
        content = {
            "images": [{"id": name, "file_name": f"{name}.jpg", "location": camera} for name, camera, _ in half],
            "annotations": [{"image_id": name, "category_id": c} for name, _, chosen in half for c in chosen],
            "categories": CATEGORIES,
        }
        (labels / f"part_{number}.json").write_text(json.dumps(content))
    for name, *_ in FRAMES:
        (images / f"{name}.jpg").write_text(name)
    return folder


def test_frames_go_to_camera_and_class(tmp_path: Path) -> None:
    line = arrange_camera_traps(make_download(tmp_path), set(TERRA.classes))
    placed = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert placed == [
        "location_100/empty/f.jpg",
        "location_38/bobcat/a.jpg",
        "location_38/bobcat/b.jpg",
        "location_43/bobcat/c.jpg",
        "location_43/empty/c.jpg",
        "location_46/empty/e.jpg",
    ]
    assert (tmp_path / "location_43/empty/c.jpg").read_text() == "c"
    assert line == "sorted 6 of 7 frames into four cameras"
    assert list_benchmark(TERRA, tmp_path).domains == ("L38", "L43", "L46", "L100")


def test_a_missing_frame_and_strange_labels_are_one_line(tmp_path: Path) -> None:
    (make_download(tmp_path / "lost") / "eccv_18_all_images_sm" / "a.jpg").unlink()
    with pytest.raises(InputError, match=r"^1 labelled frames are missing, the first a\.jpg"):
        arrange_camera_traps(tmp_path / "lost", set(TERRA.classes))
    (make_download(tmp_path / "odd") / "eccv_18_annotation_files" / "part_0.json").write_text('{"images": 3}')
    with pytest.raises(InputError, match=r"part_0\.json is not a file of camera-trap labels"):
        arrange_camera_traps(tmp_path / "odd", set(TERRA.classes))


def test_a_download_is_arranged_before_it_is_put_in_place(tmp_path: Path) -> None:
    source = make_download(tmp_path / "source")
    archive = tmp_path / "both.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for part in sorted(source.iterdir()):
            file.add(part, part.name)
    observer = Watcher()
    folder = download_set(TERRA, tmp_path / "root", archive, observer)
    assert len(list_benchmark(TERRA, tmp_path / "root")) == 6
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        f"location_{camera}" for camera in ("100", "38", "43", "46")
    ]
    assert any("sorted 6 of 7 frames" in line for line in observer.notes)
