"""The supervised contrast equals a slow float64 loop over Eq. 1."""

import math

import pytest
import torch

from triplee import SupConLoss


def slow_loop(features: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    rows = [[value for value in row] for row in features.double().tolist()]
    unit = [[v / math.sqrt(sum(w * w for w in row)) for v in row] for row in rows]
    similarity = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in unit] for x in unit]
    total = 0.0
    for i in range(len(rows)):
        positives = [j for j in range(len(rows)) if j != i and labels[j] == labels[i]]
        denominator = sum(math.exp(similarity[i][k] / temperature) for k in range(len(rows)) if k != i)
        terms = [math.log(math.exp(similarity[i][j] / temperature) / denominator) for j in positives]
        total -= sum(terms) / len(positives) if positives else 0.0
    return total / len(rows)


@pytest.mark.parametrize("num_views, num_classes", [(16, 4), (16, 10), (8, 1), (7, 3), (2, 2), (40, 7)])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_equals_the_loop(num_views: int, num_classes: int, temperature: float) -> None:
    torch.manual_seed(num_views)
    features = torch.randn(num_views, 12, dtype=torch.float64) * 3
    labels = torch.randint(num_classes, (num_views,))
    expected = slow_loop(features, labels, temperature)
    assert float(SupConLoss(temperature)(features, labels)) == pytest.approx(expected, abs=1e-6)
    in_float32 = float(SupConLoss(temperature)(features.float(), labels))
    assert in_float32 == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("num_views", [1, 2, 5])
def test_finite_without_any_positive(num_views: int) -> None:
    features = torch.randn(num_views, 6, requires_grad=True)
    loss = SupConLoss()(features, torch.arange(num_views))
    loss.backward()
    assert loss == 0
    assert features.grad is not None and torch.isfinite(features.grad).all()


def test_gradients() -> None:
    torch.manual_seed(0)
    features = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    assert torch.autograd.gradcheck(lambda f: SupConLoss(0.3)(f, labels), (features,))
