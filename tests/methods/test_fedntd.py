"""FedNTD: golden numbers, and what the distillation leaves alone."""

import torch

from fedloom.methods.contract.phases import Batch
from fedloom.methods.fedntd import FedNTD
from golden_world import GOLDEN, golden_run, refuted, rounds_match
from support import TinyBN, after, configured, same_bits, world

GOLD = GOLDEN["fedntd"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    options = dict(GOLD["options"])
    _, servers = golden_run(FedNTD, rounds=2, epochs=options.pop("steps"), **options)
    assert rounds_match(servers, GOLD["out"])
    assert refuted(servers[1]["model"], GOLD)


def test_the_labels_logit_gets_no_gradient():
    method = configured("fedntd", tau=2.0)
    toy = world(method, LABELS)
    x, y = toy.samples(1)
    away = {
        name: value + 0.3 * torch.arange(value.numel()).view(value.shape).cos() for name, value in toy.task.init.items()
    }
    taught = method.loss(toy.net, Batch(x, y), {"received": away}).terms["not_true"]
    assert float(taught.detach()) > 1e-3
    rows = torch.autograd.grad(taught, toy.net.head.bias)[0]
    assert rows.abs().max() > 1e-4
    one = y == 3  # samples of one class alone: its logit stays
    taught = method.loss(toy.net, Batch(x[one], y[one]), {"received": away}).terms["not_true"]
    assert float(torch.autograd.grad(taught, toy.net.head.bias)[0][3]) == 0.0


def test_two_classes_leave_nothing_to_teach():
    toy = world(configured("fedntd"), [[0, 1, 0], [1, 1]], net=lambda: TinyBN(2), classes=2)
    plain = world(configured("fedavg"), [[0, 1, 0], [1, 1]], net=lambda: TinyBN(2), classes=2)
    assert same_bits(*(after(one, 2).federation.server for one in (toy, plain)))
