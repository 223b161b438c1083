"""ProtoNorm against golden numbers of three rounds; points that spread on the sphere; what has no direction."""

import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS, ClassTable
from fedloom.methods.protonorm import spread_rows
from golden_world import CLASS_KNOWLEDGE, SIZES, golden_run, matches, noting_uploads, probe, refuted
from support import configured, world

GOLD = CLASS_KNOWLEDGE["protonorm"]
OPTIONS = GOLD["options"]
PROTONORM = METHODS.get("protonorm")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
RUN = {
    "weight": OPTIONS["weight"],
    "scale": OPTIONS["scale"],
    "server_steps": OPTIONS["iterations"],
    "server_lr": OPTIONS["rate"],
    "server_momentum": OPTIONS["momentum"],
}


def rows(server):
    return {"": get_table(server, "prototypes").values}


def held(values):
    return ClassTable(torch.as_tensor(values), torch.ones(len(values), dtype=torch.bool))


def test_golden_rounds():
    kind, uploads = noting_uploads(PROTONORM)
    federation, servers = golden_run(kind, keep_absent=False, **RUN)
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches(rows(server), {"": wanted["rows"]}, tolerance=2e-6)
        assert get_table(server, "prototypes").held.tolist() == wanted["held"]
        sent = [get_table(upload, "prototypes") for upload in uploads[f"round{number}"].values()]
        assert matches({"": ClassTable.stack(sent).mean_over_clients().values}, {"": wanted["means"]}, tolerance=2e-6)
        assert abs(probe(rows(server), [""]) - wanted["probe"]) < 2e-5
    for client, own in GOLD["out"]["own"].items():
        assert matches(federation.states[int(client)]["model"], own, tolerance=2e-6)
    assert refuted(rows(servers[-1]), GOLD, [""])


def test_golden_nearest_prototype():
    federation, _ = golden_run(PROTONORM, keep_absent=False, **RUN)
    x, net = federation.scenario.train_set.x, federation.engine.worker.loaded_nets[0].net
    for client, wanted in enumerate(GOLD["out"]["nearest"]):
        state = federation.state_of(federation.client_context(client, 3))
        offered = federation.method.predictors(federation.server, state, federation.server_context())
        net.load_state_dict(offered["nearest"].tree)
        said = offered["nearest"].logits(net, x[SIZES[client] : SIZES[client + 1]]).argmax(1)
        assert said.tolist() == wanted


def test_golden_of_kept_prototypes():
    _, servers = golden_run(PROTONORM, **RUN)
    assert abs(probe(rows(servers[-1]), [""]) - GOLD["keep_absent_probe"]) < 2e-6


def test_four_points_in_three_dimensions_become_a_tetrahedron():
    gold = GOLD["tetrahedron"]
    points = spread_rows(held(torch.tensor(gold["points"]).double()), 2000, 0.1, 0.9).values
    assert torch.allclose(points @ points.T, torch.tensor(gold["cosines"]).double(), rtol=0, atol=5e-4)


def test_without_steps_rows_are_directions_and_a_mean_without_length_has_none():
    table = ClassTable(torch.tensor([[3.0, 4.0], [0.0, 0.0], [7.0, 7.0]]), torch.tensor([True, True, False]))
    spread = spread_rows(table, 0, 0.1, 0.9)
    assert spread.held.tolist() == [True, False, False]
    assert torch.allclose(spread.values[0], torch.tensor([0.6, 0.8]).double())
    assert not bool(spread.values[1:].any())


def test_what_cannot_be_spread_is_reported():
    toy = world(configured("protonorm"), LABELS)
    context = toy.federation.server_context()
    values = torch.tensor([[3.0, 4, 0, 0, 0, 0], [3.0, 4, 0, 0, 0, 0], [0.0] * 6, [0.0] * 6])
    uploads = {0: {"prototypes": ClassTable(values, torch.tensor([True, True, True, False]))}}
    server = toy.method.aggregate(toy.federation.server, uploads, context)
    codes = [found.code for found in toy.method.diagnostics(server, uploads, context)]
    assert codes == ["protonorm.no_direction", "protonorm.equal_prototypes", "protonorm.scale"]
    fine = {0: {"prototypes": held(torch.eye(4, 6) * 80)}}
    server = toy.method.aggregate(toy.federation.server, fine, context)
    assert toy.method.diagnostics(server, fine, context) == []


def test_unspread_and_at_length_1_the_pull_is_that_of_fedproto():
    methods = configured("protonorm", scale=1.0, server_steps=0), configured("fedproto")
    z, rows = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(method.distance(z, rows) for method in methods))
