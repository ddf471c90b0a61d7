"""Temperature and calibration error, against slow formulas and data whose temperature is known."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from observing import Silent
from torch import Tensor

from triplee.data.pool import Pool
from triplee.data.split import split_pool
from triplee.engine.calibration import NUM_BINS, PRIOR_WEIGHT, calibrate, calibration_error, fit_temperature, temper
from triplee.engine.loading import load
from triplee.engine.train import train_run
from triplee.settings import make_recipe


def drawn(num_images: int, sharpness: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities that are `sharpness` times too sure in their logits, and labels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 2, (num_images, 5)))
    labels = [rng.choice(5, p=p) for p in logits.softmax(1).numpy()]
    return (sharpness * logits).softmax(1).float(), torch.tensor(labels)


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 2.5])
def test_the_temperature_undoes_what_made_the_outputs_too_sure_or_not_sure_enough(sharpness: float) -> None:
    probabilities, labels = drawn(20_000, sharpness)
    assert fit_temperature(probabilities, labels) == pytest.approx(sharpness, rel=0.04)


def log_likelihood(probabilities: Tensor, labels: Tensor, temperature: float) -> float:
    return float(temper(probabilities.double(), temperature)[torch.arange(len(labels)), labels].log().sum())


@pytest.mark.parametrize("num_images", [1, 12, 3000])
def test_it_is_the_most_likely_one_given_the_prior(num_images: int) -> None:
    probabilities, labels = drawn(num_images, 1.7)

    def posterior(temperature: float) -> float:
        prior = -PRIOR_WEIGHT * (1 / temperature + np.log(temperature))  # of a gamma distribution of 1 / temperature
        return log_likelihood(probabilities, labels, temperature) + prior

    best = max(np.arange(0.3, 4.0, 0.002), key=posterior)
    assert fit_temperature(probabilities, labels) == pytest.approx(best, abs=0.005)


@pytest.mark.parametrize(("sharpness", "change"), [(0.5, -0.05), (1.0, 0.03), (2.5, -0.25)])
def test_a_dozen_images_help_where_confidence_is_off_and_do_little_harm_where_it_is_not(
    sharpness: float, change: float
) -> None:
    """By cross-entropy on other images, mean over 60 draws; of highest likelihood alone it is 0.01, 0.20 and 0.05."""
    probabilities, labels = drawn(5000, sharpness)
    fitted = [fit_temperature(*drawn(12, sharpness, seed)) for seed in range(1, 61)]
    before = log_likelihood(probabilities, labels, 1.0)
    changes = [before - log_likelihood(probabilities, labels, temperature) for temperature in fitted]
    assert np.mean(changes) / len(labels) < change


def test_a_few_images_that_are_all_right_do_not_make_it_sure_for_ever() -> None:
    for sure, at_most in ((0.5, 0.85), (0.9, 0.97), (0.99, 0.995)):
        probabilities = torch.full((12, 3), (1 - sure) / 2)
        probabilities[:, 1] = sure
        temperature = fit_temperature(probabilities, torch.ones(12, dtype=torch.int64))
        assert sure < temper(probabilities, temperature)[0, 1] < at_most
    extreme = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # sure, and wrong
    assert 1 < fit_temperature(extreme, torch.tensor([1, 0])) <= 20


def test_tempering_keeps_the_order_and_the_sum() -> None:
    probabilities, _ = drawn(50, 1)
    probabilities[0] = torch.tensor([1.0, 0, 0, 0, 0])
    assert torch.allclose(temper(probabilities, 1.0), probabilities, atol=1e-6)
    for temperature in (0.3, 4.0):
        tempered = temper(probabilities, temperature)
        assert torch.allclose(tempered.sum(1), torch.ones(50)) and tempered.isfinite().all()
        assert (tempered.argmax(1) == probabilities.argmax(1)).all()
        assert ((tempered.max(1).values > probabilities.max(1).values)[1:] == (temperature < 1)).all()


def test_the_error_is_the_mean_gap_over_bins() -> None:
    probabilities, labels = drawn(500, 2)
    bins: dict[int, list[tuple[float, bool]]] = {}
    for outputs, label in zip(probabilities.double().tolist(), labels.tolist(), strict=True):
        confidence = max(outputs)
        bins.setdefault(min(int(confidence * NUM_BINS), NUM_BINS - 1), []).append(
            (confidence, outputs.index(confidence) == label)
        )
    expected = sum(abs(sum(c for c, _ in rows) - sum(right for _, right in rows)) for rows in bins.values())
    assert calibration_error(probabilities, labels) == pytest.approx(100 * expected / 500)
    assert calibration_error(torch.eye(4), torch.arange(4)) == 0
    assert calibration_error(torch.eye(4), torch.tensor([1, 0, 3, 2])) == 100


def test_the_target_is_measured_and_not_fitted_to() -> None:
    probabilities, labels = drawn(4000, 2)
    found = calibrate(probabilities[:2000], labels[:2000], probabilities[2000:], labels[2000:])
    assert found["val_error"] < 0.4 * found["val_error_before"]
    assert found["target_error"] < 0.4 * found["target_error_before"]
    wrong = calibrate(probabilities[:2000], labels[:2000], probabilities[2000:], (labels[2000:] + 1) % 5)
    assert wrong["temperature"] == found["temperature"] and wrong["target_error"] > found["target_error"]


def test_a_run_calibrates_its_best_epoch_and_not_its_last(small: Pool, tmp_path: Path) -> None:
    split = split_pool(small, "blue", 0)
    labels = small.labels_N.copy()
    labels[split.val_N] = (labels[split.val_N] + 1) % 3  # the more it learns, the worse it does on these
    pool = dataclasses.replace(small, labels_N=labels)
    recipe = make_recipe({"image_size": 16, "epochs": 4, "members": 2, "lr": 0.01})
    result = train_run(pool, split, recipe, out=tmp_path / "run", observer=Silent(), device=torch.device("cpu"))
    assert result["epoch"] < 4
    best = load(tmp_path / "run", "cpu").probabilities(pool.images_NCHW, split.val_N).mean(0)
    found = fit_temperature(best, torch.from_numpy(labels[split.val_N]))
    assert result["calibration"]["temperature"] == pytest.approx(found, rel=1e-3)
