"""FedDistill+ against golden numbers of two rounds; its limit is FedAvg."""

import pytest
import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS, Batch, ClassTable
from golden_world import GOLDEN, golden_run, matches, refuted
from support import configured, world

GOLD = GOLDEN["feddistill"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


def test_golden_rounds():
    _, servers = golden_run(METHODS.get("feddistill"), rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        assert matches({"": get_table(server, "soft_labels").values}, {"": wanted["rows"]}, tolerance=2e-6)
    assert refuted(servers[-1]["model"], GOLD)


def test_ema_is_the_share_of_the_new_rows():
    last = torch.eye(3)
    after = {}
    for ema in (0.2, 1.0):
        toy = world(configured("feddistill", ema=ema), [[0, 1, 2], [0, 1, 2, 0]])
        toy.federation.step()
        after[ema] = get_table(toy.federation.server, "soft_labels").values[:3, :3]
    assert torch.allclose(after[0.2], 0.2 * after[1.0] + 0.8 * last, atol=1e-6)
    assert not torch.allclose(after[1.0], last, atol=0.1)


@pytest.mark.parametrize("compares", ["log_probabilities", "probabilities"])
def test_the_divergence_by_hand(compares):
    """Outputs q that are the soft label: KL is 0; with outputs in place of their logs it is sum q (log q - q) < 0."""
    method = configured("feddistill", compares=compares)
    toy = world(method, LABELS)
    x = toy.data.x[:1]
    said = torch.softmax(toy.net(x), 1).detach()
    label = torch.tensor([2])
    rows = torch.zeros(4, 4)
    rows[2] = said
    got = method.loss(toy.net, Batch(x, label), {"soft_labels": rows}).terms["distillation"]
    by_hand = float((said * said.log() - said * said).sum()) if compares == "probabilities" else 0.0
    assert float(got.detach()) == pytest.approx(by_hand, abs=1e-6)


def test_dw_goes_over_it():
    """FedDW, Table IV, has this pair."""
    toy = world(METHODS.get("feddistill+dw").configured("sound", {}), LABELS)
    toy.federation.step()
    toy.federation.step()
    assert {"model", "soft_labels", "dw.soft_labels"} <= toy.federation.server.keys()


def test_the_row_of_a_class_that_nobody_held_goes_back_to_its_unit_vector():
    toy = world(configured("feddistill"), [[0, 0], [1]])
    last = ClassTable(torch.full((4, 4), 0.25), torch.ones(4, dtype=torch.bool))
    toy.federation.server = toy.federation.server | {"soft_labels": last}
    toy.federation.step()
    row = get_table(toy.federation.server, "soft_labels").values[3]
    assert row.tolist() == [0.125, 0.125, 0.125, 0.625]
