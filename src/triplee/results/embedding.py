"""What a network makes of images: features, their t-SNE map, nearest training images, and numbers beside them.

Comes in: a Classifier and images of a pool; goes out: arrays (paper, § "Visualization results").
Axes: N images, F features of all members, K neighbours.
"""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from triplee.data.pool import Pool
from triplee.engine.classifier import Classifier
from triplee.seeding import generator
from triplee.settings import InputError

MOST_POINTS = 1000  # of a map: more are drawn over each other
BATCH = 64  # images: what lies between layers stays in a CPU's cache, 2.7 times as fast as 1,365 digits at once
PERPLEXITY = 30
NEIGHBOURS = 5
NO_MAP = "too few images, or features that are all alike: there is nothing to map"


@torch.inference_mode()
def features_of(classifier: Classifier, pool: Pool, index_N: np.ndarray) -> np.ndarray:
    """Pooled features (N,F) of the images, of unit length for each member, one member after another."""
    found = []
    for batch in torch.from_numpy(index_N).split(BATCH):
        images = pool.images_NCHW[batch].to(classifier.device)
        members = [network.features(images).float() for network in classifier.networks]
        found.append(torch.cat([torch.nn.functional.normalize(member, dim=1) for member in members], 1).cpu())
    return torch.cat(found).numpy()


def choose_points(index_N: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Some of the images, the same each time."""
    if len(index_N) <= most:
        return index_N
    return np.sort(generator(0, "map").choice(index_N, most, replace=False))


def make_map(features_NF: np.ndarray) -> np.ndarray:
    """t-SNE: places (N,2) in which neighbours stay neighbours; the same from the same features."""
    from sklearn.manifold import TSNE

    if len(features_NF) < 4 or np.ptp(features_NF, axis=0).max() < 1e-6:
        raise InputError(NO_MAP)
    perplexity = min(PERPLEXITY, max(1, (len(features_NF) - 1) // 4))
    return TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features_NF)


def make_maps(features: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """A map of each, side by side on all cores; none where there is nothing to map."""
    import sklearn.manifold  # noqa: F401  threads are limited of libraries that are there
    from threadpoolctl import threadpool_limits  # scikit-learn's own

    def try_map(features_NF: np.ndarray) -> np.ndarray | None:
        # A map alone is no faster on several threads, and on busy cores they wait for each other at every step.
        with threadpool_limits(1, "openmp"):
            try:
                return make_map(features_NF)
            except InputError:
                return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(try_map, features))


def nearest_images(features_NF: np.ndarray, known_TF: np.ndarray, count: int = NEIGHBOURS) -> np.ndarray:
    """For each image the rows (N,K) of the nearest known ones, the nearest first."""
    similarity_NT = features_NF @ known_TF.T
    return np.argsort(-similarity_NT, axis=1, kind="stable")[:, :count]


def judge_features(
    features_NF: np.ndarray, labels_N: np.ndarray, known_TF: np.ndarray, known_labels_T: np.ndarray
) -> dict[str, float]:
    """How often, in percent, the 5 nearest training images vote for the right class; and the classes' silhouette."""
    from sklearn.metrics import silhouette_score

    votes_NK = known_labels_T[nearest_images(features_NF, known_TF)]
    chosen_N = np.array([np.bincount(votes).argmax() for votes in votes_NK])
    several = 1 < len(np.unique(labels_N)) < len(labels_N)
    silhouette = float(silhouette_score(features_NF, labels_N)) if several else math.nan
    return {"neighbours": 100 * float((chosen_N == labels_N).mean()), "silhouette": silhouette}


def describe_features(judged: Mapping[str, float]) -> str:
    """What `judge_features` found, in words."""
    right = f"{judged['neighbours']:.1f} % right by a vote of the {NEIGHBOURS} nearest training images"
    return f"{right}, silhouette {_show_silhouette(judged)}"


def describe_shortly(judged: Mapping[str, float]) -> str:
    """The same in a few words, for the head of a map."""
    return f"{NEIGHBOURS}-NN accuracy {judged['neighbours']:.1f} %, silhouette {_show_silhouette(judged)}"


def _show_silhouette(judged: Mapping[str, float]) -> str:
    """One class has none."""
    value = judged["silhouette"]
    return "…" if math.isnan(value) else f"{value:.3f}".replace("-", "−")
