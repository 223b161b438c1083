"""The weights of the mean are those with which the method averages."""

import pytest

from fedloom.runs.drift.updates import MeanWeights
from support import configured, world

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


def test_a_robust_mean_has_no_weights():
    assert noted("fedavg+median") == "a wrapper replaces the mean of model: no aggregation weights"


def test_the_method_itself_is_not_changed():
    method = configured("fedavg")
    recorder = MeanWeights().noting(method)
    assert "mean" in vars(recorder)
    assert "mean" not in vars(method)
