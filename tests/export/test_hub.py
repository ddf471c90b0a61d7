"""A folder for the Hub: loading it loses nothing of the run, and what is wrong with it is one line of its own."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from triplee.cli.exporting import How, fuse
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.loading import load
from triplee.engine.train import train_run
from triplee.export.hub import export_hub
from triplee.progress import make_observer
from triplee.settings import InputError, make_recipe

RECIPE = make_recipe({"image_size": 16, "epochs": 1, "members": 2, "batch_size": 8, "replay": 1, "augment": "none"})


@pytest.fixture(scope="module")
def run(small: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    with make_observer("run") as observer:
        train_run(small, split_pool(small, "blue", 0), RECIPE, out=out, observer=observer, device=torch.device("cpu"))
    return out


@pytest.fixture
def hub(run: Path, tmp_path: Path) -> Path:
    export_hub(load(run, "cpu"), tmp_path / "hub")
    return tmp_path / "hub"


def test_exporting_it_again_gives_the_same_files(run: Path, hub: Path, tmp_path: Path) -> None:
    export_hub(load(hub, "cpu"), tmp_path / "again")
    assert "never seen" in (hub / "README.md").read_text() and load(hub, "cpu").temperature != 1
    for file in hub.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    export_hub(load(run, "cpu").member(0), tmp_path / "member")
    assert "Nothing: this is a part of a run" in (tmp_path / "member" / "README.md").read_text()
    assert load(tmp_path / "member", "cpu").result is None


def test_a_backbone_with_batch_norm(small_32: Pool, tmp_path: Path) -> None:
    """Running statistics and ImageNet's mean and deviation travel too."""
    values = {"backbone": "mobilenet-v2", "image_size": 32, "members": 1, "precision": "float32"}
    recipe = make_recipe(values, RECIPE)
    with make_observer("run") as observer:
        split = split_pool(small_32, "blue", 0)
        train_run(small_32, split, recipe, out=tmp_path / "run", observer=observer, device=torch.device("cpu"))
    classifier, images = load(tmp_path / "run", "cpu"), small_32.images_NCHW[torch.arange(9)]
    export_hub(classifier, tmp_path / "hub")
    preprocessing = json.loads((tmp_path / "hub" / "preprocessor_config.json").read_text())
    assert preprocessing["image_mean"] == [0.485, 0.456, 0.406]
    with torch.inference_mode():
        expected = classifier(images)
        assert expected.std(0).min() > 0 and torch.equal(load(tmp_path / "hub", "cpu")(images), expected)


def test_it_is_no_run_to_fuse(hub: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hub is an exported folder, .*: fuse the run it was made from"):
        fuse(hub, How.soup, tmp_path / "soup", device="cpu")
    assert not (tmp_path / "soup").exists()


def test_a_folder_without_its_weights_is_not_a_run_to_resume(hub: Path) -> None:
    (hub / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing: copy the folder whole, or export the run"):
        load(hub, "cpu")


def test_fewer_members_than_were_calibrated_are_refused(run: Path, hub: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    for file, text in ((copy / "config.yaml", "members: 2"), (hub / "config.json", '"members": 2')):
        assert text in file.read_text()
        file.write_text(file.read_text().replace(text, text.replace("2", "1")))
        with pytest.raises(InputError, match=rf"{file.name} says members: 1, but the run was finished with 2"):
            load(file.parent, "cpu")


@pytest.mark.parametrize("result", [{"accuracy": 99.0}, "missing"])
def test_a_damaged_result_is_named(hub: Path, result: object) -> None:
    config = json.loads((hub / "config.json").read_text())
    config["result"] = result
    if result == "missing":
        del config["result"]
    (hub / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json is damaged \(its result\): .* export the run again"):
        load(hub, "cpu")


def test_names_are_shown_as_they_are(run: Path, tmp_path: Path) -> None:
    classifier = load(run, "cpu")
    names = {"target": "c|d", "domains": ["a<b>", "c|d", "*x*\ny"], "classes": ["<i>", "[a](b)", "plain-name"]}
    classifier.config.update(names, recipe_name="my`recipe")
    export_hub(classifier, tmp_path / "hub")
    card = (tmp_path / "hub" / "README.md").read_text()
    assert r"| c\|d, never seen |" in card and r"on the domains a\<b\>, \*x\* y to work" in card
    assert r"\<i\>, \[a\](b), plain-name" in card and r"Recipe my\`recipe, seed 0" in card
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert {key: config[key] for key in names} == names
