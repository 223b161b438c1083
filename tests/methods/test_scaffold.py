"""SCAFFOLD: golden numbers of both options, the identity of its controls, and what it refuses."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.trees import combine
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.scaffold import SCAFFOLD
from fedloom.nets.net import BN_ROLES, Role
from fedloom.runs.config.run_config import parse
from golden_world import GOLDEN, golden_run, matches, probe, refuted, with_steps
from support import Recording, TinyBN, configured, furthest, world

GOLD = GOLDEN["scaffold"]
CASES = {
    "out": (SCAFFOLD, {}),
    "unequal_steps": (with_steps(SCAFFOLD, [3, 1, 2]), {}),
    "option_1": (SCAFFOLD, {"option": 1}),
}
BN_STATISTICS = BN_ROLES - {Role.BN_AFFINE}
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rounds", [1, 2])
def test_golden(case, rounds):
    kind, options = CASES[case]
    federation, servers = golden_run(kind, rounds=rounds, **GOLD["options"], **options)
    server, wanted = servers[-1], GOLD[case][f"round{rounds}"]
    assert matches(server["model"], wanted["server"])
    assert matches(server["control"], wanted["control"])
    assert abs(probe(server["model"]) - wanted["probe"]) < 1e-7
    for client, own in wanted["own"].items():
        assert matches(federation.states[int(client)]["control"], own)
    assert rounds == 1 or refuted(server["model"], GOLD)


@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_over_all_clients(option):
    """Whatever was drawn, and with clients of a batch of one, which batch norm leaves without a step."""
    toy = world(configured("scaffold", option=option), LABELS, net=TinyBN, participation=0.5, epochs=2)
    for _ in range(5):
        toy.federation.step()
        own = [toy.federation.state_of(toy.federation.client_context(k, 1))["control"] for k in range(len(LABELS))]
        assert furthest(combine(own, [1 / len(own)] * len(own)), toy.federation.server["control"]) < 1e-6


def test_a_client_without_a_step_keeps_its_control():
    toy = world(configured("scaffold"), [[0, 1, 2], [1]], net=TinyBN, engine=Recording)
    toy.federation.step()
    payload = toy.federation.engine.done[1].upload
    assert not any(value.any() for value in payload["control"].values())


def test_the_server_rate_is_a_step_towards_the_mean_and_leaves_buffers_to_it():
    half, whole = (world(configured("scaffold", server_lr=rate), LABELS, net=TinyBN) for rate in (0.5, 1.0))
    for toy in (half, whole):
        toy.federation.step()
    one, other = half.federation.server["model"], whole.federation.server["model"]
    for name, value in half.task.init.items():
        halfway = other[name] if toy.task.roles[name] in BN_STATISTICS else (value + other[name]) / 2
        assert torch.allclose(one[name].double(), halfway.double(), atol=1e-6), name


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [
        (OptimizerSpec(momentum=0.9), r"optimizer\.momentum = 0\.9"),
        (OptimizerSpec(weight_decay=1e-4), r"optimizer\.weight_decay = 0\.0001"),
        (OptimizerSpec(decay=0.99), r"optimizer\.decay = 0\.99"),
        (OptimizerSpec("adam"), r"optimizer\.name = adam"),
    ],
)
def test_option_2_needs_plain_sgd(optimizer, key):
    with pytest.raises(ConfigError, match=rf"{key}: scaffold's option 2 .*scaffold\.option=1"):
        world(configured("scaffold"), LABELS, optimizer=optimizer)
    world(configured("scaffold", option=1), LABELS, optimizer=optimizer)


def test_a_config_without_an_optimiser_is_one_that_option_2_takes():
    config = parse({"method": "scaffold", "scenario": {"source": "digits", "partition": "iid"}})
    assert config.optimizer.momentum == 0
