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
from support import Recording, TinyBN, after, configured, furthest, same_bits, world

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


def test_controls_of_the_first_round_live_with_their_clients():
    federation, _ = golden_run(SCAFFOLD, rounds=1)
    absent = ({0, 1, 2} - {int(client) for client in GOLD["out"]["round1"]["own"]}).pop()
    assert not any(value.any() for value in federation.states.get(absent, {"control": {}})["control"].values())


@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_over_all_clients(option):
    """Whatever was drawn, and with clients of a batch of one, which batch norm leaves without a step."""
    toy = world(configured("scaffold", option=option), LABELS, net=TinyBN, participation=0.5, epochs=2)
    for _ in range(5):
        toy.federation.step()
        own = [toy.federation.state_of(toy.federation.client_context(k, 1))["control"] for k in range(len(LABELS))]
        assert furthest(combine(own, [1 / len(own)] * len(own)), toy.federation.server["control"]) < 1e-6


def test_with_one_step_the_control_is_the_gradient_at_the_weights_received():
    """One client, one batch, one step: FedAvg's weights, and both options agree."""
    toys = {}
    for name, options in (("fedavg", {}), ("scaffold", {"option": 2}), ("scaffold", {"option": 1})):
        key = f"{name}{options.get('option', '')}"
        toys[key] = world(configured(name, **options), [[0, 1, 2, 3, 0]], batch_size=8)
        toys[key].federation.step()
    assert same_bits(toys["fedavg"].federation.server, {"model": toys["scaffold2"].federation.server["model"]})
    controls = [toys[key].federation.states[0]["control"] for key in ("scaffold1", "scaffold2")]
    assert furthest(*controls) < 1e-6
    assert max(float(value.abs().max()) for value in controls[0].values()) > 1e-2


def test_option_1_is_the_gradient_over_all_batches():
    """Two batches of 4 and 3, in float64 by hand."""
    toy = world(configured("scaffold", option=1), [[0, 1, 2, 3, 0, 1, 1]], batch_size=4)
    toy.federation.step()
    net = toy.net.double()
    net.load_state_dict(toy.task.init)
    x, y = toy.samples(0)
    loss = torch.nn.functional.cross_entropy(net(x.double()), y)
    wanted = dict(zip(toy.task.init, torch.autograd.grad(loss, list(net.parameters())), strict=True))
    assert furthest(toy.federation.states[0]["control"], wanted) < 1e-6


def test_controls_frozen_at_zero_are_fedavg_with_equal_weights():
    class Frozen(SCAFFOLD):
        def end(self, work, state, ctx):
            payload, _ = super().end(work, state, ctx)
            return payload | {"control": state["control"]}, state

    equal = [[0, 1, 2], [1, 1, 0], [3, 3, 2]]
    toys = [world(method, equal, epochs=2, batch_size=2) for method in (Frozen(), configured("fedavg"))]
    for toy in toys:
        after(toy, 3)
    models = [toy.federation.server["model"] for toy in toys]
    assert furthest(*models) < 1e-6


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
