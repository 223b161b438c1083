"""FedTGP against golden numbers of two rounds; its margin; its generator."""

import math

import pytest
import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS, ClassTable
from fedloom.methods.fedtgp import margin_of
from fedloom.methods.parts.measures import generated
from golden_world import GOLDEN, golden_run, matches, probe, refuted
from support import configured, world

GOLD = GOLDEN["fedtgp"]
FEDTGP = METHODS.get("fedtgp")
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]


class Golden(FEDTGP):
    """Begins with the golden generator, and says its margins."""

    def server_init(self, ctx):
        given = {name: torch.tensor(value).double() for name, value in GOLD["generator_init"].items()}
        return super().server_init(ctx) | {"generator": given}

    def aggregate(self, server, uploads, ctx):
        tables = ClassTable.stack([get_table(upload, "prototypes") for upload in uploads.values()])
        return super().aggregate(server, uploads, ctx) | {"margin": margin_of(tables, self.options.margin)}


def test_golden_rounds():
    federation, servers = golden_run(Golden, rounds=2, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        wanted = GOLD["out"][f"round{number}"]
        assert matches({"": get_table(server, "prototypes").values}, {"": wanted["rows"]}, tolerance=2e-6)
        assert server["margin"] == pytest.approx(wanted["margin"], abs=2e-6)
    for client, wanted in GOLD["out"]["own_probes"].items():
        assert abs(probe(federation.states[int(client)]["model"]) - wanted) < 2e-6
    assert matches(servers[-1]["generator"], GOLD["out"]["generator"], tolerance=2e-6)
    assert refuted({"": get_table(servers[-1], "prototypes").values}, GOLD, [""])


def test_the_margin():
    held = torch.tensor([[True, True, True], [True, False, False]])
    values = torch.tensor([[[0.0, 0], [3, 0], [0, 4]], [[0, 0], [0, 0], [0, 0]]])
    assert margin_of(ClassTable(values, held), 100.0) == 4.0  # nearest: 3, 3, 4
    assert margin_of(ClassTable(values, held), 2.5) == 2.5
    alone = torch.tensor([[True, False, False], [True, False, False]])
    assert margin_of(ClassTable(values, held).keep_classes(alone), 100.0) == 100.0


def test_a_prototype_that_lies_on_a_row_has_a_finite_gradient():
    toy = world(configured("fedtgp", server_epochs=2), LABELS)
    server = toy.federation.server
    rows = generated(server["generator"])
    uploads = {0: {"prototypes": ClassTable(rows, torch.ones(4, dtype=torch.bool))}}
    new = toy.method.aggregate(server, uploads, toy.federation.server_context())
    assert all(math.isfinite(float(value.sum())) for value in new["generator"].values())
