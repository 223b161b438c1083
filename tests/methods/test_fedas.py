"""FedAS against golden numbers of two rounds; its alignment, its traces, and the weights that they give."""

import math

import pytest
import torch

from fedloom.methods import METHODS
from golden_world import SHARED_BASELINES, golden_run, matches, mistakes, probe, refuted
from support import configured, world

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
