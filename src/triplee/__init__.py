"""TripleE: domain generalization by episodic replay.

Five drop-in pieces for somebody's own loop – ESAug, ReplayCollate, SupConLoss, PartSampler, Ensemble – and the
functions under them in `triplee.augment`; and `load`, which gives a trained run for use. They load when first used,
so that importing the package costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Each stream of a stack wants a queue of its own to the GPU, which has eight unless it is told before anybody asks for
# it. With the fused stem twelve ResNet-18 take 5 % less time like this (bench/results/stem-gpu.json).
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

if TYPE_CHECKING:
    from triplee.augment import ESAug, ReplayCollate
    from triplee.engine.ensemble import Ensemble
    from triplee.engine.loading import load
    from triplee.engine.losses import SupConLoss
    from triplee.nets.stylizer_file import load_stylizer
    from triplee.plan import PartSampler

_HOMES = {
    "ESAug": "triplee.augment",
    "ReplayCollate": "triplee.augment",
    "SupConLoss": "triplee.engine.losses",
    "PartSampler": "triplee.plan",
    "Ensemble": "triplee.engine.ensemble",
    "load": "triplee.engine.loading",
    "load_stylizer": "triplee.nets.stylizer_file",
    "augment": "triplee.augment",
}

__all__ = [
    "ESAug",
    "Ensemble",
    "PartSampler",
    "ReplayCollate",
    "SupConLoss",
    "__version__",
    "load",
    "load_stylizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triplee' has no attribute {name!r}")
    module = import_module(_HOMES[name])
    return module if name == "augment" else getattr(module, name)
