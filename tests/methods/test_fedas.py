"""FedAS against golden numbers of two rounds; its alignment, its traces, and the weights that they give."""

import math

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods import METHODS, Batch
from fedloom.methods.fedas import alignment
from golden_world import SHARED_BASELINES, golden_run, matches, mistakes, probe, refuted
from support import Through, TinyBN, absent_clients_keep_their_models, configured, furthest, world

GOLD = SHARED_BASELINES["fedas"]
FEDAS = METHODS.get("fedas")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]


def test_golden_rounds():
    traces, aligned = {}, {}

    class Noting(FEDAS):
        def begin(self, payload, state, ctx):
            self.place = ctx.round, ctx.client
            return super().begin(payload, state, ctx)

        def loss(self, net, batch, consts):
            aligned.setdefault(self.place, {n: value.detach().clone() for n, value in net.named_parameters()})
            return super().loss(net, batch, consts)

        def end(self, work, state, ctx):
            upload, state = super().end(work, state, ctx)
            traces[ctx.round, ctx.client] = upload["trace"]
            return upload, state

    for rounds in (1, 2):
        federation, servers = golden_run(Noting, rounds, **GOLD["options"])
        wanted = GOLD["out"][f"round{rounds}"]
        assert matches(servers[-1]["model"], wanted["server"], tolerance=2e-6)
        for client, trace in wanted["traces"].items():
            assert traces[rounds, int(client)] == pytest.approx(trace, abs=2e-6)
            assert matches(aligned[rounds, int(client)], wanted["aligned"][client], tolerance=2e-6)
            assert matches(federation.states[int(client)]["model"], wanted["own"][client], tolerance=2e-6)
        assert abs(probe(servers[-1]["model"]) - wanted["probe"]) < 2e-6
    assert refuted(servers[-1]["model"], GOLD)
    others = [name for name in GOLD if name.endswith("_probe")]
    assert all(abs(probe(servers[-1]["model"]) - value) > 1e-5 for value in mistakes(GOLD, *others))


def test_golden_traces_of_single_samples():
    _, servers = golden_run(FEDAS, 2, trace="samples", **GOLD["options"])
    assert abs(probe(servers[-1]["model"]) - GOLD["trace_per_sample_probe"]) < 2e-6


def test_the_alignment_by_hand():
    net = Through(torch.zeros(3, 2))
    x = torch.tensor([[1.0, 3.0], [3.0, 3.0], [0.0, 2.0]])
    goals = ClassTable(torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([True, False, True]))
    value = alignment(net, Batch(x, torch.tensor([0, 0, 2])), {"goals": goals}).total
    assert float(value) == pytest.approx((2 + 4) / 2 + 2)


def test_traces_are_weights_and_one_that_is_no_number_counts_for_nothing():
    toy = world(configured("fedas"), LABELS)
    tree = toy.task.init
    uploads = {
        k: {"model": {n: torch.full_like(v, float(k)) for n, v in tree.items()}, "samples": 5, "trace": trace}
        for k, trace in enumerate((1.0, 3.0, math.nan))
    }
    ctx = toy.federation.server_context()
    assert float(toy.method.aggregate({}, uploads, ctx)["model"]["fc.bias"][0]) == pytest.approx(0.75)
    assert toy.method.diagnostics({}, uploads, ctx) == []
    uploads[0]["trace"] = uploads[1]["trace"] = 0.0
    assert float(toy.method.aggregate({}, uploads, ctx)["model"]["fc.bias"][0]) == pytest.approx(1.0)
    uploads[1]["trace"] = 9.0
    assert [d.code for d in toy.method.diagnostics({}, uploads, ctx)] == ["fedas.one_client"]


def test_heads_are_the_clients_own_and_absent_clients_keep_their_models():
    toy = world(configured("fedas"), LABELS, net=TinyBN, participation=0.34)
    assert absent_clients_keep_their_models(toy, 3)
    client = min(toy.federation.states)
    own = toy.federation.states[client]["model"]
    start = toy.method.begin({"model": toy.task.init}, {"model": own}, toy.job(client).ctx).tree
    assert torch.equal(start["head.weight"], own["head.weight"])
    assert torch.equal(start["fc.weight"], toy.task.init["fc.weight"])


def test_unaligned_and_with_traces_of_samples_its_body_is_fedpers():
    class Samples(FEDAS):
        def end(self, work, state, ctx):
            upload, state = super().end(work, state, ctx)
            return upload | {"trace": float(ctx.samples)}, state

    ours = world(Samples(FEDAS.Options(align_epochs=0)), LABELS, net=TinyBN)
    theirs = world(configured("fedper"), LABELS, net=TinyBN)
    for toy in (ours, theirs):
        for _ in range(2):
            toy.federation.step()
    body = {name: ours.federation.server["model"][name] for name in theirs.federation.server["model"]}
    assert "fc.weight" in body
    assert furthest(body, theirs.federation.server["model"]) < 1e-6


def test_equal_traces_give_the_uniform_mean():
    toy = world(configured("fedas"), LABELS)
    uploads = {
        k: {"model": {n: torch.full_like(v, float(k)) for n, v in toy.task.init.items()}, "samples": n, "trace": 0.3}
        for k, n in enumerate((1, 9, 4))
    }
    mean = toy.method.aggregate({}, uploads, toy.federation.server_context())["model"]
    assert all(torch.allclose(value, torch.ones_like(value)) for value in mean.values())
