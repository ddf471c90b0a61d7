"""A trained run, read back for use: its ensemble, classes and input size.

Comes in: a run folder; goes out: a LoadedRun whose `probabilities` takes uint8 images (N,3,H,W).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triplee.data.pool import MappedImages
from triplee.engine.ensemble import Ensemble
from triplee.nets.network import Network
from triplee.runfolder import RunFolder, read_config, read_tensors
from triplee.settings import InputError, Recipe, make_recipe

BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class LoadedRun:
    """The selected epoch of a run."""

    ensemble: Ensemble
    recipe: Recipe
    config: dict[str, Any]
    epoch: int

    @torch.inference_mode()
    def probabilities(self, images_NCHW: Tensor | MappedImages, index_N: np.ndarray) -> Tensor:
        """Softmax outputs (M, N, num_classes) of every member on the images `index_N`, in batches, on the host."""
        device = next(self.ensemble.parameters()).device
        bfloat16 = self.config["precision"] == "bfloat16"
        batches = torch.from_numpy(index_N).split(max(1, BATCH_BYTES // math.prod(images_NCHW.shape[1:])))
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            outputs = [self.ensemble.member_probabilities(images_NCHW[batch].to(device)).cpu() for batch in batches]
        return torch.cat(outputs, 1)


def load_run(path: Path, device: torch.device | None = None) -> LoadedRun:
    """The ensemble of a run's selected epoch; a run that is unfinished, damaged or none at all is one line."""
    folder = RunFolder(path)
    config = read_config(path)
    try:
        recipe = make_recipe(config["recipe"])
    except InputError as error:
        raise InputError(f"{folder.config_path} is damaged ({error}): restore it, or train again") from None
    networks, epochs = [], set()
    for k in range(recipe.members):
        tensors, metadata = read_tensors(folder.member_path(k))
        network = Network(recipe, len(config["classes"]))
        try:
            network.load_state_dict(tensors)
        except RuntimeError:
            raise InputError(
                f"{folder.member_path(k)} does not fit the run's recipe: restore it, or train again"
            ) from None
        networks.append(network.to(memory_format=torch.channels_last))  # pyright: ignore[reportCallIssue]
        epochs.add(metadata["epoch"])
    if len(epochs) > 1:
        raise InputError(f"{path} was cut off while saving its best epoch: finish it with `triplee train … --resume`")
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return LoadedRun(Ensemble(networks).to(device).eval(), recipe, config, epochs.pop())
