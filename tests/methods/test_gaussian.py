"""The head made from class Gaussians: golden values, Bayes' rule by hand, classes that nobody holds."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.one_shot import gaussian_head, shrunk
from golden_world import CLASS_KNOWLEDGE, WORLD

GOLD = CLASS_KNOWLEDGE["fedcgs"]


@pytest.mark.parametrize("entry", ["out", "without_client_1", "gamma_0"])
def test_golden_heads(entry):
    counts = torch.tensor(WORLD["class_counts"]).double()
    counts = (counts[[0, 2]] if entry == "without_client_1" else counts).sum(0)
    gold = {name: torch.tensor(value) for name, value in GOLD[entry].items() if name != "probe"}
    means, covariance = ClassTable(gold["means"].double(), gold["held"]), gold["covariance"].double()
    rows, bias = gaussian_head(means, covariance, counts / counts.sum())
    tolerance = 1e-4 if entry == "gamma_0" else 1e-6  # of inputs with eight decimals
    assert torch.allclose(rows, gold["head.weight"].double(), rtol=0, atol=tolerance)
    assert torch.allclose(bias, gold["head.bias"].double(), rtol=0, atol=tolerance)


def test_scores_are_log_posteriors_up_to_a_constant():
    generator = torch.Generator().manual_seed(0)
    means, z = torch.randn(3, 4, generator=generator).double(), torch.randn(5, 4, generator=generator).double()
    root = torch.randn(4, 4, generator=generator).double()
    covariance, priors = root @ root.T + torch.eye(4), torch.tensor([0.2, 0.5, 0.3]).double()
    rows, bias = gaussian_head(ClassTable(means, torch.ones(3, dtype=torch.bool)), covariance, priors)
    densities = [torch.distributions.MultivariateNormal(mean, covariance).log_prob(z) for mean in means]
    joint = torch.stack(densities, 1) + priors.log()
    assert torch.allclose(torch.softmax(z @ rows.T + bias, 1), torch.softmax(joint, 1), atol=1e-12)


def test_a_class_that_nobody_holds_is_never_predicted_and_has_a_finite_gradient():
    values = torch.tensor([[1.0, 0.0], [7.0, 7.0]], requires_grad=True)
    covariance = torch.eye(2, requires_grad=True)
    rows, bias = gaussian_head(ClassTable(values, torch.tensor([True, False])), covariance, torch.tensor([1.0, 0.0]))
    assert rows[1].tolist() == [0, 0]
    assert bias.tolist() == [-0.5, -1e6]
    (rows.sum() + bias.sum()).backward()
    assert values.grad.isfinite().all()
    assert covariance.grad.isfinite().all()


def test_shrinking_keeps_the_trace_and_reaches_the_identity():
    covariance = torch.tensor([[4.0, 1.0], [1.0, 0.0]])
    assert float(shrunk(covariance, 0.3).trace()) == pytest.approx(4.0)
    assert torch.equal(shrunk(covariance, 0.0), covariance.double())
    assert torch.equal(shrunk(covariance, 1.0), 2 * torch.eye(2).double())


def test_a_singular_covariance_raises():
    with pytest.raises(torch.linalg.LinAlgError):
        gaussian_head(ClassTable(torch.ones(1, 2), torch.tensor([True])), torch.zeros(2, 2), torch.ones(1))


def test_features_twice_as_long_halve_the_rows():
    """Of covariances that scale along, the ridge included; the biases and so the posterior stay."""
    generator = torch.Generator().manual_seed(0)
    means, root = torch.randn(3, 4, generator=generator).double(), torch.randn(4, 4, generator=generator).double()
    held, covariance, priors = torch.ones(3, dtype=torch.bool), root @ root.T + torch.eye(4), torch.full((3,), 1 / 3)
    rows, bias = gaussian_head(ClassTable(means, held), covariance, priors)
    halved, same = gaussian_head(ClassTable(2 * means, held), 4 * covariance, priors)
    assert torch.allclose(halved, rows / 2, atol=1e-12)
    assert torch.allclose(same, bias, atol=1e-12)
