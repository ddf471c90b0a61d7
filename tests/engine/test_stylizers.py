"""Fitting a stylizer: on the source domains alone, the same from the same seed, once for all runs that can share it."""

import dataclasses
from pathlib import Path

import filelock
import numpy as np
import pytest
import torch
from observing import Silent, StopAfter

from triplee.data.folder import TRAIN, VAL
from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine import style_fit
from triplee.engine.run_state import Run
from triplee.engine.style_fit import FitStopped, StyleFit, fit_stylizer, judge_stylizer
from triplee.engine.stylizers import fit_for_domains, images_to_fit
from triplee.engine.train import Interrupted, train_run, train_runs
from triplee.nets.network import build_network
from triplee.nets.stylizer_file import read_stylizer, stylizer_fingerprint
from triplee.runfolder import RunFolder
from triplee.settings import InputError, make_recipe

CPU = torch.device("cpu")
FIT = StyleFit("small", "none", 8)
RECIPE = make_recipe({"image_size": 16, "epochs": 2, "members": 2, "ops": "style", "cross_image_probability": 0.5})


def go_on(done: int, total: int) -> bool:
    return False


@pytest.fixture
def quick_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few steps, and a cache of the test's own."""
    monkeypatch.setattr(style_fit, "STEPS", 4)
    monkeypatch.setenv("TRIPLEE_CACHE", str(tmp_path / "cache"))


def scrambled(pool: Pool, domain: str) -> Pool:
    """The same pool with other images and labels in one domain."""
    images, labels_N = pool.images_NCHW[:].clone(), pool.labels_N.copy()
    there = np.flatnonzero(pool.domains_N == pool.domains.index(domain))
    images[torch.from_numpy(there)] = torch.randint(
        0, 256, (len(there), *images.shape[1:]), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    labels_N[there] = (labels_N[there] + 1) % len(pool.classes)
    return dataclasses.replace(pool, images_NCHW=images, labels_N=labels_N, fingerprint=f"another {domain}")


def test_a_fit_learns_to_give_back_and_to_restyle(digits: Pool) -> None:
    index_N = np.flatnonzero(digits.domains_N < 3)
    fit = dataclasses.replace(FIT, steps=40)
    before = judge_stylizer(fit.build(), digits.images_NCHW, index_N, CPU)
    calls: list[tuple[int, int]] = []
    stylizer = fit_stylizer(digits.images_NCHW, index_N, fit, CPU, lambda *call: bool(calls.append(call)))
    after = judge_stylizer(stylizer, digits.images_NCHW, index_N, CPU)
    assert after["psnr"] > before["psnr"] + 2
    assert after["style_error"] < 0.6 * after["style_distance"]
    assert calls[-1] == (60, 60) and len(calls) == 60
    assert not any(p.requires_grad for p in stylizer.parameters())


def test_the_same_seed_gives_the_same_stylizer(small: Pool) -> None:
    index_N = images_to_fit(small, ["red", "green"])
    one, two, other = (
        stylizer_fingerprint(fit_stylizer(small.images_NCHW, index_N, fit, CPU, go_on))
        for fit in (FIT, FIT, dataclasses.replace(FIT, seed=1))
    )
    assert one == two != other


def test_the_target_is_never_read(small: Pool, quick_fits: None) -> None:
    """Other images and labels in the target: the same weights; in a source: others."""
    fingerprints = [
        stylizer_fingerprint(read_stylizer(fit_for_domains(pool, ["red", "green"], FIT, CPU, go_on)[0])[0])
        for pool in (small, scrambled(small, "blue"), scrambled(small, "green"))
    ]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_images_kept_for_validation_are_not_fitted_on(small: Pool) -> None:
    split_N = np.resize([TRAIN, VAL, TRAIN], len(small)).astype(np.int8)
    published = dataclasses.replace(small, split_N=split_N)
    chosen = images_to_fit(published, ["red", "blue"])
    assert (split_N[chosen] == TRAIN).all() and len(chosen) == 80
    assert set(small.domains_N[chosen].tolist()) == {small.domains.index(name) for name in ("red", "blue")}
    assert len(images_to_fit(small, ["red", "blue"])) == 120


@pytest.mark.parametrize(
    ("name", "first"), [("resnet18", ("conv1", "bn1")), ("mobilenet-v2", ("features.0.0", "features.0.1"))]
)
def test_a_backbone_as_encoder_keeps_its_pretrained_weights(
    small_32: Pool, name: str, first: tuple[str, str], tmp_path: Path
) -> None:
    recipe = make_recipe({"backbone": name, "image_size": 32})
    backbone = build_network(recipe, 3, 5, 0).backbone
    torch.save(backbone.state_dict(), tmp_path / "backbone.pth")
    fit = StyleFit.for_recipe(make_recipe({"weights": str(tmp_path / "backbone.pth")}, recipe))
    assert fit.encoder == name
    stylizer = fit_stylizer(small_32.images_NCHW, np.arange(60), dataclasses.replace(fit, steps=2), CPU, go_on)
    conv, norm = (backbone.get_submodule(layer) for layer in first)
    own = [module for module in stylizer.encoder.modules() if isinstance(module, (torch.nn.Conv2d, type(norm)))]
    assert torch.equal(own[0].weight, conv.weight) and torch.equal(own[1].running_var, norm.running_var)
    assert StyleFit.for_recipe(recipe).encoder == "small"  # nothing pretrained: it learns


def test_a_fit_can_be_stopped(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    with pytest.raises(FitStopped):
        fit_for_domains(small, ["red", "green"], FIT, CPU, lambda done, total: done == 3)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_runs_over_the_same_sources_share_one_fit(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    runs = [
        Run(split_pool(small, target, seed), RECIPE, tmp_path / f"{target}-{seed}", "style", seed)
        for target in ("blue", "red")
        for seed in (0, 1)
    ]
    observer = Silent()
    train_runs(small, runs, observer=observer, device=CPU)
    assert [note for note in observer.notes if "fitting" in note] == [
        "fitting a stylizer on green, red (small encoder)",
        "fitting a stylizer on blue, green (small encoder)",
    ]
    assert len(list((tmp_path / "cache" / "stylizers").glob("*.safetensors"))) == 2
    kept = {run.out.name: (run.out / "stylizer.safetensors").read_bytes() for run in runs}
    assert kept["blue-0"] == kept["blue-1"] != kept["red-0"] == kept["red-1"]
    # A run of a stack is the run alone, which finds its stylizer in the cache.
    train_run(small, runs[1].split, RECIPE, out=tmp_path / "alone", observer=observer, seed=1, device=CPU)
    assert len([note for note in observer.notes if "fitting" in note]) == 2
    for k in range(2):
        name = f"best/member-{k}.safetensors"
        assert (tmp_path / "alone" / name).read_bytes() == (runs[1].out / name).read_bytes()


def test_stopped_anywhere_a_run_ends_with_the_same_bytes(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    split = split_pool(small, "blue", 0)
    train_run(small, split, RECIPE, out=tmp_path / "straight", observer=Silent(), device=CPU)
    (cached,) = (tmp_path / "cache" / "stylizers").glob("*.safetensors")
    cached.write_bytes(b"damaged")  # is fitted again
    out = tmp_path / "stopped"
    for times in (2, 3, 9):  # in the fit, and in the epochs
        with pytest.raises(Interrupted):
            train_run(small, split, RECIPE, out=out, observer=StopAfter(times), resume=out.exists(), device=CPU)
    cached.unlink()  # the run has its own
    train_run(small, split, RECIPE, out=out, observer=Silent(), resume=True, device=CPU)
    assert not cached.exists()
    for name in ("metrics.jsonl", "stylizer.safetensors", "best/member-0.safetensors", "best/member-1.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name


def test_a_stylizer_of_the_users_own(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    path, _ = fit_for_domains(small, ["red", "green"], FIT, CPU, go_on)
    own = path.rename(tmp_path / "own.safetensors")
    recipe = make_recipe({"stylizer": str(own)}, RECIPE)
    split = split_pool(small, "blue", 0)
    train_run(small, split, recipe, out=tmp_path / "run", observer=Silent(), device=CPU)
    assert not (tmp_path / "run" / "stylizer.safetensors").exists() and not path.exists()
    with pytest.raises(InputError, match="does not exist"):
        missing = make_recipe({"stylizer": str(tmp_path / "none.safetensors")}, RECIPE)
        train_run(small, split, missing, out=tmp_path / "other", observer=Silent(), device=CPU)
    assert not (tmp_path / "other").exists()


def test_restyled_views_reach_the_network(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    """The same draws with another stylizer: other losses."""
    losses = []
    for seed in (0, 1):
        path, _ = fit_for_domains(small, ["red", "green"], dataclasses.replace(FIT, seed=seed), CPU, go_on)
        recipe = make_recipe({"stylizer": str(path)}, RECIPE)
        out = tmp_path / str(seed)
        train_run(small, split_pool(small, "blue", 0), recipe, out=out, observer=Silent(), device=CPU)
        losses.append(RunFolder(out).read_metrics()[0]["cross_entropy"])
    assert losses[0] != losses[1]


def test_a_stylizer_that_has_seen_the_target_is_refused(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    """Also where the data lie elsewhere now, and where only a fold holds out what it has seen."""
    whole, _ = fit_for_domains(small, list(small.domains), FIT, CPU, go_on)
    sources, _ = fit_for_domains(small, ["green", "red"], FIT, CPU, go_on)
    split, moved = split_pool(small, "blue", 0), dataclasses.replace(small, name="/elsewhere")
    for pool, path, values, advice in (
        (small, whole, {}, "was fitted on blue, which is held out here: fit one with --target blue"),
        (moved, whole, {}, "was fitted on blue, which is held out here: fit one with --target blue"),
        (small, sources, {"selection": "leave-one-out"}, "was fitted on green, .*: set stylizer=fit, for one of each"),
    ):
        recipe = make_recipe({"stylizer": str(path), **values}, RECIPE)
        with pytest.raises(InputError, match=advice):
            train_run(pool, split, recipe, out=tmp_path / "run", observer=Silent(), device=CPU)
        assert not (tmp_path / "run").exists()


def test_a_runs_own_stylizer_that_is_damaged_is_one_line(small: Pool, quick_fits: None, tmp_path: Path) -> None:
    split, out = split_pool(small, "blue", 0), tmp_path / "run"
    with pytest.raises(Interrupted):
        train_run(small, split, RECIPE, out=out, observer=StopAfter(9), device=CPU)
    own = RunFolder(out).stylizer_path
    own.write_bytes(own.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"stylizer\.safetensors is damaged: remove it, and it is fitted again"):
        train_run(small, split, RECIPE, out=out, observer=Silent(), resume=True, device=CPU)
    own.unlink()
    train_run(small, split, RECIPE, out=out, observer=Silent(), resume=True, device=CPU)


def test_a_fit_on_other_weights_is_another(small_32: Pool, quick_fits: None, tmp_path: Path) -> None:
    recipe, paths = make_recipe({"backbone": "resnet18", "image_size": 32}), set()
    for seed in (0, 1):
        torch.save(build_network(recipe, 3, seed, 0).backbone.state_dict(), tmp_path / "backbone.pth")
        fit = dataclasses.replace(FIT, encoder="resnet18", weights=str(tmp_path / "backbone.pth"), steps=1)
        path, is_new = fit_for_domains(small_32, ["red"], fit, CPU, go_on)
        assert is_new
        paths.add(path)
    assert len(paths) == 2


def test_one_waits_for_another_that_fits_the_same(small: Pool, quick_fits: None) -> None:
    path, _ = fit_for_domains(small, ["red"], FIT, CPU, go_on)
    path.unlink()
    steps = []

    def stop_at_the_second(done: int, total: int) -> bool:
        steps.append(done)
        return len(steps) == 2

    with filelock.FileLock(path.with_suffix(".lock")), pytest.raises(FitStopped):
        fit_for_domains(small, ["red"], FIT, CPU, stop_at_the_second)
    assert steps == [0, 0] and not path.exists()
