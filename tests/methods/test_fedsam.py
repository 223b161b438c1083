"""FedSAM and FedASAM: golden numbers, hand values, and where they are FedAvg."""

import pytest
import torch

from fedloom.methods.fedsam import FedSAM
from golden_world import SHARED_BASELINES, golden_run, probe, refuted, rounds_match
from support import TinyBN, TinyDropout, after, configured, same_bits, world

GOLD = SHARED_BASELINES["fedsam"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


@pytest.mark.parametrize(("way", "adaptive"), [("sam", False), ("asam", True)])
def test_golden(way, adaptive):
    _, servers = golden_run(FedSAM, rounds=2, adaptive=adaptive, **GOLD["options"])
    assert rounds_match(servers, GOLD[way])
    assert refuted(servers[1]["model"], GOLD)
    assert abs(probe(servers[1]["model"]) - GOLD["fluke_adaptive_without_eta_probe"]) > 1e-6


def test_without_gradient_it_stays():
    gradients = {"fc.weight": torch.zeros(1, 1)}
    assert not FedSAM().ascent(gradients, gradients, {})["fc.weight"].any()


@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_without_length_it_is_fedavg_bit_for_bit(net):
    toys = [after(world(m, LABELS, net=net), 2) for m in (configured("fedavg"), configured("fedsam", rho=0.0))]
    assert same_bits(*(toy.federation.server for toy in toys))
