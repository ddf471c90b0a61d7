"""On a GPU the views are those of the CPU, and a run trains there from resident data."""

from pathlib import Path

import numpy as np
import pytest
import torch

from triplee.augment import OPS, apply_draw, apply_op, draw_views
from triplee.augment.draw import FOURIER
from triplee.augment.style import StyleTable
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.stack import Stack
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import freeze
from triplee.seeding import generator
from triplee.settings import make_recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("name", OPS)
def test_ops_equal_the_cpus(name: str, digits: Pool) -> None:
    images = digits.images_NCHW[::40]
    for strength in (0, 1, 7, 15, 22, 30):
        for sign in (1, -1):
            on_gpu = apply_op(name, images.cuda(), strength, sign)
            assert on_gpu.is_cuda and torch.equal(on_gpu.cpu(), apply_op(name, images, strength, sign))


@pytest.mark.parametrize("augment", ["esaug", "standard"])
def test_views_equal_the_cpus(augment: str, digits: Pool) -> None:
    """But for rounding: Fourier and hue are floating-point, and an op after them may widen a grey level."""
    recipe = make_recipe({"augment": augment, "crop_area": 0.8, "flip": True})
    draw = draw_views(recipe, generator(0, "cuda"), 2000, np.arange(len(digits)))
    index_V = np.arange(2000) * 6
    here = apply_draw(digits.images_NCHW, index_V, draw).int()
    there = apply_draw(digits.images_NCHW.cuda(), index_V, draw).cpu().int()
    difference = (here - there).abs()
    inexact = torch.from_numpy((draw.op_VK >= FOURIER).any(1))
    assert (difference[~inexact] == 0).all()
    assert (difference > 8).float().mean() < 1e-3


def test_restyled_views_are_the_cpus_but_for_rounding(digits: Pool) -> None:
    torch.manual_seed(0)
    partners, index_V = np.arange(5000, 5400), np.arange(400) * 7
    recipe = make_recipe({"ops": "style", "cross_image_probability": 1.0})
    draw = draw_views(recipe, generator(0, "cuda"), len(index_V), partners)
    stylizer, views = freeze(Stylizer("small")), []
    for images in (digits.images_NCHW[:], digits.images_NCHW[:].cuda()):
        table = StyleTable(stylizer.to(images.device), images, partners)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            views.append(apply_draw(images, index_V, draw, table).cpu().int())
    assert (views[0] - views[1]).abs().max() <= 1


def test_a_member_learns_the_same_there(small: Pool) -> None:
    """Losses of the first epoch in float32 agree to 1e-2: the same draws, another order of additions."""
    recipe = make_recipe({"image_size": 16})
    spec = MemberSpec(recipe, 0, 0, split_pool(small, "blue", 0).train_N, 3)
    means = []
    for device in ("cpu", "cuda"):
        stack = Stack([spec], small.images_NCHW, small.labels_N, torch.device(device), "float32")
        progress = EpochProgress.start(1)
        stack.train_epoch([0], progress, lambda: False)
        means.append((progress.cross_entropy[0] + progress.contrast[0]) / progress.steps[0])
    assert means[0] == pytest.approx(means[1], rel=1e-2)


def test_a_run_on_the_gpu_is_evaluated_on_the_cpu(small_folder: Path, tmp_path: Path, triplee) -> None:
    options = (
        "--recipe",
        "digits-triplee-fourier",
        "--set",
        "image_size=16",
        "--set",
        "epochs=2",
        "--set",
        "members=2",
    )
    trained = triplee(
        "train", small_folder, "--target", "blue", "--out", tmp_path / "run", *options, "--device", "cuda"
    )
    assert trained.returncode == 0, trained.stderr
    there = triplee("evaluate", tmp_path / "run", "--device", "cuda")
    here = triplee("evaluate", tmp_path / "run", "--device", "cpu")
    assert here.returncode == there.returncode == 0
    accuracy = [float(run.stdout.splitlines()[1].split("\t")[3].split()[0]) for run in (here, there)]
    assert accuracy[0] == pytest.approx(accuracy[1], abs=2)
