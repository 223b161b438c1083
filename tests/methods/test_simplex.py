"""The minimum on the simplex against golden weights, closed forms and the conditions of an optimum."""

import pytest
import torch

from fedloom.methods.fedpac import minimum_on_simplex
from golden_world import CLASS_KNOWLEDGE

GOLD = CLASS_KNOWLEDGE["fedpac"]["quadratic"]


def conditions_hold(matrix, weights):
    """Whether weights are on the simplex, and every slope is that of the value, or above it outside the support."""
    slopes = matrix @ weights
    value, scale = weights @ slopes, float(matrix.abs().max())
    gaps = slopes - value
    return (
        abs(float(weights.sum()) - 1) < 1e-12
        and bool((weights >= 0).all())
        and bool((gaps >= -1e-9 * scale).all())
        and bool((gaps[weights > 0].abs() < 1e-9 * scale).all())
    )


def test_golden_weights():
    found = minimum_on_simplex(torch.tensor(GOLD["p"]))
    assert torch.allclose(found, torch.tensor(GOLD["argmin"]).double(), rtol=0, atol=1e-7)


def test_closed_forms():
    assert minimum_on_simplex(torch.tensor([[2.0]])).tolist() == [1.0]
    assert minimum_on_simplex(torch.eye(4)).tolist() == pytest.approx([0.25] * 4)
    variances = torch.tensor([1.0, 2.0, 4.0]).double()
    assert torch.allclose(minimum_on_simplex(variances.diag()), (1 / variances) / (1 / variances).sum())
    own, other, gap = 0.5, 0.7, 0.3  # two clients: the matrix of the first one
    first = float(minimum_on_simplex(torch.tensor([[own, 0], [0, other + gap]]).double())[0])
    assert first == pytest.approx((other + gap) / (own + other + gap))


@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.parametrize("rank", [1, 3, 30])
def test_conditions_of_an_optimum(count, rank):
    generator = torch.Generator().manual_seed(count * 100 + rank)
    for scale in (1e-6, 1.0, 1e6):
        factors = torch.randn(count, rank, generator=generator).double() + 0.5
        matrix = scale * (factors @ factors.T + torch.rand(count, generator=generator).double().diag())
        weights = minimum_on_simplex(matrix)
        assert conditions_hold(matrix, weights)
        order = torch.randperm(count, generator=generator)
        assert torch.allclose(minimum_on_simplex(matrix[order][:, order]), weights[order], rtol=0, atol=1e-9)


def test_singular_matrices():
    assert float(minimum_on_simplex(torch.zeros(3, 3)).sum()) == pytest.approx(1.0)
    weights = minimum_on_simplex(torch.ones(3, 3))
    assert conditions_hold(torch.ones(3, 3).double(), weights)
    alone = torch.diag(torch.tensor([0.0, 1.0, 1.0]))
    assert minimum_on_simplex(alone).tolist() == [1.0, 0.0, 0.0]
