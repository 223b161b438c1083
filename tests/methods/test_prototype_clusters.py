"""FPL, FedPLVM and their clusters (FINCH): golden numbers, absent classes, limits."""

import pytest
import torch

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS, Batch, ClassTable, LabelledRows, Work
from fedloom.methods.fpl import with_absent_classes
from fedloom.methods.parts.contrast import Cosines, prototype_contrast, prototypes_of, unit
from fedloom.methods.parts.prototypes import cluster_means, clusters_by_class, components, finch, nearest_by_cosine
from golden_world import (
    CLASS_KNOWLEDGE,
    CLASSES,
    EVERYBODY,
    WIDTH,
    WORLD,
    GoldenNet,
    golden_entries,
    golden_run,
    matches,
    nearest_rows,
    noting_uploads,
    probe,
    refuted,
)
from support import Through, configured, world

GOLD = golden_entries("fpl fedplvm")


# -- fpl ---------------------------------------------------------------------------------------------------------------
FPL = METHODS.get("fpl")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
NAMES = [*WORLD["init"], "rows"]
RUN_FPL = {"tau": GOLD["fpl"]["options"]["temperature"], "lr": GOLD["fpl"]["options"]["lr"]}


def told(server, wanted):
    """What the golden probes cover: the tree, then the prototypes by class, several in the file's order."""
    table = get_table(server, "prototypes")
    classes, rows = table.held.T.nonzero()[:, 0], table.values.transpose(0, 1)[table.held.T]
    assert classes.tolist() == wanted["classes"]
    return get_tree(server, "model") | {"rows": nearest_rows(rows, wanted["rows"])}


@pytest.mark.parametrize(("entry", "way"), [("out", "last_epoch"), ("after_training", "after_training")])
def test_fpl_golden_rounds(entry, way):
    _, servers = golden_run(FPL, prototypes_from=way, keep_absent=False, **RUN_FPL)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["fpl"][entry][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        tree = told(server, wanted)
        assert matches(tree, {"rows": wanted["rows"]}, tolerance=2e-6)
        assert abs(probe(tree, NAMES) - wanted["probe"]) < 2e-5
    assert refuted(tree, GOLD["fpl"], NAMES)


def test_golden_of_kept_prototypes():
    _, servers = golden_run(FPL, prototypes_from="last_epoch", **RUN_FPL)
    table = get_table(servers[-1], "prototypes")  # of two participants a class has one prototype at most
    tree = get_tree(servers[-1], "model") | {"rows": table.values[0][table.held[0]]}
    assert abs(probe(tree, NAMES) - GOLD["fpl"]["keep_absent_probe"]) < 2e-5


@pytest.mark.parametrize("client", EVERYBODY)
def test_golden_terms_of_several_prototypes(client):
    """Terms and their gradient at the first weights; some classes have several prototypes, one has none."""
    given = GOLD["fpl"]["given"]
    rows, classes = torch.tensor(given["rows"], dtype=torch.float64), given["classes"]
    most = max(map(classes.count, classes))
    table, held = torch.zeros(most, CLASSES, WIDTH, dtype=torch.float64), torch.zeros(most, CLASSES, dtype=torch.bool)
    for place, (row, of) in enumerate(zip(rows, classes, strict=True)):
        rank = classes[:place].count(of)
        table[rank, of], held[rank, of] = row, True
    net, method = GoldenNet(), configured("fpl", tau=RUN_FPL["tau"])
    toy = world(method, LABELS)
    payload = {"model": {}, "prototypes": ClassTable(table, held)}
    consts = method.begin(payload, {}, toy.federation.client_context(0, 2)).consts
    batch = Batch(torch.tensor(WORLD["x"][client], dtype=torch.float64), torch.tensor(WORLD["y"][client]))
    terms = method.loss(net, batch, consts).terms
    found = [float(terms["contrast"].detach()), float(terms["pull"].detach())]
    assert found == pytest.approx(given["terms"][str(client)], abs=1e-7)
    names = [name for name, _ in net.named_parameters()]
    gradients = torch.autograd.grad(terms["contrast"] + terms["pull"], list(net.parameters()), materialize_grads=True)
    wanted = given["gradient_probes"][str(client)]
    assert abs(probe(dict(zip(names, gradients, strict=True))) - wanted) < 1e-7


def test_four_participants_can_make_two_prototypes():
    toy = world(configured("fpl"), [[0, 1]] * 4)
    held = torch.tensor([[True, False, False, False]] * 4)
    values = torch.zeros(4, 4, 6)
    values[:, 0, :2] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    model = get_tree(toy.federation.server, "model")
    uploads = {
        client: {"model": model, "samples": 1, "prototypes": ClassTable(values[client], held[client])}
        for client in range(4)
    }
    context = toy.federation.server_context()
    server = toy.method.aggregate(toy.federation.server, uploads, context)
    assert get_table(server, "prototypes").held[:, 0].tolist() == [True, True]
    assert toy.method.diagnostics(server, uploads, context) == []
    alike = dict.fromkeys(range(4), uploads[0])
    one = toy.method.aggregate(toy.federation.server, alike, context)
    (found,) = toy.method.diagnostics(one, alike, context)
    assert found.code == "fpl.one_prototype_per_class"
    (few,) = toy.method.examine([toy.task], 3)
    assert few.code == "fpl.few_participants"


def test_absent_classes_keep_all_their_prototypes():
    held = torch.tensor([[True, False], [True, False]])
    last = ClassTable(torch.arange(8.0).view(2, 2, 2) * held.unsqueeze(2), held)
    fresh = ClassTable(torch.tensor([[[0.0, 0.0], [9.0, 9.0]]]), torch.tensor([[False, True]]))
    kept = with_absent_classes(fresh, last)
    assert kept.held.tolist() == [[True, True], [True, False]]
    assert kept.values.tolist() == [[[0.0, 1.0], [9.0, 9.0]], [[4.0, 5.0], [0.0, 0.0]]]
    assert with_absent_classes(last, fresh).values.tolist() == [[[0.0, 1.0], [9.0, 9.0]], [[4.0, 5.0], [0.0, 0.0]]]


CLUSTERING = CLASS_KNOWLEDGE["fpl"]["clustering"]
POINTS = torch.tensor(CLUSTERING["points"], dtype=torch.float64)
PAIRS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])


def same_partition(one, other):
    """Whether two labellings say alike which points are together."""
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    return torch.equal(one.unsqueeze(1) == one, other.unsqueeze(1) == other)


def test_golden_labels():
    assert same_partition(finch(POINTS), CLUSTERING["labels"])
    assert same_partition(finch(POINTS.float()), CLUSTERING["labels"])
    assert same_partition(components(nearest_by_cosine(POINTS).tolist()), CLUSTERING["first_partition"])


def test_the_order_and_the_scale_of_points_do_not_matter():
    order = torch.randperm(len(POINTS), generator=torch.Generator().manual_seed(0))
    scales = torch.linspace(0.5, 2, len(POINTS)).unsqueeze(1)
    first = components(nearest_by_cosine(POINTS * scales).tolist())
    assert same_partition(first, CLUSTERING["first_partition"])
    assert same_partition(finch(POINTS[order]), torch.tensor(CLUSTERING["labels"])[order])


def test_up_to_three_points_are_one_cluster():
    for count in (1, 2, 3):
        assert finch(torch.eye(5)[:count]).tolist() == [0] * count


def test_equal_points_and_points_without_length():
    assert finch(torch.ones(6, 2)).tolist() == [0] * 6
    assert finch(torch.zeros(6, 2)).tolist() == [0] * 6
    assert bool(finch(torch.cat([torch.zeros(1, 2), PAIRS])).ge(0).all())


def test_blocks_do_not_matter(monkeypatch):
    monkeypatch.setattr("fedloom.methods.parts.prototypes._BLOCK", 4)
    assert same_partition(finch(POINTS), CLUSTERING["labels"])


def test_means_are_of_the_original_points():
    means = cluster_means(PAIRS, torch.tensor([0, 1, 0, 0]))
    assert means.tolist() == [[(2 + PAIRS[3, 0].double()) / 3, (1 + PAIRS[2, 1].double()) / 3], [0.0, 1.0]]


def test_clusters_of_each_class():
    """Class 0 has two clusters of two clients, class 1 one client, class 2 nobody."""
    clusters = clusters_by_class([PAIRS, PAIRS[1:2], PAIRS[:0]])
    assert clusters.held.tolist() == [[True, True, False], [True, False, False]]
    wanted = [PAIRS[[0, 2]].double().mean(0), PAIRS[[1, 3]].double().mean(0)]
    assert torch.allclose(clusters.values[:, 0], torch.stack(wanted), rtol=0, atol=1e-15)
    assert torch.equal(clusters.values[0, 1], PAIRS[1].double())
    assert not bool(clusters.values[1, 1:].any())
    assert not bool(clusters.values[0, 2].any())
    nobody = clusters_by_class([torch.zeros(0, 2)] * 3)
    assert nobody.values.shape == (1, 3, 2)
    assert not bool(nobody.held.any())


# -- fedplvm -----------------------------------------------------------------------------------------------------------
FEDPLVM = METHODS.get("fedplvm")
OPTIONS = GOLD["fedplvm"]["options"]
RUN_FEDPLVM = {
    "alpha": OPTIONS["alpha"],
    "tau": OPTIONS["temperature"],
    "weight": OPTIONS["weight"],
    "lr": OPTIONS["lr"],
}
LEVELS = GOLD["fedplvm"]["two_levels"]


def test_fedplvm_golden_rounds():
    cosines = []

    class Noting(FEDPLVM):
        def loss(self, net, batch, consts):
            if consts:
                cosines.append(float((unit(net.features(batch.x)) @ unit(consts["rows"]).double().T).detach().min()))
            return super().loss(net, batch, consts)

    kind, uploads = noting_uploads(Noting)
    _, servers = golden_run(kind, keep_absent=False, **RUN_FEDPLVM)
    for number, server in enumerate(servers, 1):
        wanted, table = GOLD["fedplvm"]["out"][f"round{number}"], get_table(server, "prototypes")
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
    assert min(cosines) == pytest.approx(GOLD["fedplvm"]["smallest_cosine"], abs=2e-6)
    assert refuted(tree, GOLD["fedplvm"], NAMES)


def test_golden_of_the_uniform_mean():
    _, servers = golden_run(FEDPLVM, keep_absent=False, weights="uniform", **RUN_FEDPLVM)
    prototypes = get_table(servers[-1], "prototypes")
    tree = get_tree(servers[-1], "model") | {"rows": prototypes.values.transpose(0, 1)[prototypes.held.T]}
    assert abs(probe(tree, NAMES) - GOLD["fedplvm"]["uniform_probe"]) < 2e-5


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
