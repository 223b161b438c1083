"""FedRS: golden numbers, the gradient of missing classes, and where it is FedAvg."""

import pytest

from fedloom.methods.fedrs import FedRS
from golden_world import SHARED_BASELINES, golden_run, refuted, rounds_match
from support import after, configured, same_bits, world

GOLD = SHARED_BASELINES["fedrs"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    federation, servers = golden_run(FedRS, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    for client, scale in GOLD["scales"].items():
        ctx = federation.client_context(int(client), 1)
        assert federation.method.begin(servers[0], {}, ctx).consts["scale"].tolist() == scale
    assert refuted(
        servers[1]["model"], GOLD, others=["fluke_two_samples_are_missing_probe", "marsfl_soft_without_bias_probe"]
    )


@pytest.mark.parametrize(("options", "labels"), [({"alpha": 1.0}, LABELS), ({}, [[0, 1, 2, 3], [3, 2, 1, 0, 0]])])
def test_it_is_fedavg_bit_for_bit_without_restriction_or_missing_classes(options, labels):
    toys = [after(world(m, labels, epochs=2), 2) for m in (configured("fedavg"), configured("fedrs", **options))]
    assert same_bits(*(toy.federation.server for toy in toys))
