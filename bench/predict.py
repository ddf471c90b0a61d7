"""Images predicted per second, from files to results: ours against a plain loop of Pillow and torch; and its memory.

Weights are random, which changes no speed. The plain loop opens, converts and resizes one image after another, stacks
64 of them and runs each network in float32.

    python bench/predict.py            # 10,000 images, on two cores; writes bench/results/predict.json
    python bench/predict.py --images 2000
"""

import argparse
import io
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from measuring import Report, ratios, summary, time_in_turn
from triplee.data.digits import load_digits
from triplee.engine.classifier import Classifier
from triplee.engine.predict import predict_files
from triplee.engine.stack import native_precision
from triplee.nets.network import Network
from triplee.settings import make_recipe

ROUNDS = 3
CASES = (  # kind of files, how many, backbone, size it takes
    ("PNG 32 × 32", 10_000, "digit-cnn", 32),
    ("JPEG 640 × 480", 10_000, "digit-cnn", 64),
    ("JPEG 640 × 480", 300, "resnet18", 96),
)


def make_classifier(backbone: str, image_size: int, precision: str) -> Classifier:
    recipe = make_recipe({"backbone": backbone, "image_size": image_size, "supcon_weight": 0.0})
    networks = [Network(recipe, 10).to(memory_format=torch.channels_last) for _ in range(recipe.members)]  # pyright: ignore[reportCallIssue]
    return Classifier(networks, recipe, {"classes": list("0123456789")}, epoch=1, precision=precision)


def make_files(kind: str, num_files: int, folder: Path) -> list[Path]:
    """Digits as they are, or pieces of two photographs; every file is its own."""
    folder.mkdir(exist_ok=True)
    pictures = digits() if kind.startswith("PNG") else photographs()
    files = [folder / f"{k:05}{'.png' if kind.startswith('PNG') else '.jpg'}" for k in range(num_files)]
    for file, content in zip(files, itertools.cycle(list(pictures)), strict=False):
        file.write_bytes(content)
    return files


def digits() -> Iterator[bytes]:
    for pixels in load_digits(32).images_NCHW:
        yield encode(Image.fromarray(pixels.permute(1, 2, 0).numpy()), "PNG")


def photographs() -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    for k in range(64):
        photo = load_sample_images().images[k % 2]
        top, left = rng.integers(photo.shape[0] - 320), rng.integers(photo.shape[1] - 420)
        yield encode(Image.fromarray(photo[top : top + 320, left : left + 420]).resize((640, 480)), "JPEG")


def encode(image: Image.Image, kind: str) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, quality=90)
    return file.getvalue()


@torch.inference_mode()
def plain_loop(classifier: Classifier, files: list[Path]) -> list[int]:
    """What most people write."""
    size, found = classifier.recipe.image_size, []
    for start in range(0, len(files), 64):
        batch = []
        for file in files[start : start + 64]:
            image = Image.open(file).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            batch.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        images = torch.stack(batch)
        outputs = torch.stack([network(images).softmax(1) for network in classifier.ensemble.models])
        found += outputs.mean(0).argmax(1).tolist()
    return found


def ours(classifier: Classifier, files: list[Path]) -> int:
    return sum(len(batch) for batch in predict_files(classifier, files, on_bad=print))


def compare(kind: str, files: list[Path], backbone: str, size: int) -> dict[str, Any]:
    plain, native = (
        make_classifier(backbone, size, p) for p in ("float32", native_precision(make_recipe({}), torch.device("cpu")))
    )
    rivals = {"plain loop": lambda: plain_loop(plain, files), "ours": lambda: ours(plain, files)}
    if native.precision != "float32":
        rivals["ours, bfloat16"] = lambda: ours(native, files)
    seconds = time_in_turn(rivals, ROUNDS)
    row: dict[str, Any] = {"what": f"{len(files):,} × {kind}", "networks": f"3 × {backbone}, {size} px"}
    for name, values in seconds.items():
        row[name] = {
            "images/s": summary([len(files) / value for value in values], 0),
            "times plain loop": ratios(seconds["plain loop"], values),
        }
    return row


def peak_memory(folder: Path, num_images: int) -> int:
    """In a process of its own, in MB."""
    command = [sys.executable, __file__, "memory", str(folder), str(num_images)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_memory(folder: Path, num_images: int) -> None:
    files = sorted(folder.iterdir())
    ours(make_classifier("digit-cnn", 32, "float32"), [files[k % len(files)] for k in range(num_images)])
    status = Path("/proc/self/status").read_text()  # ru_maxrss would count what the parent had
    print(int(status.split("VmHWM:")[1].split()[0]) // 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="at most so many of a kind")
    most = parser.parse_args().images
    report = Report("predict")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (kind, num_files, backbone, size) in enumerate(CASES):
            with report.section(kind):
                files = make_files(kind, min(num_files, most), Path(scratch) / str(number))
                report.add(compare(kind, files, backbone, size))
        with report.section("memory"):
            for num_images in (most // 5, most, 2 * most):
                peak = peak_memory(Path(scratch) / "0", num_images)
                report.add({"what": f"{num_images:,} × PNG 32 × 32", "peak memory, MB": peak})


if __name__ == "__main__":
    print_memory(Path(sys.argv[2]), int(sys.argv[3])) if sys.argv[1:2] == ["memory"] else main()
