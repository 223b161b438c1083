"""FedGen against golden numbers; what the generator and the clients draw."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.methods import METHODS
from fedloom.methods.contract.phases import Batch
from fedloom.methods.fedgen import crowding, generated
from golden_world import GOLDEN, WORLD, golden_run, matches
from support import TinyBN, after, configured, world

GOLD = GOLDEN["fedgen"]
ROUNDED = 5e-9 + 1e-10  # half of the golden file's last digit, and the rounding of float64 in our sums
FEDGEN = METHODS.get("fedgen")
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 2, 2, 0, 1], [0], [2, 2, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
SMALL = {"noise": 2, "hidden": 4, "server_lr": GOLD["options"]["lr"], "server_steps": 2, "adam": False}


def exactly(values):
    return torch.tensor(values, dtype=torch.float64)


class Golden(FEDGEN):
    """Begins with the golden generator, draws the golden noise and labels, and keeps clients' weights and losses."""

    def server_init(self, ctx):
        given = {name: exactly(value) for name, value in GOLD["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}

    def drawn(self, counts, rng):
        return exactly(GOLD["options"]["noise"]), torch.tensor(GOLD["options"]["labels"])


class FromTheFirstWeights(Golden):
    """Clients begin with the first weights in every round, and make one step in the second."""

    def begin(self, payload, state, ctx):
        return super().begin(payload | {"model": ctx.task.init}, state, ctx)

    def phases(self, start, ctx):
        return [replace(phase, steps=1 if ctx.round == 2 else None) for phase in super().phases(start, ctx)]


def test_golden_generator():
    _, (server,) = golden_run(Golden, rounds=1, **SMALL)
    assert matches(server["generator"], GOLD["generator"], tolerance=ROUNDED)
    assert not matches(server["generator"], GOLD["generator_init"], tolerance=1e-3)


def test_golden_client():
    _, servers = golden_run(FromTheFirstWeights, drawn=[[0, 2], [0]], **SMALL)
    assert matches(servers[-1]["model"], GOLD["client"], tolerance=ROUNDED)


def test_the_first_loss_weighs_heads_by_who_holds_the_class():
    """By hand, from the golden heads after training: class 1 has no holder, and adds nothing."""
    seen = []

    class Noting(Golden):
        def aggregate(self, server, uploads, ctx):
            noise, labels = self.drawn(None, None)
            z = generated(server["generator"], noise, labels)
            total = torch.zeros(len(labels), dtype=torch.float64)
            held = torch.tensor(WORLD["class_counts"]).double()
            for client, upload in uploads.items():
                head = upload["model"]
                each = torch.nn.functional.cross_entropy(
                    z @ head["head.weight"].T + head["head.bias"], labels, reduction="none"
                )
                total += held[client][labels] / held[list(uploads)].sum(0)[labels].clamp(min=1) * each
            seen.append(float(total.mean()))
            return super().aggregate(server, uploads, ctx)

    golden_run(Noting, rounds=1, **SMALL)
    assert seen[0] == pytest.approx(GOLD["first_loss"], abs=ROUNDED)


def test_classes_that_no_participant_holds_are_not_drawn():
    method = configured("fedgen", draws=500)
    noise, labels = method.drawn(torch.tensor([6, 0, 2, 0]), np.random.default_rng(0))
    counts = torch.bincount(labels, minlength=4)
    assert counts[[1, 3]].tolist() == [0, 0]
    assert 320 < int(counts[0]) < 430  # three of four
    assert noise.shape == (500, 32)
    assert float(noise.mean()) == pytest.approx(0, abs=0.05)


def test_generated_features_reach_the_head_alone():
    toy = after(world(configured("fedgen"), LABELS, net=TinyBN), 1)
    job = toy.job(1, round_=2)
    start = toy.method.begin(job.payload, {}, job.ctx)
    assert start.consts["z"].shape == (32, 6)
    terms = toy.method.loss(toy.net, Batch(*toy.samples(1)), start.consts).terms
    gradients = torch.autograd.grad(terms["ce_generated"], list(toy.net.parameters()), allow_unused=True)
    moved = {n for (n, _), g in zip(toy.net.named_parameters(), gradients, strict=True) if g is not None}
    assert moved == {"head.weight", "head.bias"}
    other = toy.job(3, round_=2)
    assert not torch.equal(toy.method.begin(other.payload, {}, other.ctx).consts["z"], start.consts["z"])


def test_the_generator_learns_what_the_heads_call_a_class():
    toy = after(world(configured("fedgen", server_steps=300, server_lr=1e-2), LABELS), 1)
    server, labels = toy.federation.server, torch.tensor([0, 1, 2] * 20)
    z = generated(server["generator"], torch.randn(60, 32, generator=torch.Generator().manual_seed(0)), labels)
    said = (z @ server["model"]["head.weight"].T + server["model"]["head.bias"]).argmax(1)
    assert float((said == labels).float().mean()) > 0.9


def test_crowding_by_hand():
    noise, z = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [2.0]])
    assert float(crowding(noise, z)) == pytest.approx(np.exp(-(5 * 2 + 5 * 2) / 4))
    assert float(crowding(noise, torch.zeros(2, 1))) == 1.0
