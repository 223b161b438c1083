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


def test_the_ascent_has_its_length_over_all_parameters_together():
    gradients = {"fc.weight": torch.tensor([[3.0]]), "fc.bias": torch.tensor([4.0])}
    found = FedSAM(FedSAM.Options(rho=0.5)).ascent(gradients, gradients, {})
    assert found["fc.weight"].item() == pytest.approx(0.3)
    assert found["fc.bias"].item() == pytest.approx(0.4)


def test_the_adaptive_ascent_scales_by_weights_and_not_by_biases():
    """T = (2.5, 1), T g = (7.5, 4), its length 8.5; e = 0.5 T^2 g / 8.5 = 0.5 (18.75, 4) / 8.5."""
    gradients = {"fc.weight": torch.tensor([[3.0]]), "fc.bias": torch.tensor([4.0])}
    parameters = {"fc.weight": torch.tensor([[-2.0]]), "fc.bias": torch.tensor([9.0])}
    found = FedSAM(FedSAM.Options(rho=0.5, adaptive=True, eta=0.5)).ascent(gradients, parameters, {})
    assert found["fc.weight"].item() == pytest.approx(0.5 * 18.75 / 8.5)
    assert found["fc.bias"].item() == pytest.approx(0.5 * 4 / 8.5)


def test_without_gradient_it_stays():
    gradients = {"fc.weight": torch.zeros(1, 1)}
    assert not FedSAM().ascent(gradients, gradients, {})["fc.weight"].any()


@pytest.mark.parametrize("net", [TinyBN, TinyDropout])
def test_without_length_it_is_fedavg_bit_for_bit(net):
    toys = [after(world(m, LABELS, net=net), 2) for m in (configured("fedavg"), configured("fedsam", rho=0.0))]
    assert same_bits(*(toy.federation.server for toy in toys))
