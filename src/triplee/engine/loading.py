"""Reads a trained run back for use, from its run folder or from a folder in the layout of the Hugging Face Hub.

Comes in: a folder; goes out: a Classifier. What is unfinished, damaged, of another version or none at all is one line.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from triplee.engine.classifier import Classifier
from triplee.engine.stack import native_precision
from triplee.nets.network import Network
from triplee.runfolder import RunFolder, check_config, is_result, read_config, read_tensors, recipe_of
from triplee.settings import InputError, Recipe, make_recipe, user_path

HUB_CONFIG, HUB_WEIGHTS = "config.json", "model.safetensors"


def load(path: str | Path, device: str | torch.device | None = None) -> Classifier:
    """The classifier of a run's selected epoch, on a GPU where there is one unless `device` says otherwise.

    Of an unfinished run it is the best epoch so far, with a UserWarning.
    """
    classifier = load_quietly(path, device)
    if line := describe_unfinished(path):
        warnings.warn(f"{line}; {describe_stand_in(classifier)}", UserWarning, stacklevel=2)
    return classifier


def describe_unfinished(path: str | Path) -> str:
    """How far a run has come that is not finished, and the way on; nothing of any other, or of an exported folder."""
    path = user_path(path)
    folder = RunFolder(path)
    if is_hub_folder(path) or folder.result_path.exists():
        return ""
    config = read_config(path)
    if config.get("how") == "soup":
        return f"{path} is not finished: make it anew with `triplee fuse`"
    num_epochs = recipe_of(config, folder.config_path).epochs
    done = f"epoch {len(folder.read_metrics())} of {num_epochs} so far"
    return f"{path} is not finished, {done}: let it end, or go on with --resume"


def describe_stand_in(classifier: Classifier) -> str:
    """What is used of an unfinished run."""
    return f"until then its best epoch, {classifier.epoch}, is used, uncalibrated"


def load_quietly(path: str | Path, device: str | torch.device | None = None) -> Classifier:
    """As `load`, for whoever says by other means that a run is not finished."""
    path = user_path(path)
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if where.type == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device is available: load it on the CPU")
    if is_hub_folder(path):
        return _load_hub(path).to(where)
    return _load_run(path, where)


def is_hub_folder(path: Path) -> bool:
    return (path / HUB_CONFIG).is_file() and not (path / "config.yaml").exists()


def _load_run(path: Path, device: torch.device) -> Classifier:
    folder, config = RunFolder(path), read_config(path)
    recipe = recipe_of(config, folder.config_path)
    result = folder.read_result() if folder.result_path.exists() else None
    _check_members(recipe, result, folder.config_path)
    networks, epochs = [], set()
    for k in range(recipe.members):
        tensors, metadata = read_tensors(folder.member_path(k))
        networks.append(_network(recipe, config, tensors, folder.member_path(k)))
        epochs.add(metadata["epoch"])
    if len(epochs) > 1:
        raise InputError(f"{path} was cut off while saving its best epoch: finish it with `triplee train … --resume`")
    # Emulated, bfloat16 is slower than float32: a run trained on a GPU is used on a CPU in float32.
    precision = native_precision(recipe, device) if config["precision"] == "bfloat16" else "float32"
    return Classifier(
        networks,
        recipe,
        config,
        epoch=epochs.pop(),
        temperature=_temperature_of(result),
        precision=precision,
        result=result,
    ).to(device)


def _load_hub(path: Path) -> Classifier:
    """What `export --format hub` wrote: all members in one file, in float32."""
    file = path / HUB_CONFIG
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError):
        config = None
    config = check_config(config, path, file)
    recipe = recipe_of(config, file)
    result = config.get("result")
    if "result" not in config or not (result is None or is_result(result)):
        raise InputError(f"{file} is damaged (its result): restore it, or export the run again")
    _check_members(recipe, result, file)
    if not (path / HUB_WEIGHTS).exists():
        raise InputError(f"{path / HUB_WEIGHTS} is missing: copy the folder whole, or export the run again")
    tensors, metadata = read_tensors(path / HUB_WEIGHTS)
    networks = []
    for k in range(recipe.members):
        own = {name.removeprefix(f"{k}."): t for name, t in tensors.items() if name.startswith(f"{k}.")}
        networks.append(_network(recipe, config, own, path / HUB_WEIGHTS))
    temperature = _temperature_of(result)
    return Classifier(networks, recipe, config, epoch=metadata["epoch"], temperature=temperature, result=result)


def _network(recipe: Recipe, config: dict[str, Any], tensors: dict[str, Tensor], file: Path) -> Network:
    """A member for use: the projection head is for training alone."""
    network = Network(make_recipe({"supcon_weight": 0.0}, recipe), len(config["classes"]))
    try:
        network.load_state_dict({name: t for name, t in tensors.items() if not name.startswith("head.")})
    except RuntimeError:
        raise InputError(f"{file} does not fit the run's recipe: restore it, or train again") from None
    return network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _check_members(recipe: Recipe, result: dict[str, Any] | None, file: Path) -> None:
    """The temperature is fitted for all members of a finished run."""
    if result and len(result["members"]) != recipe.members:
        num = len(result["members"])
        raise InputError(f"{file} says members: {recipe.members}, but the run was finished with {num}: put it back")


def _temperature_of(result: dict[str, Any] | None) -> float:
    """1 for a run that was not calibrated: one of an earlier version, or one that is not finished."""
    calibration = result.get("calibration") if result else None
    return 1.0 if calibration is None else float(calibration["temperature"])
