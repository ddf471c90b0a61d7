"""A trained run at work: accuracy by domain, and predictions for image files ("Protocol").

Comes in: a LoadedRun and a pool or files; goes out: scores or predictions. Images are never augmented here.
Axis: N images.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triplee.data.decode import BadImage, decode_image
from triplee.data.folder import SUFFIXES
from triplee.data.pool import Pool
from triplee.engine.ensemble import accuracies
from triplee.engine.loading import LoadedRun
from triplee.settings import InputError, nearest


@dataclass(frozen=True)
class DomainScore:
    """Top-1 accuracy in percent on all images of a domain."""

    domain: str
    role: str  # whether the run was trained on it
    num_images: int
    accuracy: float
    members: list[float]


def evaluate_run(loaded: LoadedRun, pool: Pool, *, own_data: bool, domain: str | None) -> list[DomainScore]:
    """Scores of the named domain; without a name the target of the run's own data, or every domain of other data."""
    config = loaded.config
    known = {name: k for k, name in enumerate(config["classes"])}
    strangers = [name for name in pool.classes if name not in known]
    if strangers:
        raise InputError(
            f"the run does not know class {strangers[0]!r} of {pool.name}: its classes are {', '.join(known)}"
        )
    if domain is not None and domain not in pool.domains:
        raise InputError(f"unknown domain {domain!r}: {nearest(domain, pool.domains)}")
    wanted = [domain] if domain else [config["target"]] if own_data else list(pool.domains)
    if wanted[0] not in pool.domains:
        raise InputError(f"{pool.name} no longer has the run's target {config['target']!r}: name another with --domain")
    labels_N = np.array([known[name] for name in pool.classes])[pool.labels_N]
    scores = []
    for name in wanted:
        index_N = np.flatnonzero(pool.domains_N == pool.domains.index(name))
        probabilities = loaded.probabilities(pool.images_NCHW, index_N)
        ensemble, members = accuracies(probabilities, labels_N[index_N])
        unseen = name in (config["target"], config.get("left_out"))
        role = "other data" if not own_data else "no" if unseen else "yes"
        scores.append(DomainScore(name, role, len(index_N), ensemble, members))
    return scores


@dataclass(frozen=True)
class Prediction:
    """What the ensemble says of one image. `disagreement`: the share of members that would say another class."""

    image: Path
    label: str
    confidence: float
    disagreement: float

    def as_record(self) -> dict[str, Any]:
        return {
            "image": str(self.image),
            "class": self.label,
            "confidence": round(self.confidence, 4),
            "disagreement": round(self.disagreement, 4),
        }


def predict_files(
    loaded: LoadedRun, paths: Iterable[Path], skip_bad: bool = False
) -> tuple[list[Prediction], list[str]]:
    """A prediction for every image named or found in a folder named; and what was skipped, with the reason."""
    files = [file for path in paths for file in _find_images(path)]
    images, kept, skipped = [], [], []
    for file in files:
        try:
            images.append(torch.from_numpy(decode_image(file, loaded.recipe.image_size)))
            kept.append(file)
        except BadImage as error:
            if not skip_bad:
                raise InputError(f"{error}; --skip-bad leaves such images out") from None
            skipped.append(str(error))
    if not images:
        return [], skipped
    probabilities = loaded.probabilities(torch.stack(images), np.arange(len(images)))
    confidence, chosen = probabilities.mean(0).max(1)
    disagreement = (probabilities.argmax(2) != chosen).double().mean(0)
    classes = loaded.config["classes"]
    rows = zip(kept, chosen.tolist(), confidence.tolist(), disagreement.tolist(), strict=True)
    return [Prediction(file, classes[c], p, d) for file, c, p, d in rows], skipped


def _find_images(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        if not found:
            raise InputError(f"{path} has no images (looked for {', '.join(sorted(SUFFIXES))})")
        return found
    if not path.exists():
        raise InputError(f"{path} does not exist")
    return [path]
