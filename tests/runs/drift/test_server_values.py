"""The variance of class tables by hand, and FedSKC's rho as the change of that variance."""

import pytest
import torch

import fedloom as fl
from fedloom.core.tables import ClassTable
from fedloom.engine.round_report import ObservedRound
from fedloom.methods.contract.contexts import ServerContext
from fedloom.runs.drift.updates import server_figures
from support import configured, world


def test_variances_are_summed_over_held_classes():
    toy = world(configured("fedavg"), [[0], [1]])
    rows = torch.tensor([[1.0, 3.0], [2.0, 2.0], [0.0, 4.0], [0.0, 99.0]])
    table = ClassTable(rows, torch.tensor([True, True, True, False]))
    after = {"table": table, "rho": 0.5, "model": {"w": rows}, "on": True}
    round_ = ObservedRound(toy.method, ServerContext(toy.task, 1), {}, after, {}, {}, {}, toy.federation.job)
    values = {(value.name, value.entry): value.value for value in server_figures(round_)}
    assert values == {("table_variance", "table"): 1 + 0 + 4, ("server_number", "rho"): 0.5}


def test_rho_is_the_relative_change_of_the_variance():
    """Eq. 5 of FedSKC, in a run in which every class is held in every round."""
    scenario = fl.scenario("digits", partition="iid", clients=2)
    result = fl.run("fedskc", scenario=scenario, rounds=3, model="logistic", preset="paper", drift=True)
    variance, rho = (
        {row["round"]: row["value"] for row in result.drift() if row["name"] == name}
        for name in ("table_variance", "server_number")
    )
    assert sorted(rho) == [2, 3]
    for round_ in rho:
        change = (variance[round_] - variance[round_ - 1]) / variance[round_ - 1]
        assert rho[round_] == pytest.approx(change, rel=1e-4, abs=1e-5)
