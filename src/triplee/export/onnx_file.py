"""One ONNX file of a whole ensemble: resizing, normalising, members, mean and calibration inside, in float32.

Comes in: a Classifier; goes out: a file that takes `images`, uint8 (N,3,H,W), and gives `probabilities` (N,C) wherever
there is an ONNX runtime. It is written only after its outputs were compared with PyTorch's, where onnxruntime is there.
"""

import copy
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from triplee.engine.classifier import Classifier
from triplee.runfolder import write_atomically
from triplee.seeding import generator
from triplee.settings import InputError

TOLERANCE = 1e-4
OPSET = 18  # the first whose Resize averages where it shrinks, as Pillow does


def export_onnx(classifier: Classifier, path: Path) -> float | None:
    """Write the file; gives the largest difference from PyTorch's probabilities, none where it was not checked."""
    if path.exists():
        raise InputError(f"{path} exists: choose another --out")
    classifier = copy.deepcopy(classifier).to("cpu")
    classifier.precision = "float32"
    content = _convert(classifier)
    difference = _compare(classifier, content)
    if difference is not None and not difference <= TOLERANCE:
        raise InputError(
            f"the ONNX model is {difference:.1e} off PyTorch's probabilities: nothing was written,"
            " try other versions of torch, onnx and onnxscript"
        )
    write_atomically(path, content)
    return difference


def _convert(classifier: Classifier) -> bytes:
    try:
        import onnx  # pyright: ignore[reportMissingImports]
        import onnxscript  # noqa: F401  # pyright: ignore[reportMissingImports] – what torch's exporter is built on
    except ModuleNotFoundError as error:
        raise InputError(f"an ONNX file needs onnx and onnxscript ({error}): pip install 'triplee[onnx]'") from None
    size = classifier.recipe.image_size
    example = torch.zeros((2, 3, size + 3, size + 5), dtype=torch.uint8)  # no two axes alike: all of them may vary
    dynamic = torch.export.Dim.DYNAMIC
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it tells of operators that nobody here uses
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                classifier,
                (example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes={"images_NCHW": {0: dynamic, 2: dynamic, 3: dynamic}},
            )
            assert program is not None
            model = program.model_proto
            for part in (model.graph, *model.functions):
                _forget_origins(part)
            onnx.helper.set_model_props(model, {key: str(value) for key, value in _facts(classifier).items()})
            return model.SerializeToString()
    except Exception as error:  # any backbone of timm may hold what the exporter cannot convert, or be over 2 GB
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{classifier.recipe.backbone} cannot be converted to ONNX: {reason}") from None
    finally:
        exporter.setLevel(level)


def _forget_origins(graph: Any) -> None:
    """Take out where each node comes from: torch notes files and lines, which are paths of this machine."""
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _forget_origins(inner)


def _facts(classifier: Classifier) -> dict[str, Any]:
    """What somebody with the file alone wants to know."""
    return {
        "classes": json.dumps(classifier.classes, ensure_ascii=False),
        "image_size": classifier.recipe.image_size,
        "members": classifier.num_members,
        "temperature": classifier.temperature,
        "target": classifier.config["target"],
        "made_by": f"triplee {classifier.config['version']}",
    }


@torch.no_grad()
def _compare(classifier: Classifier, content: bytes) -> float | None:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    size, differences = classifier.recipe.image_size, []
    for num_images, height, width in ((1, size, size), (7, size, size), (2, 2 * size + 1, size // 2)):
        images = generator(0, "ONNX check", num_images).integers(0, 256, (num_images, 3, height, width), np.uint8)
        (found,) = session.run(["probabilities"], {"images": images})
        expected = classifier(torch.from_numpy(images)).numpy()
        differences.append(float(np.abs(np.asarray(found) - expected).max()))
    return max(differences)
