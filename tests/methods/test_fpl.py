"""FPL against golden numbers of three rounds, of given prototypes; what it shares with FedAvg; absent classes."""

import math

import pytest
import torch

from fedloom.core.records import get_table, get_tree
from fedloom.methods import METHODS, Batch, ClassTable
from fedloom.methods.fpl import with_absent_classes
from golden_world import (
    CLASS_KNOWLEDGE,
    CLASSES,
    EVERYBODY,
    WIDTH,
    WORLD,
    GoldenNet,
    golden_run,
    matches,
    nearest_rows,
    probe,
    refuted,
)
from support import configured, world

GOLD = CLASS_KNOWLEDGE["fpl"]
FPL = METHODS.get("fpl")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
NAMES = [*WORLD["init"], "rows"]
RUN = {"tau": GOLD["options"]["temperature"], "lr": GOLD["options"]["lr"]}


def told(server, wanted):
    """What the golden probes cover: the tree, then the prototypes by class, several in the file's order."""
    table = get_table(server, "prototypes")
    classes, rows = table.held.T.nonzero()[:, 0], table.values.transpose(0, 1)[table.held.T]
    assert classes.tolist() == wanted["classes"]
    return get_tree(server, "model") | {"rows": nearest_rows(rows, wanted["rows"])}


@pytest.mark.parametrize(("entry", "way"), [("out", "last_epoch"), ("after_training", "after_training")])
def test_golden_rounds(entry, way):
    _, servers = golden_run(FPL, prototypes_from=way, keep_absent=False, **RUN)
    for number, server in enumerate(servers, 1):
        wanted = GOLD[entry][f"round{number}"]
        assert matches(server["model"], wanted["server"], tolerance=2e-6)
        tree = told(server, wanted)
        assert matches(tree, {"rows": wanted["rows"]}, tolerance=2e-6)
        assert abs(probe(tree, NAMES) - wanted["probe"]) < 2e-5
    assert refuted(tree, GOLD, NAMES)


def test_golden_of_kept_prototypes():
    _, servers = golden_run(FPL, prototypes_from="last_epoch", **RUN)
    table = get_table(servers[-1], "prototypes")  # of two participants a class has one prototype at most
    tree = get_tree(servers[-1], "model") | {"rows": table.values[0][table.held[0]]}
    assert abs(probe(tree, NAMES) - GOLD["keep_absent_probe"]) < 2e-5


@pytest.mark.parametrize("client", EVERYBODY)
def test_golden_terms_of_several_prototypes(client):
    """Terms and their gradient at the first weights; some classes have several prototypes, one has none."""
    given = GOLD["given"]
    rows, classes = torch.tensor(given["rows"], dtype=torch.float64), given["classes"]
    most = max(map(classes.count, classes))
    table, held = torch.zeros(most, CLASSES, WIDTH, dtype=torch.float64), torch.zeros(most, CLASSES, dtype=torch.bool)
    for place, (row, of) in enumerate(zip(rows, classes, strict=True)):
        rank = classes[:place].count(of)
        table[rank, of], held[rank, of] = row, True
    net, method = GoldenNet(), configured("fpl", tau=RUN["tau"])
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


def test_the_contrast_of_one_prototype_a_class_at_a_high_temperature_counts_prototypes():
    toy = world(configured("fpl", tau=1e6), LABELS)
    toy.federation.step()
    job = toy.job(0, round_=2)
    consts = toy.method.begin(job.payload, {}, job.ctx).consts
    terms = toy.method.loss(toy.net, Batch(*toy.samples(0)), consts).terms
    assert float(terms["contrast"].detach()) == pytest.approx(math.log(3), abs=1e-5)  # classes 0, 1 and 2


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


def test_without_the_contrast_it_has_the_pull_of_fedproto():
    toys = [world(configured(name, **o), LABELS) for name, o in (("fpl", {"contrast": 0}), ("fedproto", {"weight": 1}))]
    toys[0].federation.step()
    table = get_table(toys[0].federation.server, "prototypes")
    one_each = ClassTable(table.values[0], table.held[0])
    batch, terms = Batch(*toys[0].samples(2)), []
    for toy, prototypes in zip(toys, (table, one_each), strict=True):
        ctx = toy.federation.client_context(2, 2)
        consts = toy.method.begin({"model": toy.task.init, "prototypes": prototypes}, toy.job(2).state, ctx).consts
        terms.append(toy.method.loss(toys[0].net, batch, consts).total)
    assert float(terms[0].detach()) == pytest.approx(float(terms[1].detach()), rel=1e-5)
