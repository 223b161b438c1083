"""FedRoD: golden numbers, what stays private, and who gets which gradient."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch
from fedloom.methods.fedrod import FedRoD, both_heads
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted
from support import Recording, TinyBN, after, alike, configured, same_bits, same_tree, world

GOLD = GOLDEN["fedrod"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    federation, servers = golden_run(FedRoD, rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD["out"][f"round{number}"]["server"])
        assert abs(probe(server["model"]) - GOLD["out"][f"round{number}"]["probe"]) < 1e-7
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


def test_with_plain_cross_entropy_the_global_model_is_fedavgs_bit_for_bit():
    methods = (configured("fedavg"), configured("fedrod", balanced=False))
    toys = [after(world(m, LABELS, net=TinyBN, participation=0.6, epochs=2), 3) for m in methods]
    assert same_bits(*(toy.federation.server for toy in toys))


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


def test_private_heads_are_neither_sent_nor_touched_by_others():
    toy = world(configured("fedrod"), LABELS, participation=0.4, engine=Recording)
    after(toy, 1)
    before = {client: state["model"] for client, state in toy.federation.states.items()}
    assert all(not name.startswith("extra") for done in toy.federation.engine.done for name in done.upload["model"])
    toy.federation.engine.done.clear()
    toy.federation.step()
    drawn = {done.client for done in toy.federation.engine.done}
    rest = before.keys() - drawn
    assert rest
    assert all(same_tree(toy.federation.states[client]["model"], before[client]) for client in rest)


def test_predictors():
    toy = after(world(configured("fedrod"), LABELS), 1)
    ctx = ServerContext(toy.task, 1)
    common = toy.method.predictors(toy.federation.server, None, ctx)["global"]
    own = toy.method.predictors(toy.federation.server, toy.federation.states[0], ctx)["personal"]
    assert own.logits is both_heads
    x = toy.samples(0)[0]
    toy.net.load_state_dict(common.tree)
    assert torch.equal(common.logits(toy.net, x), toy.net.head(toy.net.features(x)))
    toy.net.load_state_dict(own.tree)
    z = toy.net.features(x)
    assert torch.equal(own.logits(toy.net, x), toy.net.head(z) + toy.net.extra(z))


@pytest.mark.parametrize("engine", ["processes", "stacked"])
def test_engines_agree(engine):
    toys = [world(configured("fedrod"), LABELS, net=TinyBN) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, engine), engine)


def test_values_out_of_range():
    with pytest.raises(ConfigError, match=r"fedrod\.gamma = -1"):
        configured("fedrod", gamma=-1.0)
