"""COPA against golden numbers of two rounds; its heads, its ensemble, its limits."""

import pytest
import torch

from fedloom.methods import METHODS
from fedloom.methods.contract.phases import Batch
from golden_world import GOLDEN, WORLD, golden_run, golden_scenario, matches, probe, refuted
from support import TinyBN, after, configured, same_tree, world

GOLD = GOLDEN["copa"]
COPA = METHODS.get("copa")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
BODY, HEAD = ("fc.weight", "fc.bias"), ("head.weight", "head.bias")


def test_golden_rounds():
    federation, servers = golden_run(COPA, rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=5e-9)
        assert server["model"].keys() == set(BODY)
        assert abs(probe(server["model"], BODY) - wanted["probe"]) < 5e-8
        for client, head in enumerate(wanted["heads"]):
            assert matches(server[f"head.{client}"], head, tolerance=5e-9)
    assert refuted(servers[-1]["model"], GOLD, BODY)
    tree = federation.method.predictors(federation.server, None, federation.server_context())["global"].tree
    x = golden_scenario().train_set.x[WORLD["n"][0] : WORLD["n"][0] + WORLD["n"][1]]
    logits = federation.server_context().net.logits(tree, x)
    wanted = torch.tensor(GOLD["out"]["ensemble_logits_on_x_of_client_1"], dtype=torch.float64)
    assert torch.allclose(logits, wanted, rtol=0, atol=1e-7)


def test_the_ensemble_is_the_mean_of_all_heads_logits():
    toy = after(world(configured("copa"), LABELS, net=TinyBN), 2)
    server, x = toy.federation.server, toy.data.x
    offered = toy.method.predictors(server, None, toy.federation.server_context())
    frozen = toy.net.functional
    each = [frozen.logits(server["model"] | server[f"head.{k}"], x) for k in range(4)]
    assert torch.allclose(frozen.logits(offered["global"].tree, x), torch.stack(each).mean(0), atol=1e-6)
    assert toy.method.predictors(server, {}, toy.federation.server_context(1)) == {}


def test_the_loss_sums_over_the_others_and_leaves_their_heads_alone():
    toy = world(configured("copa", weight=0.5), LABELS)
    job = toy.job(1)
    for client in (0, 2, 3):  # heads that differ
        job.payload[f"head.{client}"] = {n: v + 0.1 * client + 0.3 for n, v in job.payload[f"head.{client}"].items()}
    start = toy.method.begin(job.payload, {}, job.ctx)
    x, y = toy.samples(1)
    terms = toy.method.loss(toy.net, Batch(x, y), start.consts).terms
    z = toy.net.features(x)
    each = [
        torch.nn.functional.cross_entropy(z @ head["head.weight"].T + head["head.bias"], y)
        for head in (job.payload[f"head.{client}"] for client in (0, 2, 3))
    ]
    assert float(terms["ce_foreign"].detach()) == pytest.approx(0.5 * float(sum(each).detach()), rel=1e-5)
    gradients = torch.autograd.grad(terms["ce_foreign"], list(toy.net.parameters()), allow_unused=True)
    moved = {n for (n, _), g in zip(toy.net.named_parameters(), gradients, strict=True) if g is not None}
    assert moved == set(BODY)


def test_alone_it_is_fedavg():
    ours, plain = (after(world(configured(name), LABELS[:1], net=TinyBN), 2) for name in ("copa", "fedavg"))
    offered = ours.method.predictors(ours.federation.server, None, ours.federation.server_context())
    assert same_tree(offered["global"].tree, plain.federation.server["model"])
    assert set(ours.reports[-1].terms) == {"ce"}
