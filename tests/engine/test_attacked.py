"""Forged uploads in the round loop: what the server sees, on every engine, whatever the method."""

import dataclasses

import pytest
import torch

from fedloom.data.attacks import ATTACKS
from fedloom.methods import METHODS
from support import Recording, TinyBN, after, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0, 2], [2, 3, 2, 1, 0, 2, 2], [0, 0, 3]]
NAMES = ["sign-flip", "gaussian", "scaled", "ipm", "alie"]


def attacked(name, attack, bad=(1, 3), **options):
    toy = world(METHODS.get(name).configured("sound", {}), LABELS, net=TinyBN, **options)
    toy.federation.scenario = dataclasses.replace(toy.scenario, attack=attack, bad=bad)
    return toy


def test_the_server_averages_what_the_bad_client_claims():
    """FedAvg by hand: client 1 sends w0 - (w1 - w0); running statistics stay honest."""
    toy = attacked("fedavg", ATTACKS.get("sign-flip")(), bad=(1,), engine=Recording)
    toy.federation.step()
    sent = {done.client: done.upload for done in toy.federation.engine.done}
    total = sum(len(labels) for labels in LABELS)
    for name, value in toy.federation.server["model"].items():
        if not value.is_floating_point():
            continue
        each = {client: payload["model"][name].double() for client, payload in sent.items()}
        if "running" not in name:
            each[1] = 2 * toy.task.init[name].double() - each[1]
        expected = sum(len(LABELS[client]) * tree for client, tree in each.items()) / total
        assert torch.allclose(value.double(), expected, atol=1e-6), name


def test_scaffolds_controls_are_changes():
    plain, toy = (attacked("scaffold", ATTACKS.get("sign-flip")(), bad=bad, engine=Recording) for bad in ((), (0, 1)))
    for one in (plain, toy):
        one.federation.step()
    changes = {done.client: done.upload["control"] for done in toy.federation.engine.done}
    for name, value in toy.federation.server["control"].items():
        expected = sum((-1 if client in (0, 1) else 1) * change[name] for client, change in changes.items()) / len(
            LABELS
        )
        assert torch.allclose(value, expected, atol=1e-6)


@pytest.mark.parametrize("attack", NAMES)
@pytest.mark.parametrize("name", ["fedprox+dw", "fedavg+median"])
def test_the_same_bits_on_serial_and_processes(name, attack):
    done = []
    for engine in ("serial", "processes"):
        toy = attacked(name, ATTACKS.get(attack)(), participation=0.8, rounds=3)
        done.append(after(toy, 3, engine).federation)
    assert same_bits(done[0].server, done[1].server)
    assert done[0].states.keys() == done[1].states.keys()


@pytest.mark.parametrize("name", ["fedsc", "fedskc", "fedssa", "fedkd", "fedco2", "fedproto", "fednh", "fd", "local"])
def test_every_kind_of_upload_can_be_attacked(name):
    """Trees, tables, tensors, low ranks, nothing at all."""
    for attack in ("sign-flip", "alie"):
        toy = attacked(name, ATTACKS.get(attack)(), rounds=2, seed=5)
        after(toy, 2)


def test_bad_clients_keep_honest_states_and_bytes_do_not_change():
    plain, toy = (attacked("scaffold", ATTACKS.get("gaussian")(), bad=bad) for bad in ((), (0, 4)))
    for one in (plain, toy):
        one.reports = [one.federation.step()]
    assert toy.reports[0].bytes_up == plain.reports[0].bytes_up
    assert all(same_bits(plain.federation.states[k], toy.federation.states[k]) for k in range(5))


def test_an_attack_that_does_nothing_is_a_finding():
    toy = attacked("fedavg", ATTACKS.get("alie")(share=0.3))
    federation = type(toy.federation)(
        toy.method, toy.federation.engine, [toy.task], toy.federation.scenario, participation=1.0
    )
    assert [diagnostic.code for diagnostic in federation.initial_diagnostics] == ["attack.idle"]
