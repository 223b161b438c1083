"""Measures of updates, weights of the mean, heads and class tables, by hand."""

import math

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.round_report import ObservedRound
from fedloom.methods.contract.contexts import ServerContext
from fedloom.runs.drift.observer import head_figures, table_figures
from fedloom.runs.drift.updates import (
    ClientUpdates,
    MeanWeights,
    client_updates,
    evenly,
    update_figures,
)
from support import Through, configured, world

TASK = world(configured("fedavg"), [[0], [1]]).task


def figures_of(rows, samples):
    moves = [({"fc.weight": torch.tensor([[row]])}, {"fc.weight": torch.zeros(1, 1, len(row))}) for row in rows]
    updates = ClientUpdates("model", list(range(len(rows))), moves)
    return update_figures(updates, TASK, dict(enumerate(samples)))


def test_lengths_and_angles_of_two_updates():
    """(3, 4) and (3, -4) with equal samples: the mean is (3, 0)."""
    values = figures_of([[3.0, 4.0], [3.0, -4.0]], [5, 5])
    whole = {v.name: v.value for v in values if v.client is None}
    assert whole == pytest.approx({"mean_update_norm": 3.0, "diversity": 25 / 9})
    for name, expected in (("update_norm", 5.0), ("distance_to_mean", 4.0), ("cosine_to_mean", 0.6)):
        assert [v.value for v in values if v.name == name] == pytest.approx([expected, expected])
    pairs = [(v.client, v.other, v.value) for v in values if v.name == "cosine"]
    assert pairs == [(0, 1, pytest.approx(-7 / 25))]


def test_the_mean_weighs_by_samples():
    """(1) with 1 sample and (5) with 3: the mean is 4, the mean square 19."""
    whole = {v.name: v.value for v in figures_of([[1.0], [5.0]], [1, 3]) if v.client is None}
    assert whole == pytest.approx({"mean_update_norm": 4.0, "diversity": 19 / 16})


def test_clients_that_do_not_move_have_lengths_and_no_angles():
    values = {(v.name, v.client): v.value for v in figures_of([[0.0], [0.0]], [1, 1])}
    assert values["mean_update_norm", None] == 0
    assert values["diversity", None] is None
    assert values["cosine_to_mean", 0] is None
    assert values["cosine", 0] is None


def test_updates_that_are_not_finite_have_no_angles():
    values = {
        (v.name, v.client): v.value for v in figures_of([[math.inf, 1.0], [-math.inf, 1.0], [1.0, 1.0]], [1, 1, 1])
    }
    assert [values["cosine", client] for client in (0, 1)] == [None, None]
    assert [values["cosine_to_mean", client] for client in (0, 1, 2)] == [None, None, None]


def test_opposite_updates_have_no_mean_direction():
    values = {(v.name, v.client): v.value for v in figures_of([[2.0], [-2.0]], [1, 1])}
    assert values["diversity", None] is None
    assert values["cosine", 0] == -1
    assert not math.isnan(values["distance_to_mean", 0])


def test_of_many_clients_evenly_spaced_ones_are_compared():
    assert evenly(range(5), 20) == [0, 1, 2, 3, 4]
    assert evenly(range(101), 3) == [0, 50, 100]


LABELS = [[0, 0, 0, 1], [1, 1], [2, 0]]
SAMPLES = {0: 4, 1: 2, 2: 2}


def noted(name, **options):
    toy, weights = world(configured(name, **options), LABELS), MeanWeights()
    uploads = {client: toy.worker.run(toy.job(client)).upload for client in range(3)}
    weights.noting(toy.method).aggregate(toy.federation.server, uploads, toy.federation.server_context())
    return weights.figures("model", [0, 1, 2], SAMPLES)


def test_fedavg_weighs_by_samples():
    values = noted("fedavg")
    assert [v.value for v in values if v.name == "weight"] == [0.5, 0.25, 0.25]
    whole = {v.name: v.value for v in values if v.client is None}
    assert whole == pytest.approx({"weights_from_uniform": 1 / 6, "weights_from_samples": 0})


def test_fedrep_weighs_all_alike():
    values = noted("fedrep", weights="uniform")
    assert [v.value for v in values if v.name == "weight"] == pytest.approx([1 / 3] * 3)


def test_a_server_that_takes_no_mean_says_so():
    assert MeanWeights().figures("model", [0], {0: 1}).endswith("no aggregation weights")


def test_the_method_itself_is_not_changed():
    method = configured("fedavg")
    assert "mean" in vars(MeanWeights().noting(method))
    assert "mean" not in vars(method)


def test_a_robust_mean_has_no_weights():
    assert noted("fedavg+median") == "a wrapper replaces the mean of model: no aggregation weights"


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
