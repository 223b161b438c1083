"""FedLC: golden numbers, and classes that a client lacks."""

import torch

from fedloom.methods.fedlc import FedLC
from golden_world import GOLDEN, golden_run, probe, refuted, rounds_match
from support import Recording, after, configured, furthest, world

GOLD = GOLDEN["fedlc"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    _, servers = golden_run(FedLC, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert abs(probe(servers[1]["model"]) - GOLD["floored_counts_probe"]) < 1e-7
    assert refuted(servers[1]["model"], GOLD)


def test_a_class_that_a_client_lacks_gets_no_gradient():
    toy = world(configured("fedlc"), LABELS, engine=Recording)
    toy.federation.step()
    moved = {done.client: done.upload["model"] for done in toy.federation.engine.done}
    init = toy.task.init["head.weight"]
    assert torch.equal(moved[0]["head.weight"][3], init[3])
    assert not torch.equal(moved[0]["head.weight"][2], init[2])
    assert torch.equal(moved[4]["head.weight"], init)  # one class alone: nothing to learn


def test_with_equal_counts_of_all_classes_it_is_fedavg():
    even = [[0, 1, 2, 3, 3, 2, 1, 0], [3, 2, 1, 0]]
    toys = [after(world(configured(n), even, epochs=2), 2) for n in ("fedavg", "fedlc")]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-6
