"""FedCOF and FedNCM against golden heads; the covariance that means alone give."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.fed3r import RidgeHead
from fedloom.methods.fedcof import CovarianceHead, covariances
from fedloom.methods.fedncm import MeansHead
from golden_world import CLASS_KNOWLEDGE, EVERYBODY, golden_run, matches, probe, refuted
from support import Recording, configured, world

GOLD = CLASS_KNOWLEDGE["fedcof"]


def golden_rows(kind, clients=EVERYBODY, **options):
    """The rows of the head that a closing round makes at the first weights."""
    federation, _ = golden_run(kind, 1, drawn=[list(clients)], **options)
    return {"head.weight": federation.server["head"]["head.weight"]}


@pytest.mark.parametrize(("entry", "clients"), [("out", EVERYBODY), ("without_client_1", (0, 2))])
def test_golden_heads(entry, clients):
    rows = golden_rows(CovarianceHead, clients, **GOLD["options"])
    assert matches(rows, {"head.weight": GOLD[entry]["head.weight"]}, tolerance=2e-6)
    assert abs(probe(rows, ["head.weight"]) - GOLD[entry]["probe"]) < 1e-5
    if entry == "out":
        assert refuted(rows, GOLD, ["head.weight"])


def test_golden_fed3r():
    rows = golden_rows(RidgeHead, ridge=GOLD["siblings"]["fed3r_lambda"])
    assert matches(rows, {"head.weight": GOLD["siblings"]["fed3r"]})


def test_golden_fedncm():
    assert matches(golden_rows(MeansHead), {"head.weight": GOLD["siblings"]["fedncm"]}, tolerance=2e-6)


def test_with_a_sample_a_client_the_covariance_is_the_unbiased_one():
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    held, counts = torch.ones(6, 1, dtype=torch.bool), torch.ones(6, 1).double()
    tables = ClassTable(z.unsqueeze(1), held)
    found = covariances(tables, counts, tables.mean_over_clients(counts))
    assert torch.allclose(found[0], torch.cov(z.T), atol=1e-12)
    one = ClassTable(z[:1].unsqueeze(1), held[:1])
    assert not covariances(one, counts[:1], one.mean_over_clients(counts[:1])).any()


@pytest.mark.parametrize(("entry", "clients"), [("out", EVERYBODY), ("without_client_1", (0, 2))])
def test_golden_covariances(entry, clients):
    seen, gold = {}, GOLD[entry]

    class Noting(CovarianceHead):
        def gram(self, means, spread, totals):
            seen.update(held=means.held, spread=spread, gram=super().gram(means, spread, totals))
            return seen["gram"]

    golden_rows(Noting, clients, **GOLD["options"])
    assert seen["held"].tolist() == gold["held"]
    assert torch.allclose(seen["spread"], torch.tensor(gold["covariances"]).double(), atol=2e-6)
    assert torch.allclose(seen["gram"], torch.tensor(gold["gram"]).double(), atol=1e-5)


def test_a_large_gamma_leads_to_the_direction_of_the_means():
    near = golden_rows(CovarianceHead, gamma=1e9)["head.weight"]
    assert torch.allclose(near, golden_rows(MeansHead)["head.weight"], atol=1e-5)


def test_classes_of_one_holder_are_reported():
    toy = world(configured("fedcof"), [[0, 1], [1, 2]], rounds=1, engine=Recording)
    toy.federation.step()
    uploads = {done.client: done.upload for done in toy.federation.engine.done if "means" in done.upload}
    (found,) = toy.method.closing().diagnostics({}, uploads, toy.federation.server_context())
    assert (found.code, found.figure) == ("fedcof.one_holder", 3.0)  # 0, 2 and 3
