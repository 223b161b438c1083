"""FedRS: golden numbers, the gradient of missing classes, and where it is FedAvg."""

import pytest
import torch

from fedloom.methods.contract.phases import Batch
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


def head_gradient(toy, client):
    """The gradient of the head, that of its logits if they were free, and the factors of the logits."""
    x, y = toy.samples(client)
    consts = toy.method.begin(toy.federation.server, {}, toy.federation.client_context(client, 1)).consts
    logits = toy.net(x)
    restricted = (logits * consts["scale"]).detach().requires_grad_()
    upstream = torch.autograd.grad(torch.nn.functional.cross_entropy(restricted, y), restricted)[0]
    plain = upstream.T @ toy.net.features(x)
    found = torch.autograd.grad(toy.method.loss(toy.net, Batch(x, y), consts).total, toy.net.head.weight)[0]
    return found, plain, consts["scale"]


def test_the_row_of_a_missing_class_gets_alpha_times_the_gradient():
    found, by_logit, scale = head_gradient(world(configured("fedrs", alpha=0.25), LABELS), 0)
    assert scale.tolist() == [1.0, 1.0, 1.0, 0.25]
    assert torch.allclose(found, by_logit * scale.unsqueeze(1), atol=1e-6)


@pytest.mark.parametrize(("options", "labels"), [({"alpha": 1.0}, LABELS), ({}, [[0, 1, 2, 3], [3, 2, 1, 0, 0]])])
def test_it_is_fedavg_bit_for_bit_without_restriction_or_missing_classes(options, labels):
    toys = [after(world(m, labels, epochs=2), 2) for m in (configured("fedavg"), configured("fedrs", **options))]
    assert same_bits(*(toy.federation.server for toy in toys))
