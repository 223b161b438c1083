"""Methods written as plug-ins: the golden numbers of two or three rounds, and the same bits on every engine."""

import inspect

import pytest

import plugins
from fedloom.engine.processes import Processes
from fedloom.engine.stacked import Batched
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted
from support import TinyBN, near, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
METHODS_BY_NAME = {kind.name(): kind for kind in (plugins.Scaffold, plugins.Moon, plugins.FedKD)}


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
