"""FedDisco: golden numbers of both distances, and weights where it is FedAvg."""

import pytest
import torch

from fedloom.methods.feddisco import FedDisco, discrepancy
from golden_world import GOLDEN, WORLD, golden_run, refuted, rounds_match
from support import configured, furthest, world

GOLD = GOLDEN["feddisco"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize("case", ["out", "authors_kl"])
def test_golden(case):
    options = {} if case == "out" else {"distance": "kl", "normalised": True}
    _, servers = golden_run(FedDisco, rounds=2, **GOLD["options"], **options)
    assert rounds_match(servers, GOLD[case])
    assert refuted(servers[1]["model"], GOLD)


@pytest.mark.parametrize(("distance", "wanted"), [("l2", GOLD["discrepancy"]), ("kl", GOLD["kl"])])
def test_discrepancies(distance, wanted):
    ours = [discrepancy(torch.tensor(counts), distance) for counts in WORLD["class_counts"]]
    assert ours == pytest.approx(wanted, abs=1e-8)


def test_a_client_of_weight_zero_does_not_move_the_model():
    """Client 1 has all classes alike, client 0 one: with a = 2 it weighs max(0, 1/3 - 2 * 0.866) = 0."""
    toy = world(configured("feddisco", a=2.0, b=0.0), [[0, 0], [0, 1, 2, 3]])
    alone = toy.worker.run(toy.job(1)).upload["model"]
    toy.federation.step()
    assert furthest(toy.federation.server["model"], alone) < 1e-7
