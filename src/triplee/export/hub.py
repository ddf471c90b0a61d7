"""A folder in the layout of the Hugging Face Hub: weights, config, preprocessing and a model card.

Comes in: a Classifier; goes out: model.safetensors, config.json, preprocessor_config.json and README.md, which
`triplee.load` reads again. Nothing is sent anywhere, and no path of this machine is in it: pushing is the user's step.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
import yaml

from triplee import __version__
from triplee.engine.classifier import Classifier
from triplee.engine.loading import HUB_CONFIG, HUB_WEIGHTS
from triplee.engine.selection import describe_calibration, describe_selection
from triplee.runfolder import write_atomically, write_tensors
from triplee.settings import FILE_KEYS, InputError


def export_hub(classifier: Classifier, folder: Path) -> None:
    """Write the folder; its config comes last, so that what is cut off is not taken for a model."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not an empty folder: choose another --out")
    tensors = {
        f"{k}.{name}": tensor
        for k, network in enumerate(classifier.networks)
        for name, tensor in network.state_dict().items()
    }
    write_tensors(folder / HUB_WEIGHTS, tensors, {"epoch": classifier.epoch})
    write_atomically(folder / "README.md", _card(classifier).encode())
    for name, values in (("preprocessor_config.json", _preprocessing(classifier)), (HUB_CONFIG, _config(classifier))):
        write_atomically(folder / name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())


def _config(classifier: Classifier) -> dict[str, Any]:
    """The run's own config without places on this machine, and what the Hub's readers look for."""
    config, recipe, data = classifier.config, classifier.recipe.model_dump(), Path(classifier.config["data"]).name
    return {
        "model_type": "triplee",
        "id2label": {str(k): name for k, name in enumerate(classifier.classes)},
        "label2id": {name: k for k, name in enumerate(classifier.classes)},
        **{
            key: value
            for key, value in config.items()
            if key not in ("root", "teacher", "weights_fingerprint", "stylizer_fingerprint")
        },
        "data": data,
        "precision": "float32",
        "recipe": {**recipe, **{key: Path(recipe[key]).name for key in FILE_KEYS}},
        "result": {**classifier.result, "data": data} if classifier.result else None,
    }


def _preprocessing(classifier: Classifier) -> dict[str, Any]:
    """Under the names that image processors of the Hub use."""
    size, (mean, std) = classifier.recipe.image_size, _mean_and_std(classifier)
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 2,  # Pillow's bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def _mean_and_std(classifier: Classifier) -> tuple[list[float], list[float]]:
    backbone = classifier.networks[0].backbone
    return list(backbone.mean), list(backbone.std)


def _plain(value: object) -> str:
    """A name as Markdown that shows it as it is, whatever signs are in it, on one line."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(str(value).split()))


def _card(classifier: Classifier) -> str:
    config, recipe, result = classifier.config, classifier.recipe, classifier.result
    target = _plain(config["target"])
    sources = [_plain(name) for name in config["domains"] if name not in (config["target"], config.get("left_out"))]
    header = {
        "library_name": "triplee",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "domain-generalization", "triplee"],
    }
    size = sum(p.numel() for p in classifier.parameters())
    num = "one network" if classifier.num_members == 1 else f"an ensemble of {classifier.num_members} networks"
    lines = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n",
        f"# {_plain(Path(config['data']).name)}, without {target}\n",
        f"An image classifier of {len(classifier.classes)} classes, {num} ({_plain(recipe.backbone)}, {size:,} weights"
        f" in all), trained by triplee {config['version']} on the domains {', '.join(sources)} to work"
        f" on domains it never saw; {target} was held out and only tested on.\n",
        "## Measured\n",
        _measured(classifier, result),
        "## Use\n",
        '```python\nimport triplee\n\nmodel = triplee.load("this folder")\n'
        'for prediction in model.predict(["photo.jpg"]):\n'
        "    print(prediction.label, prediction.confidence, prediction.disagreement)\n```\n",
        f"As a module it takes uint8 RGB images (N,3,H,W) and gives probabilities (N,{len(classifier.classes)});"
        f" preprocessing is inside: squashed to {recipe.image_size} × {recipe.image_size} (bilinear, whatever the"
        f" aspect), then (pixel / 255 − mean) / std, as in `preprocessor_config.json`. `model.safetensors` holds each"
        " network under its number.\n",
        f"## Classes\n\nIn this order: {', '.join(map(_plain, classifier.classes))}\n",
        f"## Training\n\nRecipe {_plain(config['recipe_name'])}, seed {config['seed']},"
        f" selected epoch {classifier.epoch}:\n",
        "| key | value |\n|---|---|",
        *(f"| {key} | {_plain(value)} |" for key, value in _config(classifier)["recipe"].items()),
        "\n## Limits\n\nIt knows these classes and no others: any image is given one of them. Confidence was calibrated"
        " on images of the source domains, if at all, and is less to be trusted elsewhere."
        f" Exported by triplee {__version__} with torch {torch.__version__}.\n",
    ]
    return "\n".join(lines)


def _measured(classifier: Classifier, result: dict[str, Any] | None) -> str:
    if result is None:
        return "Nothing: this is a part of a run, or a run that was not finished.\n"
    return (
        "| images | accuracy |\n|---|---|\n"
        f"| {_plain(classifier.config['target'])}, never seen | {result['accuracy']:.2f} % |\n"
        f"| source validation | {result['val_accuracy']:.2f} % |\n\n"
        f"Kept: {describe_selection(result)}; {describe_calibration(result)}.\n"
    )
