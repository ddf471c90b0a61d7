"""Accuracy of a trained run by domain ("Protocol").

Comes in: a Classifier and a pool; goes out: scores. Images are never augmented here. Axis: N images.
"""

from dataclasses import dataclass

import numpy as np

from triplee.data.pool import Pool
from triplee.engine.classifier import Classifier
from triplee.engine.ensemble import accuracies
from triplee.settings import InputError, nearest


@dataclass(frozen=True)
class DomainScore:
    """Top-1 accuracy in percent on all images of a domain."""

    domain: str
    role: str  # whether the run was trained on it
    num_images: int
    accuracy: float
    members: list[float]


def evaluate_run(classifier: Classifier, pool: Pool, *, own_data: bool, domain: str | None) -> list[DomainScore]:
    """Scores of the named domain; without a name the target of the run's own data, or every domain of other data."""
    config = classifier.config
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
    is_own = own_data or pool.fingerprint == config["data_fingerprint"]
    labels_N = np.array([known[name] for name in pool.classes])[pool.labels_N]
    scores = []
    for name in wanted:
        index_N = np.flatnonzero(pool.domains_N == pool.domains.index(name))
        probabilities = classifier.probabilities(pool.images_NCHW, index_N)
        ensemble, members = accuracies(probabilities, labels_N[index_N])
        unseen = name in (config["target"], config.get("left_out"))
        role = "other data" if not is_own else "no" if unseen else "yes"
        scores.append(DomainScore(name, role, len(index_N), ensemble, members))
    return scores
