"""FedPLVM against golden numbers of three rounds and of two levels of clusters; what it shares with FedAvg and FPL."""

import pytest
import torch

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS, Batch, ClassTable, LabelledRows, Work
from fedloom.methods.parts.contrast import Cosines, prototype_contrast, prototypes_of, unit
from golden_world import CLASS_KNOWLEDGE, WORLD, golden_run, matches, nearest_rows, noting_uploads, probe, refuted
from support import Through, configured, world

GOLD = CLASS_KNOWLEDGE["fedplvm"]
FEDPLVM = METHODS.get("fedplvm")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
NAMES = [*WORLD["init"], "rows"]
OPTIONS = GOLD["options"]
RUN = {"alpha": OPTIONS["alpha"], "tau": OPTIONS["temperature"], "weight": OPTIONS["weight"], "lr": OPTIONS["lr"]}
LEVELS = GOLD["two_levels"]


def told(server, wanted):
    """What the golden probes cover: the tree, then the prototypes by class, several in the file's order."""
    table = get_table(server, "prototypes")
    classes, rows = table.held.T.nonzero()[:, 0], table.values.transpose(0, 1)[table.held.T]
    assert classes.tolist() == wanted["classes"]
    return get_tree(server, "model") | {"rows": nearest_rows(rows, wanted["rows"])}


def test_golden_rounds():
    cosines = []

    class Noting(FEDPLVM):
        def loss(self, net, batch, consts):
            if consts:
                cosines.append(float((unit(net.features(batch.x)) @ unit(consts["rows"]).double().T).detach().min()))
            return super().loss(net, batch, consts)

    kind, uploads = noting_uploads(Noting)
    _, servers = golden_run(kind, keep_absent=False, **RUN)
    for number, server in enumerate(servers, 1):
        wanted, table = GOLD["out"][f"round{number}"], get_table(server, "prototypes")
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        tree = told(server, wanted)
        assert matches(tree, {"rows": wanted["rows"]}, tolerance=2e-6)
        for place, count in wanted["local_clusters"].items():
            client, label = place.split("/")
            sent = get_table(uploads[f"round{number}"][client], "prototypes")
            assert int(sent.held[:, int(label)].sum()) == count
        centres = table.mean_over_clients()
        assert matches(
            {str(c): centres.values[c] for c in centres.held.nonzero()[:, 0].tolist()},
            wanted["centres"],
            tolerance=2e-6,
        )
        assert abs(probe(tree, NAMES) - wanted["probe"]) < 2e-5
    assert min(cosines) == pytest.approx(GOLD["smallest_cosine"], abs=2e-6)
    assert refuted(tree, GOLD, NAMES)


def test_golden_of_the_uniform_mean():
    _, servers = golden_run(FEDPLVM, keep_absent=False, weights="uniform", **RUN)
    prototypes = get_table(servers[-1], "prototypes")
    tree = get_tree(servers[-1], "model") | {"rows": prototypes.values.transpose(0, 1)[prototypes.held.T]}
    assert abs(probe(tree, NAMES) - GOLD["uniform_probe"]) < 2e-5


def test_golden_clusters_of_two_levels():
    """All features are of class 0; clients send cluster means, and the server clusters those."""
    toy = world(configured("fedplvm"), [[0], [0], [0]], net=lambda: Through(torch.zeros(4, 5)))
    uploads = {}
    for client, points in LEVELS["features"].items():
        rows = LabelledRows(torch.tensor(points, dtype=torch.float64), torch.zeros(len(points), dtype=torch.int64))
        ctx = toy.federation.client_context(int(client), 1)
        upload, _ = toy.method.end(Work(toy.task.init, {"features": rows}, 0), {}, ctx)
        table = get_table(upload, "prototypes")
        assert same_rows(table.values[:, 0][table.held[:, 0]], LEVELS["local"][client])
        uploads[int(client)] = upload
    server = toy.method.aggregate(toy.federation.server, uploads, toy.federation.server_context())
    table = get_table(server, "prototypes")
    assert same_rows(table.values[:, 0][table.held[:, 0]], LEVELS["global"])
    assert not table.held[:, 1:].any()
    centre = table.mean_over_clients().values[0]
    assert torch.allclose(centre, torch.tensor(LEVELS["centre"]), atol=2e-6)
    mistakes = [name for name in LEVELS if name.startswith("WRONG")]
    assert mistakes
    assert not any(torch.allclose(centre, torch.tensor(LEVELS[name]), atol=1e-5) for name in mistakes)
    several = len(LEVELS["global"]) > 1
    assert (toy.method.diagnostics(server, uploads, toy.federation.server_context()) == []) is several


def same_rows(rows, golden):
    return matches({"": nearest_rows(rows, golden)}, {"": golden}, tolerance=2e-6)


def given_prototypes(**options):
    """A method, its constants for two prototypes of class 0 and one of class 1, and the prototypes."""
    values, held = torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(0)), torch.zeros(2, 4, dtype=torch.bool)
    held[0, :2] = held[1, 0] = True
    table = ClassTable(values * held.unsqueeze(2), held)
    toy = world(configured("fedplvm", **options), LABELS, net=lambda: Through(torch.zeros(4, 5)))
    payload = {"model": toy.task.init, "prototypes": table}
    return toy, toy.method.begin(payload, {}, toy.federation.client_context(0, 2)).consts, table


def test_with_plain_cosines_it_is_the_contrast_of_fpl():
    toy, consts, table = given_prototypes(alpha=1, weight=1)
    batch = Batch(torch.rand(6, 5), torch.tensor([0, 1, 0, 2, 1, 3]))
    terms = toy.method.loss(toy.net, batch, consts).terms
    prototypes = prototypes_of(table.values, table.held, table.held)
    contrast, _ = prototype_contrast(batch.x, batch, {"prototypes": prototypes}, Cosines(0.07))
    expected = torch.where(consts["known"][batch.y], contrast, 0.0).mean()
    assert float(terms["contrast"]) == pytest.approx(float(expected), abs=1e-5)


def test_negative_cosines_and_features_without_length_have_finite_terms_and_gradients():
    toy, consts, _ = given_prototypes()
    x = torch.stack([-torch.ones(5), torch.zeros(5), torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0])]).requires_grad_()
    terms = toy.method.loss(toy.net, Batch(x, torch.tensor([0, 1, 1])), consts).terms
    total = terms["contrast"] + terms["pull"]
    (gradient,) = torch.autograd.grad(total, x)
    assert total.isfinite()
    assert gradient.isfinite().all()
    assert not gradient[1].any()


def test_one_prototype_a_class_is_reported():
    toy = world(configured("fedplvm"), [[0, 1]] * 2)
    (found,) = toy.federation.step().diagnostics[:1]
    assert found.code == "fedplvm.one_prototype_per_class"
