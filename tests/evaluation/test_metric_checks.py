"""Metrics of users: names that are taken, and what they return, are refused before training."""

import math
from dataclasses import dataclass

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.evaluation import METRICS, Metric
from fedloom.evaluation.metric import MetricStates, Predictions, Scores
from fedloom.evaluation.own_metrics import metric_of_one_process, register_metric

KEYS = {
    "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 3},
    "rounds": 1,
    "model": "mlp",
    "progress": False,
}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    METRICS.names()
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))


@dataclass(frozen=True)
class Half(Metric):
    """Half, whatever the model."""

    total: int

    @classmethod
    def new(cls, predictions):
        return cls(len(predictions.labels))

    def compute(self):
        return 0.5 if self.total else math.nan


@dataclass(frozen=True)
class OverSamples(Half):
    """The share of predictions of the first class, over all samples together."""

    first: int = 0
    over = "samples"

    @classmethod
    def new(cls, predictions):
        return cls(len(predictions.labels), int((predictions.predicted == 0).sum()))

    def compute(self):
        return self.first / self.total if self.total else math.nan


def named(name):
    def values(predictions):
        return torch.full((len(predictions.labels),), 7.0)

    values.__name__ = name
    return values


@pytest.mark.parametrize(
    "name",
    ["clients", "majority_own", "majority_global", "accuracy_pooled", "auroc_clients", "f_honest", "class_counts",
     "class_scores", "accuracy_by_sample"],
)  # fmt: skip
def test_names_of_measures_are_refused(name):
    with pytest.raises(ConfigError, match=f"metric {name}: fedloom has measures of this name"):
        fl.run("fedavg", evaluation={"metrics": [named(name)]}, **KEYS)


def fails(self, *_):
    return 1 / 0


WRONG = {
    "no number": ({"compute": lambda self: None}, "compute gives NoneType; need a number, NaN if it has none"),
    "a tensor": ({"compute": lambda self: torch.tensor(1.0)}, "compute gives Tensor"),
    "an error": ({"compute": fails}, r"compute fails \(ZeroDivisionError: division by zero\)"),
    "no merge": ({"merge": fails}, r"merge fails \(ZeroDivisionError"),
    "details of tensors": ({"details": lambda self: {"by_class": torch.ones(3)}}, "details fails .TypeError: .*JSON"),
    "a list of details": ({"details": lambda self: [1]}, "details gives list; need values by name"),
    "over a client": ({"over": "client"}, "over = 'client'; need 'clients', 'samples', 'honest samples'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_class_returns_is_checked_before_training(case):
    namespace, says = WRONG[case]
    kind = dataclass(frozen=True)(type("Wrong", (Half,), {**namespace, "__annotations__": {}}))
    with pytest.raises(ConfigError, match=f"^metric Wrong: {says}"):
        fl.run("fedavg", evaluation={"metrics": [kind]}, **KEYS)


def test_a_class_within_a_function_keeps_clients_in_one_process():
    local = dataclass(frozen=True)(type("Local", (Half,), {"__annotations__": {}, "__qualname__": "f.<locals>.Local"}))
    keys = {**KEYS, "evaluation": {"metrics": [local], "protocol": "personal/local"}}
    fine = [register_metric(named("fine")), register_metric(Half), "auroc"]
    assert metric_of_one_process({name: METRICS.get(name) for name in fine}) is None
    result = fl.run("local", engine={"name": "processes", "workers": 2}, **keys)
    assert result.numbers["metrics"]["Local"] == 0.5
    assert (result.numbers["engine"], metric_of_one_process({"Local": local})) == (
        "serial",
        "the class of the metric Local is not at the top of a module or script",
    )


def test_details_of_any_form_come_back(tmp_path):
    details = {"of": {0: (1.0, math.nan), 10: 2, 9: 3}, "by_class": {"cat": 0.5}, "bins": 10, "confusion": [[0.5]]}
    kind = dataclass(frozen=True)(type("Free", (Half,), {"details": lambda self: details, "__annotations__": {}}))
    fl.run("fedavg", evaluation={"metrics": [kind]}, out=tmp_path / "run", **KEYS)
    assert fl.Result.read(tmp_path / "run").numbers["details"]["Free"]["of"] == {"0": [1.0, None], "10": 2, "9": 3}


def test_a_metric_over_samples_is_that_of_honest_clients_in_its_honest_value():
    kinds = {register_metric(OverSamples): OverSamples}
    scores = torch.eye(2)[torch.tensor([0, 0, 0, 1])]

    def states(rows):
        return MetricStates.new(Predictions(scores[rows], torch.zeros(len(rows), dtype=torch.int64)), kinds)

    clients = {0: states([0, 1, 2]), 1: states([3])}
    values = Scores("test", MetricStates.merged(clients.values()), clients, kinds, bad=(0,)).values()
    assert (values["OverSamples"], values["OverSamples_honest"]) == (0.75, 0.0)


def test_a_finished_run_says_which_metrics_it_knows_by_name_alone(tmp_path):
    class Notes(fl.Callback):
        texts: list[str] = []  # noqa: RUF012

        def on_note(self, config, text):
            self.texts.append(text)

    for _ in range(2):
        fl.run("fedavg", evaluation={"metrics": [named("sevens")]}, out=tmp_path, callbacks=[Notes()], **KEYS)
    (text,) = [text for text in Notes.texts if "by name alone" in text]
    assert "a config knows sevens by name alone, so if you have changed the code, train again with --fresh" in text
