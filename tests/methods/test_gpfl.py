"""GPFL against golden numbers of two rounds, from received and from own embeddings; its conditions and its pull."""

import pytest
import torch

from fedloom.methods import METHODS, Batch
from fedloom.methods.gpfl import conditions
from golden_world import CLASS_KNOWLEDGE, WORLD, golden_run, matches, probe, refuted
from support import Tiny, configured, world

GOLD = CLASS_KNOWLEDGE["gpfl"]
GPFL = METHODS.get("gpfl")
LABELS = [[0, 1, 2, 3], [1, 1, 3], [0, 2, 3, 3]]


def in_our_words(tree):
    return {f"extra.{n}" if n.startswith(("embedding", "gamma", "beta")) else n: v for n, v in tree.items()}


SHARED = list(in_our_words(GOLD["out"]["round1"]["server"]))
HEAD = ("head.weight", "head.bias")
HEADS = [f"{client}.{name}" for client in range(3) for name in HEAD]


class Golden(GPFL):
    def extra(self, net):
        module = super().extra(net).double()
        first = {"embedding": GOLD["first_embedding"], **GOLD["first_conditional"]}
        with torch.no_grad():
            for name, value in module.named_parameters():
                value.copy_(torch.tensor(first[name], dtype=torch.float64))
        return module


def outputs(federation, client):
    """What a client's test gives for the public inputs."""
    facts, context = federation.client_context(client, federation.round), federation.server_context(client)
    state = federation.state_of(facts)
    offered = federation.method.predictors(federation.server, state, context)["personal"]
    live = federation.engine.worker.net_of_client(client)
    live.load(offered.tree)
    return offered.logits(live.net.eval(), torch.tensor(WORLD["public"], dtype=torch.float64))


@pytest.mark.parametrize(("way", "inputs"), [("out", "received"), ("released", "own")])
def test_golden_rounds(way, inputs):
    federation, servers = golden_run(Golden, 2, inputs=inputs, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], in_our_words(GOLD[way][f"round{number}"]["server"]))
    tree = dict(servers[-1]["model"])
    for client, wanted in GOLD[way]["heads"].items():
        head = federation.states[int(client)]["model"]
        assert matches(head, wanted)
        tree |= {f"{client}.{name}": value for name, value in head.items()}
        assert matches({"": outputs(federation, int(client))}, {"": GOLD[way]["logits_on_public"][client]})
    assert abs(probe(tree, SHARED + HEADS) - GOLD[way]["round2"]["probe"]) < 1e-7  # so mistakes can be told
    early, (server,) = golden_run(Golden, 1, inputs=inputs, **GOLD["options"])
    first = {
        f"{k}.{name}": early.state_of(early.client_context(k, 1))["model"][name] for k in range(3) for name in HEAD
    }
    assert abs(probe(server["model"] | first, SHARED + HEADS) - GOLD[way]["round1"]["probe"]) < 1e-7
    assert refuted(tree, GOLD, SHARED + HEADS)


def test_with_equal_shares_both_conditions_are_one():
    embedding = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    general, personal = conditions(embedding, torch.tensor([5, 5, 5, 5]))
    assert torch.allclose(general, personal)
    general, personal = conditions(embedding, torch.tensor([0, 3, 0, 0]))
    assert torch.equal(personal, embedding[1])
    assert torch.equal(conditions(embedding, torch.zeros(4, dtype=torch.int64))[1], torch.zeros(6))


def test_a_class_that_nobody_holds_moves_by_the_softmax():
    toy = world(configured("gpfl", decay=0.0, weight=0.0), [[0, 1, 2], [1, 0]])
    before = toy.federation.server["model"]["extra.embedding"]
    toy.federation.step()
    moved = (toy.federation.server["model"]["extra.embedding"] - before).abs().sum(1)
    assert (moved > 0).all()


def test_the_pull_is_the_root_of_the_sum_over_the_batch_and_has_a_slope_at_its_end():
    toy = world(configured("gpfl", weight=2.0), LABELS, net=Tiny)
    start = toy.method.begin({"model": toy.task.init}, toy.method.client_init(toy.job(0).ctx), toy.job(0).ctx)
    x, y = toy.samples(0)
    z = toy.net.extra(toy.net.features(x), start.consts["general"])
    wanted = 2 * torch.linalg.vector_norm(z - start.consts["anchors"][y])
    assert torch.allclose(toy.method.loss(toy.net, Batch(x, y), start.consts).terms["pull"], wanted)
    padded = Batch(torch.cat([x, x[:1] + 3]), torch.cat([y, y[:1]]), torch.tensor([True] * len(y) + [False]))
    assert torch.allclose(toy.method.loss(toy.net, padded, start.consts).terms["pull"], wanted)
    anchors = {**start.consts, "anchors": z.detach()}  # features lie where they are pulled to
    term = toy.method.loss(toy.net, Batch(x, torch.arange(len(x))), anchors).terms["pull"]
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(term, list(toy.net.extra.gamma.parameters())))


def test_embeddings_of_one_point_are_said_to_give_one_condition():
    toy = world(configured("gpfl"), LABELS)
    server, ctx = dict(toy.federation.server), toy.federation.server_context()
    assert toy.method.diagnostics(server, {}, ctx) == []
    alike = server["model"] | {"extra.embedding": torch.ones(4, 6)}
    assert [d.code for d in toy.method.diagnostics({"model": alike}, {}, ctx)] == ["gpfl.one_condition"]
