"""One network instead of m: a student learns its teacher's outputs, and resumes like any run."""

import copy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from observing import Silent, StopAfter
from torch import Tensor
from torch.optim.swa_utils import update_bn

from triplee.data.pool import Pool
from triplee.data.split import Split, split_pool
from triplee.engine.classifier import Classifier
from triplee.engine.epoch import EpochProgress, MemberSpec
from triplee.engine.fuse import average_weights, distill, make_soup, student_recipe, weigh
from triplee.engine.loading import load
from triplee.engine.stack import Stack
from triplee.engine.train import Interrupted, train_run
from triplee.nets.network import build_network
from triplee.plan import statistics_batches
from triplee.runfolder import RunFolder, read_config
from triplee.settings import InputError, make_recipe

CPU = torch.device("cpu")
RECIPE = make_recipe({"image_size": 16, "epochs": 2, "members": 2, "lr": 0.01, "batch_size": 8, "replay": 2})


@pytest.fixture(scope="module")
def split(small: Pool) -> Split:
    return split_pool(small, "blue", 0)


@pytest.fixture(scope="module")
def run(small: Pool, split: Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "run"
    train_run(small, split, RECIPE, out=out, observer=Silent(), device=CPU)
    return out


def test_the_teacher_is_learned_and_not_the_labels(small: Pool, split: Split) -> None:
    recipe = student_recipe(RECIPE, {"epochs": 1})
    assert (recipe.members, recipe.supcon_weight, recipe.lr) == (1, 0, 0.01)

    def says_the_second_class(views: Tensor) -> Tensor:
        assert views.dtype == torch.uint8
        return torch.tensor([0.1, 0.8, 0.1]).expand(len(views), 3)

    spec = MemberSpec(recipe, 0, 0, split.train_N, 3, teacher=says_the_second_class)
    stack = Stack([spec], small.images_NCHW, small.labels_N, CPU, "float32")
    stack.train_epoch([0], EpochProgress.start(1), lambda: False)
    (outputs,) = stack.probabilities([0], np.arange(len(small)))
    stack.close()
    assert outputs.mean(0).tolist() == pytest.approx([0.1, 0.8, 0.1], abs=0.1)


def test_a_student_that_was_stopped_ends_with_the_same_bytes(
    small: Pool, split: Split, run: Path, tmp_path: Path
) -> None:
    recipe = student_recipe(RECIPE, {})

    def train(out: Path, observer: Silent, resume: bool = False) -> None:
        distill(run, load(run, CPU), small, split, out, recipe, observer=observer, resume=resume, device=CPU)

    train(tmp_path / "straight", Silent())
    with pytest.raises(Interrupted):
        train(tmp_path / "stopped", StopAfter(9))
    train(tmp_path / "stopped", Silent(), resume=True)
    for file in ("best/member-0.safetensors", "metrics.jsonl", "config.yaml"):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


def test_a_soup_that_was_cut_off_is_made_anew_and_nothing_else_is_touched(
    small: Pool, split: Split, run: Path, tmp_path: Path
) -> None:
    ensemble, soup, other = load(run, CPU), RunFolder(tmp_path / "soup"), RunFolder(tmp_path / "other")
    make_soup(run, ensemble, small, split, soup.path)
    config, weights = read_config(soup.path), soup.member_path(0).read_bytes()
    assert (config["teacher"], config["how"]) == (str(run), "soup")
    assert config == {**ensemble.config, **{key: config[key] for key in ("recipe", "recipe_name", "teacher", "how")}}
    with pytest.raises(InputError, match="holds a finished run"):
        make_soup(run, ensemble, small, split, soup.path)
    soup.result_path.unlink()
    with pytest.warns(UserWarning, match="soup is not finished: make it anew with `triplee fuse`; until then"):
        load(soup.path, CPU)
    soup.member_path(0).unlink()
    with warnings.catch_warnings(action="error"):
        make_soup(run, ensemble, small, split, soup.path)
    assert soup.read_result()["members"] and soup.member_path(0).read_bytes() == weights
    other.claim(ensemble.config, resume=False)
    other.release()
    with pytest.raises(InputError, match=r"was started differently .* choose another --out"):
        make_soup(run, ensemble, small, split, other.path)
    assert not other.member_path(0).exists()


def test_accuracy_size_and_speed_are_weighed(small: Pool, split: Split, run: Path) -> None:
    ensemble = load(run, CPU)
    member = ensemble.member(0)
    whole, part = weigh([ensemble, member], small, split)
    assert ensemble.result is not None
    assert whole.accuracy == pytest.approx(ensemble.result["accuracy"])
    assert part.accuracy == pytest.approx(ensemble.result["members"][0])
    assert whole.num_weights == 2 * part.num_weights and part.images_per_second > 0


def test_what_a_run_measured_is_not_measured_again(small: Pool, split: Split, run: Path) -> None:
    ensemble = load(run, CPU)
    (measured,) = weigh([Classifier(ensemble.networks, RECIPE, ensemble.config, epoch=ensemble.epoch)], small, split)
    (told,) = weigh([ensemble], small, split)
    assert (told.accuracy, told.val_accuracy) == pytest.approx((measured.accuracy, measured.val_accuracy))
    assert ensemble.result is not None
    ensemble.result |= {"accuracy": 1.5, "val_accuracy": 2.5}
    (told,) = weigh([ensemble], small, split)
    assert (told.accuracy, told.val_accuracy) == (1.5, 2.5)


def test_a_soup_is_of_mean_weights_with_statistics_of_its_own(small_32: Pool) -> None:
    """Those of the members fit the members' weights alone."""
    recipe = make_recipe({"backbone": "resnet18", "image_size": 32, "supcon_weight": 0.0})
    networks = [build_network(recipe, 3, 0, k) for k in range(2)]
    with torch.no_grad():
        networks[1].backbone.bn1.weight.fill_(3.0)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    batches = small_32.images_NCHW.split(60)
    soup = average_weights(Classifier(networks, recipe, {}, epoch=1), batches)
    mean = [(a + b) / 2 for a, b in zip(*(network.parameters() for network in networks), strict=True)]
    torch.testing.assert_close(list(soup.parameters()), mean)
    assert soup.backbone.bn1.weight[0] == 2.0  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    expected = copy.deepcopy(soup)
    update_bn(batches, expected)
    for name, tensor in expected.named_buffers():
        if "running" in name:
            torch.testing.assert_close(soup.state_dict()[name], tensor, msg=name)


def test_a_soups_statistics_are_those_of_training_images(small_32: Pool, tmp_path: Path) -> None:
    split = split_pool(small_32, "blue", 0)
    recipe = make_recipe(
        {**RECIPE.model_dump(), "backbone": "resnet18", "image_size": 32, "epochs": 1, "precision": "float32"}
    )
    train_run(small_32, split, recipe, out=tmp_path / "run", observer=Silent(), device=CPU)
    make_soup(tmp_path / "run", load(tmp_path / "run", CPU), small_32, split, tmp_path / "soup")
    (kept,) = load(tmp_path / "soup", CPU).networks
    network = copy.deepcopy(kept)
    update_bn([small_32.images_NCHW[torch.from_numpy(part)] for part in statistics_batches(split.train_N, 0)], network)
    for name, tensor in kept.named_buffers():
        if "running" in name:
            torch.testing.assert_close(tensor, network.state_dict()[name], msg=name)


def test_what_the_target_chose_is_not_made_into_something_honest() -> None:
    with pytest.raises(InputError, match="selection: oracle"):
        student_recipe(make_recipe({"selection": "oracle"}), {})
