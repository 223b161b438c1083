"""FedORGP against golden numbers of two rounds, plain and adaptive; what its server's terms do alone."""

import pytest
import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS
from fedloom.methods.contract.sample_statistics import LabelledRows
from fedloom.methods.fedorgp import kept, means_of_kept
from golden_world import CLASS_KNOWLEDGE, WORLD, golden_run, matches, probe, refuted
from support import TinyBN, configured, world

GOLD = CLASS_KNOWLEDGE["fedorgp"]
FEDORGP = METHODS.get("fedorgp")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


class Golden(FEDORGP):
    """Begins with the golden generator."""

    def server_init(self, ctx):
        given = {name: torch.tensor(value).double() for name, value in GOLD["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}


def rows(server):
    return {"": get_table(server, "prototypes").values}


def of_all(federation, server):
    """The fingerprint of the prototypes, then the nets of all clients."""
    trees = {
        f"{client}/{name}": federation.states[client]["model"][name] for client in range(3) for name in WORLD["init"]
    }
    return probe(rows(server) | trees, ["", *trees])


@pytest.mark.parametrize("entry", ["out", "adaptive"])
def test_golden_rounds(entry):
    federation, servers = golden_run(Golden, rounds=2, adaptive=entry == "adaptive", **GOLD["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD[entry][f"round{number}"]
        assert matches(rows(server), {"": wanted["rows"]}, tolerance=2e-6)
        assert abs(probe(rows(server), [""]) - wanted["probe"]) < 1e-5
    for client, wanted in GOLD[entry]["own_probes"].items():
        assert abs(probe(federation.states[int(client)]["model"]) - wanted) < 2e-6
    assert matches(servers[-1]["generator"], GOLD[entry]["generator"], tolerance=2e-6)
    assert abs(of_all(federation, servers[-1]) - GOLD[entry]["probe_of_all"]) < 1e-5
    assert abs(of_all(federation, servers[-1]) - GOLD["WRONG_euclidean_pull_probe_of_all"]) > 1e-3
    assert refuted(rows(servers[-1]), GOLD, [""])


def test_features_without_length_have_no_gradient():
    z = torch.zeros(1, 3, requires_grad=True)
    distance = configured("fedorgp").distance(z, torch.ones(1, 3))
    assert distance.tolist() == [1.0]
    (gradient,) = torch.autograd.grad(distance.sum(), z)
    assert gradient.tolist() == [[0.0, 0.0, 0.0]]


def test_more_classes_than_features_are_reported():
    toy = world(configured("fedorgp"), LABELS)
    assert toy.method.examine([toy.task], 2) == []
    fields = {name: getattr(toy.task, name) for name in type(toy.task).__dataclass_fields__}
    (found,) = toy.method.examine([type(toy.task)(**{**fields, "num_classes": 9})], 2)
    assert found.code == "fedorgp.more_classes_than_features"


def test_golden_filter():
    points = torch.tensor(GOLD["filter"]["points"], dtype=torch.float64)
    assert kept(points, 0.5).tolist() == GOLD["filter"]["kept"]
    rows = LabelledRows(torch.cat([points, points[:2]]), torch.tensor([2] * len(points) + [0] * 2))
    means = means_of_kept(rows, 4, 0.5)
    assert means.held.tolist() == [True, False, True, False]
    inside = torch.tensor(GOLD["filter"]["kept"])
    assert torch.allclose(means.values[2], points[inside].mean(0).float())
    assert torch.allclose(means.values[0], points[:2].mean(0).float())


def test_the_share_decides_between_a_long_and_a_turned_feature():
    near = torch.tensor([[1.0, 0.02 * k] for k in range(-4, 5)], dtype=torch.float64)
    far, turned = torch.tensor([[1.9, 0.0]]).double(), torch.tensor([[0.98, 0.17]]).double()
    rows = torch.cat([near, far, turned])
    by_cosine, by_distance = kept(rows, 0.01), kept(rows, 0.99)
    assert by_cosine[9], "a long feature of the right direction stays, by cosine"
    assert not by_distance[9]
    assert kept(torch.cat([rows, torch.full((1, 2), torch.nan).double()]), 0.5).all(), "a diverged client loses nothing"


def test_a_filtered_round_sends_means_of_the_features_that_are_kept():
    toy = world(configured("fedorgp", filtered=True), [[0] * 9, [1, 0]], net=TinyBN)
    job = toy.job(0)
    done = toy.worker.run(job)
    x, _ = toy.samples(0)
    toy.net.load_state_dict(done.state["model"])
    z = toy.net.eval().features(x).detach().double()
    assert torch.allclose(done.upload["prototypes"].values[0], z[kept(z, 0.5)].mean(0).float(), atol=1e-6)
