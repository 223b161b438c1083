"""FedNova: golden numbers of unequal steps, and where it is FedAvg."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.fednova import FedNova, gradient_weight
from golden_world import GOLDEN, golden_run, refuted, rounds_match, with_steps
from support import TinyBN, after, configured, furthest, world

GOLD = GOLDEN["fednova"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize(("case", "momentum"), [("out", 0.0), ("momentum_0.9", 0.9)])
def test_golden(case, momentum):
    _, servers = golden_run(with_steps(FedNova, GOLD["options"]["steps"]), rounds=2, momentum=momentum)
    assert rounds_match(servers, GOLD[case])
    assert refuted(servers[1]["model"], GOLD)


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_the_weight_of_gradients_is_the_way_under_a_constant_one(momentum):
    """Heavy-ball momentum on a loss of slope 1: the way is the learning rate times |a|_1."""
    weight = torch.zeros(1, requires_grad=True)
    sgd = torch.optim.SGD([weight], lr=1.0, momentum=momentum)
    for steps in range(1, 6):
        weight.grad = torch.ones(1)
        sgd.step()
        assert gradient_weight(steps, momentum) == pytest.approx(-float(weight.detach()), rel=1e-6)


def test_with_equal_steps_it_is_fedavg():
    equal = [[0, 1, 2], [1, 1, 0], [3, 3, 2]]
    toys = [after(world(configured(n), equal, net=TinyBN, epochs=2), 3) for n in ("fedavg", "fednova")]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-6


def test_a_client_without_a_step_changes_nothing():
    """Of two clients with as many samples, one steps 4 times and one, a batch of one under batch norm, not at all."""
    toy = world(configured("fednova"), [[0, 1, 2, 3], [1]], net=TinyBN, batch_size=2)
    moved = toy.worker.run(toy.job(0)).upload["model"]
    toy.federation.step()
    for name in ("fc.weight", "norm.weight", "head.bias"):
        whole = moved[name] - toy.task.init[name]  # p (tau_eff / a) = 0.8 * 0.8
        assert torch.allclose(toy.federation.server["model"][name], toy.task.init[name] + 0.64 * whole, atol=1e-6)


def test_adam_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.name = adam: fednova divides .*; use sgd"):
        world(configured("fednova"), LABELS, optimizer=OptimizerSpec("adam"))
