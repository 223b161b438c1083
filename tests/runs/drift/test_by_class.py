"""Figures of heads and class tables, by hand."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.round_report import ObservedRound
from fedloom.methods.contract.contexts import ServerContext
from fedloom.runs.drift.observer import head_figures, table_figures
from fedloom.runs.drift.updates import client_updates
from support import CLASSES, Through, configured, world

ROWS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])


def observed(after, uploads, before=None, weight=ROWS):
    toy = world(configured("fedavg"), [[0], [1]], net=lambda: Through(weight), shape=(2,))
    before = {"model": {"head.weight": weight}} if before is None else before
    payloads = dict.fromkeys(uploads, before)
    ctx = ServerContext(toy.task, 1)
    return ObservedRound(toy.method, ctx, before, after, payloads, uploads, {0: 1, 1: 1}, toy.federation.job)


def upload(rows):
    return {"model": {"head.weight": torch.tensor(rows)}, "samples": 1}


def by_class(values, name):
    return [v.value for v in values if v.name == name]


def test_rows_of_the_head_turn_and_grow():
    """Client 0 holds class 0 and turns its row by 90 degrees to twice its length; client 1 holds class 1."""
    first = upload([[0.0, 2.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    second = upload([[1.0, 0.0], [0.0, 6.0], [3.0, 0.0], [1.0, 0.0]])
    round_ = observed({"model": {"head.weight": ROWS}}, {0: first, 1: second})
    updates = client_updates(round_)
    counts = {0: torch.tensor([4, 0, 0, 0]), 1: torch.tensor([0, 2, 0, 0])}
    values = head_figures(updates, round_, counts.__getitem__)
    assert by_class(values, "head_norm") == [1, 2, 3, 0]
    assert by_class(values, "head_turn") == [0, 0, 0, None]  # the last row has no direction
    assert by_class(values, "head_turn_held") == [pytest.approx(90), 0, None, None]
    assert by_class(values, "head_turn_missing") == [0, 0, 0, None]
    assert by_class(values, "head_growth_held") == [2, 3, None, None]
    assert by_class(values, "head_growth_missing")[:3] == [1, 0.5, 1]
    # lengths (2, 1, 3, 0) against counts (4, 0, 0, 0): deviations (.5, -.5, 1.5, -1.5) and (3, -1, -1, -1)
    assert by_class(values, "head_correlation")[0] == pytest.approx(2 / (5 * 12) ** 0.5)


def test_labels_that_only_clients_know_are_not_asked_for():
    round_ = observed({"model": {"head.weight": ROWS}}, {0: upload([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])})
    names = {value.name for value in head_figures(client_updates(round_), round_, None)}
    assert names == {"head_norm", "head_turn", "head_client_turn"}


def test_uploads_without_a_head_say_so():
    tree = {"body": torch.zeros(2)}
    round_ = observed({"model": tree}, {0: {"model": tree, "samples": 1}}, {"model": tree})
    assert "no figures of the head" in head_figures(client_updates(round_), round_, None)


def table(rows, held):
    return ClassTable(torch.tensor(rows) * torch.tensor(held).unsqueeze(1), torch.tensor(held))


def test_distances_of_class_tables():
    """Both clients hold class 0, at (3, 0) and (0, 3): 3 sqrt(2) apart, rows of length 3. Class 1 has one holder."""
    first = {"means": table([[3.0, 0.0], [1.0, 1.0]], [True, True])}
    second = {"means": table([[0.0, 3.0], [9.0, 9.0]], [True, False])}
    before = {"means": table([[2.0, 0.0], [1.0, 0.0]], [True, False])}
    after = {"means": table([[2.0, 1.0], [1.0, 0.0]], [True, True])}
    values = table_figures(observed(after, {0: first, 1: second}, before))
    assert by_class(values, "table_distance") == [pytest.approx(2**0.5)]
    assert by_class(values, "table_distance_of_class") == [pytest.approx(2**0.5), None]
    assert by_class(values, "table_step") == [0.5, None]  # class 1 was new


def test_clients_without_a_common_class_have_no_distance():
    first, second = table([[1.0], [0.0]], [True, False]), table([[0.0], [1.0]], [False, True])
    values = table_figures(observed({}, {0: {"means": first}, 1: {"means": second}}, {}))
    assert [value.value for value in values] == [None, None, None]


def test_rows_and_classes_are_as_many():
    assert len(ROWS) == CLASSES
