"""FedPCL against golden numbers of three rounds; what it predicts with; classes that nobody has sent."""

import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS
from fedloom.methods.parts.prototypes import UNKNOWN
from golden_world import CLASS_KNOWLEDGE, golden_run, matches, mistakes, probe
from support import TinyBN, configured, same_bits, world

GOLD = CLASS_KNOWLEDGE["fedpcl"]
FEDPCL = METHODS.get("fedpcl")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


def golden(rounds=3):
    return golden_run(FEDPCL, rounds, tau=GOLD["options"]["temperature"])


def told(federation):
    """What the golden probes cover: the prototypes, then the bodies of all clients."""
    tree = {"rows": get_table(federation.server, "prototypes").values}
    for client in range(3):
        own = federation.state_of(federation.client_context(client, federation.round))["model"]
        tree |= {f"{client}/{name}": own[name] for name in GOLD["out"]["own"][str(client)]}
    return tree


def test_golden_rounds():
    federation, servers = golden()
    for number, server in enumerate(servers, 1):
        wanted, table = GOLD["out"][f"round{number}"], get_table(server, "prototypes")
        assert matches({"": table.values}, {"": wanted["rows"]}, tolerance=2e-6)
        assert table.held.tolist() == wanted["held"]
    for client, own in GOLD["out"]["own"].items():
        tree = federation.state_of(federation.client_context(int(client), 3))["model"]
        assert matches(tree, own, tolerance=2e-6)
    for number in (1, 2, 3):
        last = told(golden(number)[0])
        assert abs(probe(last, last) - GOLD["out"][f"round{number}"]["probe"]) < 2e-5
    assert all(abs(probe(last, last) - value) > 1e-4 for value in mistakes(GOLD))


def test_round_1_sends_class_means_and_trains_nothing():
    toy = world(configured("fedpcl"), LABELS, net=TinyBN)
    report = toy.federation.step()
    assert report.steps == 0
    for client in range(len(LABELS)):
        assert same_bits({"": toy.federation.states[client]["model"]}, {"": toy.task.init})


def test_a_client_predicts_among_its_own_classes_and_one_without_means_among_all_known():
    toy = world(configured("fedpcl"), LABELS, participation=0.5)
    toy.federation.step()
    senders = toy.federation.server["senders"].tolist()
    for client, labels in enumerate(LABELS):
        state = toy.federation.state_of(toy.federation.client_context(client, 1))
        offered = toy.method.predictors(toy.federation.server, state, toy.federation.server_context(client))
        scores = offered["personal"].logits(toy.net, toy.data.x)
        held = get_table(toy.federation.server, "prototypes").held.tolist()
        classes = set(labels) if client in senders else {c for c, known in enumerate(held) if known}
        assert {c for c in range(4) if bool((scores[:, c] != UNKNOWN).all())} == classes


def test_classes_that_nobody_has_sent_are_reported():
    toy = world(configured("fedpcl"), LABELS)
    toy.federation.step()
    context = toy.federation.server_context()
    means = get_table(toy.federation.states[2], "prototypes")
    known = get_table(toy.federation.server, "prototypes").held
    uploads = {2: {"prototypes": means}}
    assert toy.method.diagnostics({"known": known}, uploads, context) == []
    (found,) = toy.method.diagnostics({"known": torch.tensor([True, True, False, False])}, uploads, context)
    assert (found.code, found.figure) == ("fedpcl.unknown_classes", 1.0)
    assert toy.method.diagnostics({"known": torch.zeros(4, dtype=torch.bool)}, uploads, context) == []
