"""The facts of a test may be as long as the states of its metrics need: many classes, metrics and predictors."""

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.data import Dataset, Scenario
from fedloom.data.views import Views
from fedloom.engine.jobs import EvalResult
from fedloom.evaluation import Evaluator
from fedloom.evaluation.metric import METRICS, MetricStates, Predictions
from fedloom.flower import exchange
from fedloom.flower.checks import check_scored
from fedloom.flower.exchange import facts_limit
from fedloom.flower.in_process import run_in_process
from fedloom.flower.node_registry import FederationError
from fedloom.flower.wire import MAX_FACTS, EvalReply, MessageError, Request, read, reply_with
from flower_world import config_of

ALL = sorted({*METRICS.names()} - {"domain_accuracy"})  # which needs domains


def evaluator_of(classes, metrics=ALL, also=("first", "second")):
    names = tuple(map(str, range(classes)))
    data = Dataset(torch.zeros(2, 3), torch.tensor([0, 1]), names)
    views = Views.from_lists([[0, 1]])
    scenario = Scenario("made", data, data, views, Views.from_lists([[]]), views)
    return Evaluator(scenario, "global/local", batch=8, also=also, metrics=metrics)


def result_of(evaluator, samples):
    """What a node sends: states of predictions with probabilities of many digits, several samples in each bin."""
    classes, generator = evaluator.scenario.num_classes, torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(samples, classes, generator=generator)
    labels = torch.randint(classes, (samples,), generator=generator)
    states = MetricStates.new(Predictions(logits, labels), evaluator.metrics).portable()
    return EvalResult(client=0, tested=dict.fromkeys(evaluator.names, states), samples=0)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_states_of_all_metrics_fit_with_many_classes(classes):
    evaluator = evaluator_of(classes)
    result = result_of(evaluator, samples=300)
    message = reply_with(result, Request(do="test", run="ab", fingerprint="f", version="1", round=1)).to_message()
    limit = facts_limit(evaluator)
    assert len(message.facts) <= limit <= 9 * len(message.facts) + MAX_FACTS
    reply = read(message, EvalReply, limit)
    tested = check_scored(reply.tested, 0, dict.fromkeys(evaluator.names, evaluator.example_states()), 300, 10)
    assert tested["global"].value("auroc") == result.tested["global"].value("auroc")


def test_with_a_thousand_classes_they_are_longer_than_other_facts():
    message = reply_with(
        result_of(evaluator_of(1000), 300), Request(do="test", run="ab", fingerprint="f", version="1", round=1)
    ).to_message()
    assert len(message.facts) > MAX_FACTS
    with pytest.raises(MessageError, match=f"characters; {MAX_FACTS} at most"):
        read(message, EvalReply)


def test_many_thousand_classes_are_computed_or_refused_in_one_line(monkeypatch):
    facts_limit(evaluator_of(5_000))
    monkeypatch.setattr(exchange, "_MOST", 1 << 22)
    with pytest.raises(
        ConfigError, match=r"evaluation\.metrics: a test may need .* with 1,000 classes, .*; leave this"
    ) as e:
        facts_limit(evaluator_of(1000))
    assert "\n" not in str(e.value)


def federation(metrics):
    return config_of("fedper", rounds=1, evaluation={"every": 1, "protocol": "personal/local", "metrics": metrics})


def test_the_server_reads_tests_up_to_this_limit(monkeypatch):
    assert run_in_process(federation(["auroc", "adaptive_ece"])).numbers["metrics"]["auroc"] > 0
    monkeypatch.setattr(exchange, "facts_limit", lambda evaluator: 0)
    monkeypatch.setattr(exchange, "MAX_FACTS", 100)
    with pytest.raises(FederationError, match="characters; 100 at most"):
        run_in_process(federation(["auroc", "adaptive_ece"]))


def test_metrics_that_need_too_much_end_a_federation_before_its_first_round(monkeypatch, tmp_path):
    monkeypatch.setattr(exchange, "_MOST", MAX_FACTS + 1)
    with pytest.raises(ConfigError, match=r"evaluation\.metrics: a test may need .* leave this metric out$"):
        run_in_process(federation(["auroc"]), out=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()
