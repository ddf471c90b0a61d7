"""One network instead of m, for where m are too many: weights averaged (a soup), or one student of the ensemble.

Comes in: a finished run and its data; goes out: a run folder of one member, which evaluates, predicts and exports like
any other, and what it costs and gives beside the ensemble. Not of the paper. Axes: M members, N images, C classes.
"""

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplee import __version__
from triplee.data.pool import Pool
from triplee.data.split import Split
from triplee.engine.calibration import calibrate
from triplee.engine.classifier import Classifier
from triplee.engine.ensemble import accuracies
from triplee.engine.loading import load_quietly
from triplee.engine.run_state import Run
from triplee.engine.train import Observer, train_runs
from triplee.nets.network import Network
from triplee.plan import statistics_batches
from triplee.runfolder import RunFolder, write_tensors
from triplee.settings import InputError, Recipe, make_recipe

SPEED_ROUNDS = 7
SPEED_IMAGES = 256
ONE_NETWORK = {"members": 1, "supcon_weight": 0.0, "selection": "source-val"}
OF_EVERY_STUDENT = (*ONE_NETWORK, "image_size")  # recipe keys that nobody sets for a student


def student_recipe(teacher: Recipe, changes: dict[str, Any]) -> Recipe:
    """One member that sees all of the training set; it learns outputs, which the contrast has no use for."""
    if teacher.selection == "oracle":
        raise InputError("the target chose this run's epoch (selection: oracle): what is made of it would hide that")
    for key in changes:
        if key in OF_EVERY_STUDENT:
            raise InputError(f"--set {key}: a student has the teacher's image_size, one member and no contrast")
    return make_recipe({**ONE_NETWORK, **changes}, teacher)


def distill(
    run: Path,
    classifier: Classifier,
    pool: Pool,
    split: Split,
    out: Path,
    recipe: Recipe,
    *,
    observer: Observer,
    resume: bool,
    device: torch.device,
) -> None:
    """Train a student on the source images: on each view it learns what the ensemble makes of that same view."""
    config = classifier.config
    student = Run(split, recipe, out, f"{config['recipe_name']}-distilled", config["seed"], run)
    train_runs(pool, [student], observer=observer, resume=resume, device=device)


def average_weights(classifier: Classifier, batches: Iterable[Tensor]) -> Network:
    """A network of the members' mean weights; its batch norm takes the statistics of their features on these images."""
    states = [network.state_dict() for network in classifier.networks]
    soup = copy.deepcopy(classifier.networks[0])
    for name, tensor in soup.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.stack([state[name] for state in states]).mean(0))
    with classifier.autocast():
        soup.estimate_statistics(images.to(classifier.device) for images in batches)
    return soup


def make_soup(run: Path, classifier: Classifier, pool: Pool, split: Split, out: Path) -> None:
    """Write the run folder of the averaged network, measured like any other run; one that was cut off is made anew."""
    began = time.monotonic()
    recipe = student_recipe(classifier.recipe, {})
    config = {
        **classifier.config,
        "version": __version__,
        "recipe_name": f"{classifier.config['recipe_name']}-soup",
        "recipe": recipe.model_dump(),
        "teacher": str(run.absolute()),
        "how": "soup",
    }
    folder = RunFolder(out)
    folder.claim(config, resume=folder.config_path.exists() and not folder.result_path.exists())
    try:
        batches = statistics_batches(split.train_N, config["seed"])
        averaged = average_weights(classifier, (pool.images_NCHW[torch.from_numpy(batch)] for batch in batches))
        write_tensors(folder.member_path(0), averaged.state_dict(), {"epoch": classifier.epoch, "member": 0})
        soup = load_quietly(out, classifier.device)
        found = _measure(soup, pool, split)
        accuracy = found["accuracy"]
        result = {
            **{key: config[key] for key in ("data", "target", "seed")},
            "recipe": config["recipe_name"],
            "selection": recipe.selection,
            **found,
            "epoch": classifier.epoch,
            "members": [accuracy],
            "last_accuracy": accuracy,
            "oracle_accuracy": accuracy,
            "seconds": round(time.monotonic() - began, 2),
            "version": __version__,
        }
        folder.write_result(result)
    finally:
        folder.release()


def _measure(classifier: Classifier, pool: Pool, split: Split) -> dict[str, Any]:
    val_NC, target_NC = (classifier.probabilities(pool.images_NCHW, n).mean(0) for n in (split.val_N, split.target_N))
    labels = torch.from_numpy(pool.labels_N)
    return {
        "accuracy": accuracies(target_NC[None], pool.labels_N[split.target_N])[0],
        "val_accuracy": accuracies(val_NC[None], pool.labels_N[split.val_N])[0],
        "calibration": calibrate(val_NC, labels[split.val_N], target_NC, labels[split.target_N]),
    }


@dataclass(frozen=True)
class Cost:
    """What a classifier gives and takes."""

    accuracy: float
    val_accuracy: float
    num_weights: int
    images_per_second: float


def weigh(classifiers: list[Classifier], pool: Pool, split: Split) -> list[Cost]:
    """Accuracy, size and speed of some classifiers on the same images; speed in turn, the median of several rounds.

    Accuracy is what a finished run has measured of itself.
    """
    images = pool.images_NCHW[torch.from_numpy(np.resize(split.target_N, SPEED_IMAGES))]
    rounds: list[list[float]] = [[] for _ in classifiers]
    for _ in range(SPEED_ROUNDS + 1):
        for seconds, classifier in zip(rounds, classifiers, strict=True):
            began = time.perf_counter()
            classifier.member_probabilities(images)
            seconds.append(time.perf_counter() - began)
    costs = []
    for seconds, classifier in zip(rounds, classifiers, strict=True):
        found = classifier.result or _measure(classifier, pool, split)
        size = sum(parameter.numel() for parameter in classifier.parameters())
        speed = SPEED_IMAGES / median(seconds[1:])  # the first round warms up
        costs.append(Cost(found["accuracy"], found["val_accuracy"], size, speed))
    return costs


def check_data(classifier: Classifier, run: Path, pool: Pool) -> None:
    """Other images would be split otherwise: what was trained on might be tested on."""
    if pool.fingerprint != classifier.config["data_fingerprint"]:
        raise InputError(f"{pool.name} has changed since {run} was trained on it: put it back as it was")
