"""FedDisco: golden numbers of both distances, and weights where it is FedAvg."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods.feddisco import FedDisco, discrepancy
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted
from support import TinyBN, after, alike, configured, furthest, same_bits, world

GOLD = GOLDEN["feddisco"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize("case", ["out", "authors_kl"])
def test_golden(case):
    options = {} if case == "out" else {"distance": "kl", "normalised": True}
    _, servers = golden_run(FedDisco, rounds=2, **GOLD["options"], **options)
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD[case][f"round{number}"]["server"])
        assert abs(probe(server["model"]) - GOLD[case][f"round{number}"]["probe"]) < 1e-7
    assert refuted(servers[1]["model"], GOLD)


@pytest.mark.parametrize(("distance", "wanted"), [("l2", GOLD["discrepancy"]), ("kl", GOLD["kl"])])
def test_discrepancies(distance, wanted):
    ours = [discrepancy(torch.tensor(counts), distance) for counts in WORLD["class_counts"]]
    assert ours == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("distance", ["l2", "kl"])
def test_even_labels_have_no_discrepancy(distance):
    assert discrepancy(torch.tensor([5, 5, 5, 5]), distance) == 0


def test_without_both_coefficients_it_is_fedavg():
    methods = (configured("fedavg"), configured("feddisco", a=0.0, b=0.0))
    toys = [after(world(m, LABELS, net=TinyBN, participation=0.6), 3) for m in methods]
    assert furthest(*(toy.federation.server["model"] for toy in toys)) < 1e-6


def test_without_a_positive_weight_it_is_fedavg_bit_for_bit():
    toys = [after(world(m, LABELS), 2) for m in (configured("fedavg"), configured("feddisco", a=50.0))]
    assert same_bits(*(toy.federation.server for toy in toys))


def test_a_client_of_weight_zero_does_not_move_the_model():
    """Client 1 has all classes alike, client 0 one: with a = 2 it weighs max(0, 1/3 - 2 * 0.866) = 0."""
    toy = world(configured("feddisco", a=2.0, b=0.0), [[0, 0], [0, 1, 2, 3]])
    alone = toy.worker.run(toy.job(1)).upload["model"]
    toy.federation.step()
    assert furthest(toy.federation.server["model"], alone) < 1e-7


def test_the_default_is_the_papers_and_authors_take_kl():
    paper, authors = (configured("feddisco", preset).options for preset in ("sound", "authors"))
    assert (paper.a, paper.b, paper.distance, paper.normalised) == (0.5, 0.1, "l2", False)
    assert (authors.a, authors.b, authors.distance, authors.normalised) == (0.5, 0.1, "kl", True)


def test_engines_agree():
    toys = [world(configured("feddisco"), LABELS, net=TinyBN) for _ in range(2)]
    assert alike(after(toys[0], 2), after(toys[1], 2, "processes"), "processes")


@pytest.mark.parametrize(("key", "value"), [("a", -0.5), ("b", -0.1), ("distance", "l1")])
def test_values_out_of_range(key, value):
    with pytest.raises(ConfigError, match=rf"feddisco\.{key} = '?{value}"):
        configured("feddisco", **{key: value})
