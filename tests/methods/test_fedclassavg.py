"""FedClassAvg against golden numbers of two rounds; the contrast by hand; the first participation."""

from dataclasses import replace

import pytest
import torch

from fedloom.data.augment import Augmentation
from fedloom.methods import METHODS, Batch, OptimizerSpec
from fedloom.methods.fedclassavg import supervised_contrast
from golden_world import GOLDEN, WORLD, golden_run, matches, probe, refuted
from support import Recording, TinyBN, configured, same_bits, world

GOLD = GOLDEN["fedclassavg"]
FEDCLASSAVG = METHODS.get("fedclassavg")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
HEAD = ("head.weight", "head.bias")
X, SECOND = (torch.tensor([row for rows in WORLD[key] for row in rows]).double() for key in ("x", "second_view"))


class Twin(FEDCLASSAVG):
    """Both views are the sample itself, for data that cannot be augmented."""

    spec = replace(FEDCLASSAVG.spec, views=1)

    def loss(self, net, batch, consts):
        return super().loss(net, batch._replace(second=batch.x), consts)


class Golden(FEDCLASSAVG):
    """Pretrains at the rate of the world, as the golden run does, and takes the given second view."""

    spec = Twin.spec

    def phases(self, start, ctx):
        *first, main = super().phases(start, ctx)
        return [*(replace(phase, optimizer=OptimizerSpec(lr=WORLD["lr"])) for phase in first), main]

    def loss(self, net, batch, consts):
        which = (batch.x.unsqueeze(1) - X).abs().sum(2).argmin(1)
        return super().loss(net, batch._replace(second=SECOND[which]), consts)

    def end(self, work, state, ctx):
        payload, own = super().end(work, state, ctx)
        return payload, own | {"trained": payload["model"]}


class Mirrored(Golden):
    def loss(self, net, batch, consts):
        return FEDCLASSAVG.loss(self, net, batch._replace(second=batch.x.flip(1)), consts)


@pytest.mark.parametrize(("kind", "key"), [(Golden, "out"), (Mirrored, "mirrored")])
def test_golden_rounds(kind, key):
    options = {name: GOLD["options"][name] for name in ("rho", "tau", "lr")}
    federation, servers = golden_run(kind, rounds=2, **options)
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD[key][f"round{number}"]["server"])
    for client, wanted in GOLD[key]["own_probes"].items():
        state = federation.states[int(client)]
        assert abs(probe(state["model"] | state["trained"]) - wanted) < 1e-7
    assert refuted(servers[-1]["model"], GOLD, HEAD)


def test_a_single_sample_has_no_contrast():
    z = torch.tensor([[1.0, 2]])
    assert supervised_contrast([z, z + 1], Batch(z, torch.tensor([1])), 0.07).abs().max() < 1e-6


def test_padded_rows_change_nothing():
    torch.manual_seed(1)
    z, second, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    bare = supervised_contrast([z[:3], second[:3]], Batch(z[:3], y[:3]), 0.1)
    mask = torch.tensor([True, True, True, False])
    padded = supervised_contrast([z, second], Batch(z, y, mask), 0.1)
    assert torch.allclose(bare, padded[:3], atol=1e-5)
    nothing = supervised_contrast([z.requires_grad_(), second], Batch(z, y, torch.zeros(4, dtype=torch.bool)), 0.1)
    (gradient,) = torch.autograd.grad(nothing.sum(), z)
    assert torch.equal(gradient, torch.zeros_like(z))


def test_pretraining_is_for_the_first_participation_alone():
    toy = world(Twin(), LABELS, net=TinyBN, participation=0.5, engine=Recording)
    seen = set()
    for _ in range(4):
        toy.federation.engine.jobs.clear()
        toy.federation.step()
        for job in toy.federation.engine.jobs:
            phases = toy.method.phases(toy.method.begin(job.payload, job.state, job.ctx), job.ctx)
            assert len(phases) == (1 if job.ctx.client in seen else 2)
            seen.add(job.ctx.client)
    assert len(seen) > 2


def test_without_its_terms_it_is_lg_fedavg():
    """The contrast has no switch: it is made too small for any bit."""
    plain = Twin(FEDCLASSAVG.Options(rho=0.0, pretraining=0, tau=1.0, base_tau=1e30))
    mine, other = (world(kind, LABELS, net=TinyBN) for kind in (plain, configured("lgfedavg")))
    for _ in range(2):
        mine.federation.step()
        other.federation.step()
    assert same_bits(mine.federation.server, other.federation.server)


def test_two_augmented_views_and_the_authors_scale():
    toys = [
        world(
            configured("fedclassavg", preset),
            LABELS,
            net="mlp",
            shape=(1, 6, 6),
            augment=Augmentation(crop=1),
            rounds=1,
        )
        for preset in ("paper", "authors")
    ]
    paper, authors = (toy.federation.step().terms for toy in toys)
    assert paper["contrast"] > 0
    assert authors["contrast"] > 100 * paper["contrast"]
    assert authors["proximal"] == 0
