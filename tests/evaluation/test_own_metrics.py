"""Metrics of users, functions and classes: their values, and refusals before training."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.evaluation import METRICS, Metric, Predictions
from fedloom.evaluation.metric import MetricStates, Scores
from fedloom.evaluation.metrics import Accuracy
from fedloom.evaluation.own_metrics import metric_of_one_process, pickled_sources, register_metric, register_pickled
from fedloom.runs.config.run_config import parse

SCENARIO = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 3, "val": 0.1}


def is_correct(predictions):
    return predictions.predicted == predictions.labels


def of_one_shape(predictions):
    return predictions.probabilities


def failing(predictions):
    raise KeyError("no such thing")


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
    name = register_metric(named("inner"))
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


KEYS = {"scenario": SCENARIO, "rounds": 1, "model": "mlp", "progress": False}


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
    assert "a config knows sevens by name alone, so if its code has changed, say existing='fresh'" in text
