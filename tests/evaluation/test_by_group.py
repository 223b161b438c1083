"""Accuracy on other clients' data and by domain: golden numbers, batches, samples that several clients hold."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation import Evaluator
from fedloom.evaluation.metric import Groups, MetricStates, Predictions
from fedloom.evaluation.metrics.basic import DomainAccuracy, OwnerAccuracy
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net
from support import scores_of

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())["others_data"]
N = sum(GOLDEN["n"])


class Table(Net):
    """Predicts class `answer[x]` for sample number x."""

    def __init__(self):
        super().__init__()
        self.answer = torch.nn.Parameter(torch.zeros(N))

    def forward(self, x):
        predicted = self.answer[x.flatten().long()]
        return torch.stack([1 - predicted, predicted], dim=1)


def golden_scenario():
    """All labels are 0; client 2 has no test samples."""
    x, y = torch.arange(N).float()[:, None], torch.zeros(N, dtype=torch.int64)
    data = Dataset(x, y, ("zero", "one"), domain=(torch.arange(N) < 14).long(), domains=("last", "first"))
    ends = np.cumsum(GOLDEN["n"])
    tests = Views.from_lists([np.arange(end - size, end) for end, size in zip(ends, GOLDEN["n"], strict=True)])
    return Scenario("golden", data, data, train=tests, val=Views.from_lists([np.zeros(0, np.int64)] * 4), test=tests)


def predictors():
    """The model of client k is right on `correct[k][j]` of the samples of client j."""
    for client, row in enumerate(GOLDEN["correct"]):
        answers = [torch.arange(size) >= right for size, right in zip(GOLDEN["n"], row, strict=True)]
        yield client, {"personal": Predictor({"answer": torch.cat(answers).float()})}


def scores_in(protocol, *, batch=7, scenario=None, metrics=()):
    live = LoadedNet(Table())
    evaluator = Evaluator(scenario or golden_scenario(), protocol, batch=batch, metrics=metrics)
    return scores_of(evaluator, predictors(), lambda client: live)


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_golden_foreign_accuracy(batch):
    own, others = scores_in("personal/local", batch=batch), scores_in("personal/others", batch=batch)
    assert others.value("accuracy") == pytest.approx(GOLDEN["others_mean"], abs=1e-8)
    assert others.value("accuracy") != pytest.approx(GOLDEN["WRONG_own_included"], abs=1e-4)
    assert own.value("accuracy") == pytest.approx(GOLDEN["own_mean"], abs=1e-8)
    values = others.client_values()
    assert list(values["accuracy"].values()) == pytest.approx(GOLDEN["others"], abs=1e-8)
    assert list(values["accuracy_by_sample"].values()) == pytest.approx(GOLDEN["others_pooled_by_client"], abs=1e-8)
    mine = own.client_values()["accuracy"]
    drops = [mine[client] - values["accuracy"][client] for client in mine]
    assert sum(drops) / len(drops) == pytest.approx(GOLDEN["drop"], abs=1e-8)


def test_a_sample_that_two_clients_hold_counts_for_both_and_never_as_foreign_to_its_holder():
    scenario = golden_scenario()
    shared = replace(scenario, test=Views.from_lists([np.arange(4), np.arange(4), np.arange(4, 8), np.arange(0)]))
    evaluator = Evaluator(shared, "personal/others", batch=3)
    assert [evaluator.total(client, "test") for client in range(4)] == [8, 8, 8, 12]


def test_many_clients_are_tested_on_a_sample_that_all_methods_share():
    x, y = torch.arange(6000).float()[:, None] % N, torch.zeros(6000, dtype=torch.int64)
    data, views = Dataset(x, y, ("zero", "one")), Views.split_evenly(np.arange(6000), 150)
    many = Scenario("many", data, data, train=views, val=Views.from_lists([np.zeros(0, np.int64)] * 150), test=views)
    one = Evaluator(many, "personal/others", batch=8)
    assert [one.total(client, "test") for client in range(150)] == [
        Evaluator(many, "personal/others", batch=8).total(client, "test") for client in range(150)
    ]
    assert 1900 < one.total(3, "test") < 2000


def test_accuracy_by_domain_counts_each_domain_alike():
    scores = scores_in("personal/global", metrics=["domain_accuracy"])
    by_domain = scores.details()["domain_accuracy"]["by_domain"]
    correct = np.array(GOLDEN["correct"])
    expected = [correct[:, 2:].sum() / (4 * 20), correct[:, :2].sum() / (4 * 14)]
    assert by_domain == pytest.approx(expected)
    assert scores.values()["domain_accuracy_pooled"] == pytest.approx(sum(expected) / 2)
    without = replace(golden_scenario(), test_set=replace(golden_scenario().test_set, domain=None, domains=()))
    with pytest.raises(ConfigError, match=r"metrics = \['domain_accuracy'\]: golden has no domains"):
        Evaluator(without, "global/global", batch=4, metrics=["domain_accuracy"])


def test_states_merge_and_impossible_ones_are_refused():
    logits, labels = torch.eye(2)[[0, 1, 0]], torch.tensor([0, 0, 0])
    groups = Groups(torch.tensor([0, 2, 2]), 3)
    whole = OwnerAccuracy.new(Predictions(logits, labels, owners=groups))
    parts = [
        OwnerAccuracy.new(
            Predictions(logits[k : k + 1], labels[k : k + 1], owners=Groups(groups.indices[k : k + 1], 3))
        )
        for k in range(3)
    ]
    assert MetricStates.merged([MetricStates(1, {"a": part}) for part in parts]).states["a"] == whole
    assert whole.compute() == 0.75
    whole.check(3)
    for wrong in (
        DomainAccuracy(torch.tensor([2]), torch.tensor([1])),
        DomainAccuracy(torch.tensor([0]), torch.tensor([1])),
    ):
        with pytest.raises(ValueError, match="samples cannot have"):
            wrong.check(2)
    assert math.isnan(DomainAccuracy(torch.tensor([0]), torch.tensor([0])).compute())


def test_domains_of_test_samples_alone_do_not_serve_validation_samples():
    x, y = np.random.default_rng(0).normal(size=(60, 4)).astype("float32"), np.arange(60) % 2
    domains = {"domain_test": np.arange(20) % 2, "domains": ["a", "b"]}
    made = from_arrays(x[:40], y[:40], x[40:], y[40:], **domains)
    keys = {"rounds": 1, "model": "mlp", "evaluation": {"metrics": ["domain_accuracy"]}, "progress": False}
    scenario = {"partition": "iid", "clients": 2}
    with pytest.raises(ConfigError, match="has no domains, or only those of its test samples and not of its valid"):
        fl.run("fedavg", scenario=fl.scenario(made, **scenario, val=0.2), **keys)
    result = fl.run("fedavg", scenario=fl.scenario(made, **scenario, val=0.0), **keys)
    assert "domain_accuracy" in result.numbers["metrics"]
