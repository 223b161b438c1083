"""Methods written as plug-ins: the golden numbers of two or three rounds, and the same bits on every engine."""

import inspect

import pytest
import torch

import plugins
from fedloom.core.errors import ConfigError
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS
from fedloom.methods.feddw import with_dw
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted
from support import TinyBN, near, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
METHODS_BY_NAME = {kind.name(): kind for kind in (plugins.Scaffold, plugins.Moon, plugins.FedKD)} | {
    f"{base}+krum": plugins.with_krum(METHODS.get(base)) for base in ("fedavg", "fedskc", "fedssa", "fedprox+dw")
}


def test_scaffold():
    golden = GOLDEN["scaffold"]
    federation, servers = golden_run(plugins.Scaffold, rounds=2)
    for server, wanted in zip(servers, (golden["out"]["round1"], golden["out"]["round2"]), strict=True):
        assert matches(server["model"], wanted["server"])
        assert matches(server["control"], wanted["control"])
    for client, own in golden["out"]["round2"]["own"].items():
        assert matches(federation.states[int(client)]["control"], own)
    assert refuted(servers[1]["model"], golden)


def test_moon():
    golden = GOLDEN["moon"]
    _, servers = golden_run(plugins.Moon, **golden["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], golden["out"][f"round{number}"]["server"])
    assert refuted(servers[2]["model"], golden)


def test_fedkd():
    golden = GOLDEN["fedkd"]["full_rank"]
    federation, servers = golden_run(plugins.FedKD, rounds=2)
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], golden[f"round{number}"]["server"], prefix="mentee.")
    mentor = [f"mentor.{name}" for name in WORLD["init"]]
    for client, wanted in golden["own_probes"].items():
        own = federation.states[int(client)]["model"]
        assert any(abs(probe(own, names) - wanted) < 1e-6 for names in (mentor, [*mentor, "extra.weight"]))


def test_krum():
    golden = GOLDEN["reducers"]
    rows = torch.tensor(golden["options"]["updates"], dtype=torch.float64)
    scores = plugins.krum_scores(rows, golden["options"]["faulty"])
    assert torch.allclose(scores, torch.tensor(golden["krum_scores"], dtype=torch.float64), rtol=0, atol=1e-7)
    method = METHODS_BY_NAME["fedavg+krum"].configured("sound", {"krum_faulty": 2})
    chosen = method.reduce("model", [{"w": row} for row in rows], [1.0] * len(rows))
    assert matches(chosen, {"w": golden["krum"]})


def test_krum_reaches_every_method_that_has_a_mean():
    """Around FedSKC (sound) and FedSSA it decides what becomes of weights and header rows."""
    for base in ("fedskc", "fedssa"):
        plain, robust = (
            world(kind.configured("sound", {}), LABELS) for kind in (METHODS.get(base), METHODS_BY_NAME[f"{base}+krum"])
        )
        for toy in (plain, robust):
            toy.federation.step()
        assert not same_bits(plain.federation.server, robust.federation.server)


def test_krum_refuses_a_method_without_a_mean():
    with pytest.raises(
        ConfigError, match=r"local\+krum: krum replaces the mean .* here there is none \(sent: nothing\)"
    ):
        plugins.with_krum(METHODS.get("local")).configured("sound", {})


@pytest.mark.parametrize("name", METHODS_BY_NAME)
def test_the_same_bits_on_serial_and_processes(name):
    done = []
    for engine in ("serial", "processes"):
        toy = world(METHODS_BY_NAME[name].configured("sound", {}), LABELS, net=TinyBN, epochs=2, rounds=3)
        if engine == "processes":
            toy.federation.engine = Processes(toy.worker, [toy.task], workers=2)
        for _ in range(3):
            toy.federation.step()
        toy.federation.engine.close()
        done.append(toy.federation)
    assert same_bits(done[0].server, done[1].server)
    assert done[0].states.keys() == done[1].states.keys()
    assert all(same_bits(state, done[1].states[client]) for client, state in done[0].states.items())


@pytest.mark.parametrize("name", METHODS_BY_NAME)
def test_stacks_are_near(name):
    one, other = (world(METHODS_BY_NAME[name].configured("sound", {}), LABELS, net=TinyBN, rounds=2) for _ in range(2))
    other.federation.engine = Batched(other.worker, 8)
    for toy in (one, other):
        toy.federation.step()
        toy.federation.step()
    assert near(one.federation.server, other.federation.server, 1e-5)


def test_mentor_and_mentee_may_have_different_architectures():
    toy = world(plugins.FedKD(plugins.FedKD.Options(mentee="logistic")), LABELS, net="mlp", rounds=2)
    toy.federation.step()
    assert {name.partition(".")[0] for name in toy.federation.server["model"]} == {"mentee"}
    assert toy.task.init["extra.weight"].shape == (200, 5)


@pytest.mark.parametrize("kind", [plugins.Scaffold, plugins.Moon, plugins.FedKD])
def test_a_plug_in_is_short(kind):
    assert len(inspect.getsource(kind).splitlines()) <= 45


def test_krum_is_short():
    parts = (plugins.Krum, plugins.krum_scores, plugins.flat, plugins.with_krum)
    assert sum(len(inspect.getsource(part).splitlines()) for part in parts) <= 45


def test_wrappers_nest_in_any_order():
    for name in ("fedprox+dw+krum", "fedprox+krum+dw"):
        base, first, second = name.split("+")
        method = METHODS.get(base)
        for word in (first, second):
            method = plugins.with_krum(method) if word == "krum" else with_dw(method)
        assert method.name() == name
        toy = world(method.configured("sound", {"dw_mu": 0.5, "krum_faulty": 1, "mu": 0.1}), LABELS)
        toy.federation.step()
        toy.federation.step()
        assert "dw.soft_labels" in toy.federation.server
    with pytest.raises(ConfigError, match="has krum already"):
        plugins.with_krum(plugins.with_krum(METHODS.get("fedavg")))
