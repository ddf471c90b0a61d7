"""Makes TerraIncognita of LILA's Caltech Camera Traps, as the field does: whole frames of four cameras, ten classes.

Comes in: an unpacked download, one flat folder of frames and COCO-like JSON files of labels. Goes out: the same folder
with `location_<camera>/<class>/<frame>` and nothing else.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from triplee.settings import InputError

CAMERAS = ("38", "43", "46", "100")


def arrange_camera_traps(folder: Path, classes: set[str]) -> str:
    """Sort the frames into place, one with labels of two classes into both; gives a line on what came of it."""
    frames = {path.name: path for path in folder.rglob("*.jpg")}
    labels = _read_labels(sorted(folder.rglob("*.json")), classes)
    if not frames or not labels:
        raise InputError(
            f"{folder} has {len(frames)} frames and {len(labels)} labels of the four cameras: both are needed"
        )
    lost = [name for name, _ in labels if name not in frames]
    if lost:
        raise InputError(f"{len(lost):,} labelled frames are missing, the first {lost[0]}: get the images again")
    others = [path for path in folder.iterdir() if path.is_dir()]
    num_placed = 0
    for (name, camera), names in sorted(labels.items()):
        for label in sorted(names):
            place = folder / f"location_{camera}" / label
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy2(frames[name], place / name)
            num_placed += 1
    for rest in others:
        shutil.rmtree(rest)
    return f"sorted {num_placed:,} of {len(frames):,} frames into four cameras"


def _read_labels(files: list[Path], classes: set[str]) -> dict[tuple[str, str], set[str]]:
    """(frame, camera) → its classes, for the four cameras and the classes of the benchmark."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in files:
        try:
            content: Any = json.loads(path.read_bytes())
            category = {entry["id"]: entry["name"] for entry in content["categories"]}
            frame = {entry["id"]: (entry["file_name"], str(entry["location"])) for entry in content["images"]}
            pairs = [(frame[entry["image_id"]], category[entry["category_id"]]) for entry in content["annotations"]]
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path.name} is not a file of camera-trap labels: get the annotations again") from None
        for (name, camera), label in pairs:
            if camera in CAMERAS and label in classes:
                found[Path(name).name, camera].add(label)
    return dict(found)
