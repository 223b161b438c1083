"""FedAvgM: golden numbers, and where it is FedAvg."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.fedavgm import FedAvgM
from golden_world import GOLDEN, golden_run, probe, rounds_match
from support import TinyBN, TinyInstance, after, alike, configured, same_bits, world

GOLD = GOLDEN["fedavgm"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    _, servers = golden_run(FedAvgM, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])


def test_nesterov():
    _, servers = golden_run(FedAvgM, rounds=2, nesterov=True, **GOLD["options"])
    assert abs(probe(servers[1]["model"]) - GOLD["nesterov_probe"]) < 1e-7


@pytest.mark.parametrize("net", [TinyBN, TinyInstance])
def test_buffers_are_averaged(net):
    toys = [after(world(configured(n), LABELS, net=net), 1) for n in ("fedavg", "fedavgm")]
    models = [toy.federation.server["model"] for toy in toys]
    assert all(torch.equal(*(m[n] for m in models)) for n in models[0] if n.startswith("norm.r"))
    assert not [n for n in toys[1].federation.server["velocity"] if "running" in n or "num_batches" in n]


# -- as a wrapper --------------------------------------------------------------------------------------------
OPTIONS = {"beta": 0.7, "server_lr": 0.5}


@pytest.mark.parametrize("nesterov", [False, True])
def test_over_fedavg_it_is_fedavgm(nesterov):
    named = {f"servermomentum_{key}": value for key, value in OPTIONS.items()}
    methods = (
        configured("fedavgm", nesterov=nesterov, **OPTIONS),
        configured("fedavg+servermomentum", servermomentum_nesterov=nesterov, **named),
    )
    one, other = (after(world(m, LABELS, net=TinyBN, participation=0.6), 3).federation.server for m in methods)
    assert same_bits({"model": one["model"]}, {"model": other["model"]})
    assert same_bits({"": one["velocity"]}, {"": other["servermomentum.velocity"]})


@pytest.mark.parametrize("base", ["feddyn", "fedrep", "fedsc", "fednh", "scaffold"])
def test_over_other_methods_it_moves_what_clients_send(base):
    """Round 1: w - eta (1 + beta) D with Nesterov's momentum, D = w^0 - what the method alone makes."""
    named = {f"servermomentum_{key}": value for key, value in OPTIONS.items()}
    plain = after(world(configured(base), LABELS, net=TinyBN), 1)
    toy = after(
        world(configured(f"{base}+servermomentum", servermomentum_nesterov=True, **named), LABELS, net=TinyBN), 1
    )
    old, mean, new = (
        dict(tree) for tree in (toy.task.init, plain.federation.server["model"], toy.federation.server["model"])
    )
    sent = {n for n in mean if not n.startswith("norm.running") and not n.endswith("tracked")}
    sent -= {"head.weight"} if base == "fednh" else set()  # the server's own rows
    for name in mean:
        wanted = old[name].double() - 0.5 * 1.7 * (old[name].double() - mean[name].double())
        wanted = wanted if name in sent else mean[name].double()
        assert torch.allclose(new[name].double(), wanted, rtol=0, atol=1e-6), name
    velocity = toy.federation.server["servermomentum.velocity"]
    assert not [n for n in velocity if "running" in n or "tracked" in n]


def test_a_robust_mean_and_momentum_nest_in_any_order():
    names = ("fedavg+median+servermomentum", "fedavg+servermomentum+median")
    one, other = (after(world(configured(name), LABELS), 3).federation.server for name in names)
    assert same_bits(one, other)


@pytest.mark.parametrize("base", ["fedavg", "fedsc", "fedrep"])
def test_engines_agree_on_the_wrapper(base):
    toys = [world(configured(f"{base}+servermomentum"), LABELS, net=TinyBN, participation=0.6) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, "processes"), "processes")


def test_refusals_of_the_wrapper():
    for base, sent in (("local", "nothing"), ("fedgh", "prototypes"), ("fedkd", "model"), ("fedssa", "header")):
        with pytest.raises(ConfigError, match=rf"{base}\+servermomentum: .* clients send none \(sent: {sent}\)"):
            configured(f"{base}+servermomentum")
    with pytest.raises(ConfigError, match="fedavgm has servermomentum already"):
        configured("fedavgm+servermomentum")
    for base in ("fedadam", "fedyogi", "fedadagrad"):
        with pytest.raises(ConfigError, match=f"{base}: its server optimiser has momentum of its own"):
            configured(f"{base}+servermomentum")
    for key, value in (("beta", -0.1), ("beta", 1.0), ("server_lr", -1.0)):
        with pytest.raises(ConfigError, match=rf"servermomentum_{key} = {value}"):
            configured("fedavg+servermomentum", **{f"servermomentum_{key}": value})
