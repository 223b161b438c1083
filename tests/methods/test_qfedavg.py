"""q-FedAvg: golden numbers, its step by hand, and where it is FedAvg."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.qfedavg import QFedAvg
from golden_world import SHARED_BASELINES, golden_run, probe, refuted, rounds_match
from support import TinyBN, Uniform, after, configured, furthest, world

GOLD = SHARED_BASELINES["qfedavg"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


class Noting(QFedAvg):
    """Notes what clients send as h, and their losses."""

    seen: list = []  # noqa: RUF012

    def end(self, work, state, ctx):
        payload, state = super().end(work, state, ctx)
        moments = work.collected["loss"]
        self.seen.append((ctx.round, ctx.client, float(moments["sum"][0] / moments["count"]), float(payload["h"])))
        return payload, state


def test_golden():
    Noting.seen.clear()
    _, servers = golden_run(Noting, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert len(Noting.seen) == 4
    for round_, client, loss, h in Noting.seen:
        gold = GOLD["out"][f"round{round_}"]["clients"][str(client)]
        assert loss == pytest.approx(gold["loss"], abs=1e-7)
        assert h == pytest.approx(gold["h"], abs=1e-6)
    others = ["fedlab_training_loss_of_last_epoch_probe", "flower_one_loss_for_all_probe"]
    assert refuted(servers[1]["model"], GOLD, others=others)


def test_another_q():
    _, servers = golden_run(QFedAvg, rounds=2, q=0.2)
    assert abs(probe(servers[1]["model"]) - GOLD["q_0.2_probe"]) < 1e-7


@pytest.mark.parametrize("rate", [0.1, 4.0])
def test_with_q_0_it_is_the_plain_mean_with_buffers(rate):
    """h is 1 / rate, above and below 1."""

    sgd = OptimizerSpec(lr=rate)
    toys = [
        after(world(m, LABELS, net=TinyBN, epochs=2 if rate < 1 else 1, optimizer=sgd), 2)
        for m in (Uniform(), configured("qfedavg", q=0.0))
    ]
    models = [toy.federation.server["model"] for toy in toys]
    assert furthest(*models) < 1e-5
    assert torch.equal(*(model["norm.num_batches_tracked"] for model in models))


def test_the_rate_of_the_round_counts():
    """With q = 0 the rate cancels, whatever it decays to."""
    decaying = OptimizerSpec(lr=0.1, decay=0.5)
    toys = [
        after(world(configured(n, **o), LABELS[:1], optimizer=decaying), 3)
        for n, o in [("fedavg", {}), ("qfedavg", {"q": 0.0})]
    ]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-5


@pytest.mark.parametrize(
    ("optimizer", "found"),
    [(OptimizerSpec(momentum=0.9), "momentum = 0.9"), (OptimizerSpec(name="adam"), "name = adam")],
)
def test_what_is_not_plain_sgd_is_refused(optimizer, found):
    with pytest.raises(ConfigError, match=rf"optimizer\.{found}: qfedavg takes 1 / rate"):
        world(configured("qfedavg"), LABELS, optimizer=optimizer)


def test_a_rate_whose_inverse_overflows_is_refused():
    decaying = OptimizerSpec(lr=0.1, decay=1e-60)
    with pytest.raises(ConfigError, match=r"optimizer\.decay = 1e-60: the rate of the last round is .*; need 1e-100"):
        world(configured("qfedavg"), LABELS, optimizer=decaying, rounds=3)
    after(world(configured("qfedavg"), LABELS, optimizer=decaying, rounds=2), 2)


@pytest.mark.parametrize(("q", "spread"), [(0.0, 1), (0.5, 2), (1.0, 4), (3.0, 64)])
def test_changes_may_lie_apart_by_the_power_of_the_losses(q, spread):
    """With q of 1 a federation refuses an upload 100 times too large: 5 times 4 is the most."""
    sends = configured("qfedavg", q=q).spec.sends
    assert (sends["model"].spread, sends["model"].form, sends["h"].spread) == (spread, "change", 1000)
