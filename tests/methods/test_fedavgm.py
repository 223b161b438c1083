"""FedAvgM: golden numbers, and where it is FedAvg."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.fedavgm import FedAvgM
from golden_world import GOLDEN, golden_run, matches, probe
from support import TinyBN, after, alike, configured, furthest, world

GOLD = GOLDEN["fedavgm"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    _, servers = golden_run(FedAvgM, rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD["out"][f"round{number}"]["server"])
        assert abs(probe(server["model"]) - GOLD["out"][f"round{number}"]["probe"]) < 1e-7


def test_nesterov():
    _, servers = golden_run(FedAvgM, rounds=2, nesterov=True, **GOLD["options"])
    assert abs(probe(servers[1]["model"]) - GOLD["nesterov_probe"]) < 1e-7


def test_without_momentum_it_is_fedavg():
    methods = (configured("fedavg"), configured("fedavgm", beta=0.0))
    toys = [after(world(m, LABELS, net=TinyBN, participation=0.6), 3) for m in methods]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-6


def test_buffers_are_averaged():
    toys = [after(world(configured(n), LABELS, net=TinyBN), 1) for n in ("fedavg", "fedavgm")]
    models = [toy.federation.server["model"] for toy in toys]
    assert all(torch.equal(*(m[n] for m in models)) for n in models[0] if n.startswith("norm.r"))
    assert not [n for n in toys[1].federation.server["velocity"] if "running" in n or "num_batches" in n]


def test_engines_agree():
    toys = [world(configured("fedavgm"), LABELS, net=TinyBN) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, "processes"), "processes")


@pytest.mark.parametrize(("key", "value"), [("beta", 1.0), ("beta", -0.1), ("server_lr", 0.0)])
def test_values_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"fedavgm\.{key} = {value}"):
        configured("fedavgm", **{key: value})
