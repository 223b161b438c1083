"""The quantities of the bounds on problems where each has a known value."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks.theory.bounds import PrototypeConstants, prototype_bounds
from benchmarks.theory.measured_round import MeasuredRound, measure_clients, measure_round
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.nets.net import Net, build, tree_of


class Scaled(Net):
    """Features z = a x with one scalar weight a, and a fixed head."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(2, 2, bias=False)
        self.head.weight.requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        return self.scale * x


def measured(steps: int = 5, batch_size: int = 4, lr: float = 0.1, net: Net | None = None) -> MeasuredRound:
    net = net or build("mlp", input_shape=(3,), num_classes=3, streams=Streams(0), hidden=(4,))
    generator = torch.Generator().manual_seed(0)
    x, y = (
        torch.randn(12, net.input_width if hasattr(net, "input_width") else 3, generator=generator),
        torch.arange(12) % 3,
    )
    rng = np.random.default_rng(0)
    return measure_round(net, tree_of(net), x, y, lr=lr, steps=steps, batch_size=batch_size, rng=rng)


def test_full_batches_have_no_variance_and_one_gradient() -> None:
    full = measured(batch_size=12)
    assert full.gradient_variance == pytest.approx(0, abs=1e-10)
    assert full.squared_gradients <= full.steps * full.gradient_bound**2 + 1e-9
    assert len(full.losses) == full.steps + 1
    assert full.losses[-1] < full.losses[0]
    assert measured(batch_size=4).gradient_variance > 1e-4


def test_the_features_of_a_scaled_input_move_as_far_as_the_input_is_long() -> None:
    """z = a x: |z' - z| = |a' - a| |x|, so L2 is the length of the longest input."""
    net = Scaled()
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    result = measure_round(
        net, tree_of(net), x, torch.tensor([0, 1]), lr=0.1, steps=2, batch_size=2, rng=np.random.default_rng(0)
    )
    assert result.feature_lipschitz == pytest.approx(5.0, rel=1e-9)
    assert net.scale.item() == 1.0


def test_smoothness_lies_below_the_known_constant_and_near_it() -> None:
    """Cross-entropy of a linear layer has a Hessian of at most (1/2) times the mean of |x|^2."""
    net = build("logistic", input_shape=(3,), num_classes=3, streams=Streams(0))
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.arange(12) % 3
    result = measure_round(net, tree_of(net), x, y, lr=0.5, steps=5, batch_size=12, rng=np.random.default_rng(0))
    known = 0.5 * float((x.square().sum(1) + 1).mean())
    assert 0.05 * known < result.smoothness <= known


def test_measured_quantities_enter_the_bounds() -> None:
    result = measured()
    prototypes = PrototypeConstants(result.feature_lipschitz, result.gradient_bound, classes=3, merged=1, target=0.1)
    change = prototype_bounds("fedskc", result.constants(), prototypes)["change"]
    assert np.isfinite(change.value)


def test_a_round_without_steps_or_samples_and_a_diverging_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps 0"):
        measured(steps=0)
    with pytest.raises(ConfigError, match="diverges"):
        measured(lr=1e30, steps=30)


def test_clients_are_measured_on_their_own_data_and_those_without_are_left_out() -> None:
    x, y = torch.randn(9, 3, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3
    data = Dataset(x, y, ("a", "b", "c"))
    views = Views.from_lists([np.arange(3), np.arange(0), np.arange(3, 9)])
    empty = Views.from_lists([np.arange(0)] * 3)
    scenario = Scenario("three", data, data, views, empty, empty)
    net = build("mlp", input_shape=(3,), num_classes=3, streams=Streams(0), hidden=(4,))
    rounds = measure_clients(scenario, net, lr=0.1, steps=2, batch_size=3)
    assert list(rounds) == [0, 2]
    alone = measure_round(
        *(net, tree_of(net), x[:3], y[:3]), lr=0.1, steps=2, batch_size=3, rng=np.random.default_rng(5)
    )  # a batch of all its data: the order does not matter
    assert rounds[0].losses == pytest.approx(alone.losses)
    with pytest.raises(ConfigError, match="no client"):
        measure_clients(Scenario("none", data, data, empty, empty, empty), net, lr=0.1, steps=2, batch_size=3)
