"""Metrics that are functions: a value for each sample, the same mean over batches, clients and workers."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.evaluation import METRICS, Metric, Predictions
from fedloom.evaluation.metrics import Accuracy
from fedloom.evaluation.own_metrics import pickled_sources, register_metric, register_pickled
from fedloom.runs.config.run_config import parse

SCENARIO = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 3, "val": 0.1}


def is_correct(predictions):
    return predictions.predicted == predictions.labels


def of_one_shape(predictions):
    return predictions.probabilities


def failing(predictions):
    raise KeyError("no such thing")


def lambda_named(name):
    def inner(predictions):
        return predictions.labels

    inner.__name__ = name
    return inner


@dataclass(frozen=True, slots=True)
class ShareOfFirst(Metric):
    """The share of predictions of the first class."""

    first: int
    total: int

    @classmethod
    def new(cls, predictions):
        """The state of one batch."""
        return cls(int((predictions.predicted == 0).sum()), len(predictions.labels))

    def compute(self):
        """first / total."""
        return self.first / self.total


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    METRICS.names()
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))


def run(metrics, **keys):
    scenario = fl.scenario(**SCENARIO)
    evaluation = {"metrics": metrics, **keys.pop("evaluation", {})}
    plain = {"model": "mlp", "rounds": 1, "local_epochs": 1, "engine": "serial", **keys}
    return fl.run("fedavg", scenario=scenario, evaluation=evaluation, **plain)


@pytest.mark.parametrize("engine", ["serial", {"name": "processes", "workers": 2}])
@pytest.mark.parametrize("protocol", ["global/global", "global/local"])
def test_the_share_of_correct_samples_is_accuracy(engine, protocol):
    result = run([is_correct, "brier"], engine=engine, evaluation={"protocol": protocol})
    assert result.numbers["metrics"]["is_correct"] == result.numbers["accuracy"]
    assert result.config["evaluation"]["metrics"] == ["is_correct", "brier"]
    assert result.curve("is_correct", "val") == result.curve("accuracy", "val")


def test_it_selects_rounds():
    selected = run([is_correct], rounds=2, evaluation={"select": "best_val", "select_by": "is_correct"})
    assert selected.numbers["accuracy"] == run([], rounds=2, evaluation={"select": "best_val"}).numbers["accuracy"]


def test_classes_and_definitions_that_run_again_keep_their_name():
    assert register_metric(Accuracy) == "accuracy"
    assert [register_metric(is_correct) for _ in range(2)] == ["is_correct"] * 2
    kind = METRICS.get("is_correct")
    assert issubclass(kind, Metric)
    logits, labels = torch.eye(3), torch.tensor([0, 1, 1])
    whole = kind.new(Predictions(logits, labels))
    parts = [kind.new(Predictions(logits[k : k + 1], labels[k : k + 1])) for k in range(3)]
    assert parts[0].merge(parts[1]).merge(parts[2]) == whole
    assert whole.compute() == 2 / 3
    whole.check(3)
    with pytest.raises(ValueError, match="there are 4"):
        whole.check(4)


def accuracy(predictions):
    return predictions.predicted == predictions.labels


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda predictions: predictions.labels, "a function with a name"),
        (7, "evaluation.metrics = 7"),
        (accuracy, "registered already"),
        (of_one_shape, r"it gives a tensor of shape \[1, 10\]; need one value for each sample"),
        (len, "the function fails"),
        (failing, "the function fails"),
    ],
)
def test_wrong_functions_are_one_line_before_training(metric, says):
    with pytest.raises(ConfigError, match=says) as refused:
        run([metric])
    assert "\n" not in str(refused.value)


def test_a_config_names_the_function():
    config = parse({"scenario": SCENARIO, "evaluation": {"metrics": [is_correct]}})
    assert config.evaluation.metrics == ("is_correct",)


def test_processes_of_whole_runs_import_functions_and_classes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # from where processes import this module
    done = fl.compare(
        ["fedavg"],
        seeds=2,
        scenario=SCENARIO,
        model="mlp",
        rounds=1,
        local_epochs=1,
        evaluation={"metrics": [is_correct, ShareOfFirst]},
        out=tmp_path,
        jobs=2,
        progress=False,
    )
    for result in done.results:
        assert result.numbers["metrics"]["is_correct"] == result.numbers["accuracy"]
        assert 0 <= result.numbers["metrics"]["ShareOfFirst"] <= 1


def test_functions_that_no_process_can_import_are_one_line(monkeypatch):
    name = register_metric(lambda_named("inner"))
    with pytest.raises(
        ConfigError, match=r"metrics = inner: the processes of jobs cannot import it .*take jobs=1"
    ) as no:
        pickled_sources([name], "jobs")
    assert "\n" not in str(no.value)
    assert pickled_sources(["auroc", "accuracy"], "jobs") == {}
    pickled = pickled_sources([register_metric(is_correct)], "jobs")
    monkeypatch.delitem(globals(), "is_correct")  # as a function below the guard of a script
    with pytest.raises(ConfigError, match=r"metrics = is_correct: the processes of jobs cannot import it"):
        register_pickled(pickled, "jobs")
