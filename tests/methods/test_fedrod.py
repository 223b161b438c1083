"""FedRoD: golden numbers, what stays private, and who gets which gradient."""

import torch

from fedloom.methods.contract.phases import Batch
from fedloom.methods.fedrod import FedRoD
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted, rounds_match
from support import TinyBN, configured, world

GOLD = GOLDEN["fedrod"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    federation, servers = golden_run(FedRoD, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    for client, own in GOLD["out"]["own"].items():
        private = {name.replace("extra", "head"): v for name, v in federation.states[int(client)]["model"].items()}
        assert matches(private, own)
    assert refuted(servers[1]["model"], GOLD)
    offered = federation.method.predictors(servers[1], federation.states[0], federation.server_context())["personal"]
    net = federation.engine.worker.loaded_nets[0].net
    net.load_state_dict(offered.tree)
    logits = offered.logits(net, torch.tensor(WORLD["x"][0])).detach()
    assert torch.allclose(logits, torch.tensor(GOLD["out"]["personal_logits_of_client_0"]).double(), rtol=0, atol=2e-6)


def test_plain_cross_entropy_is_that_of_fedco2():
    assert configured("fedrod", "fedco2").options.balanced is False
    _, servers = golden_run(FedRoD, rounds=2, balanced=False)
    assert abs(probe(servers[1]["model"]) - GOLD["plain_ce_probe"]) < 1e-7


def test_each_term_moves_its_own_part():
    toy = world(configured("fedrod"), LABELS, net=TinyBN)
    x, y = toy.samples(1)
    consts = toy.method.begin(toy.federation.server, toy.job(1).state, toy.federation.client_context(1, 1)).consts
    terms = toy.method.loss(toy.net, Batch(x, y), consts).terms
    names = [name for name, _ in toy.net.named_parameters()]
    for term, extra in (("ce", False), ("ce_private", True)):
        gradients = torch.autograd.grad(terms[term], list(toy.net.parameters()), allow_unused=True)
        moved = {name for name, g in zip(names, gradients, strict=True) if g is not None and bool(g.any())}
        assert moved == {name for name in names if name.startswith("extra.") is extra}
