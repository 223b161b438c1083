"""Facts of answers against the jobs that asked for them."""

import math

import pytest

from fedloom.evaluation.metric import MetricStates
from fedloom.evaluation.metrics import Accuracy, Loss
from fedloom.flower.checks import check_scored, check_trained, shares_too_large
from fedloom.flower.wire import EvalReply, MessageError, Note, PlainStates, TrainReply, read

TRAINED = TrainReply(
    run="ab", client=1, round=2, steps=10, samples=100, seconds=0.5, terms={"ce": 1.0, "near": 0.1},
    norms={"ce": 1.0, "near": 0.2}, notes=[], has_state=False,
)  # fmt: skip
EXAMPLE = MetricStates(1, {"accuracy": Accuracy(1, 1), "loss": Loss(0.5, 1)})


def result_of(correct=5, total=10, loss_sum=3.0):
    states = {"accuracy": {"correct": correct, "total": total}, "loss": {"value_sum": loss_sum, "total": total}}
    return PlainStates(total=total, states=states)


SCORED = EvalReply(run="ab", client=1, round=2, tested={"personal": result_of()}, samples=0)


def trained(**facts):
    return TRAINED.model_copy(update=facts)


def check(answer, measured=True):
    check_trained(answer, measured, 100, {"ce", "near"}, passes=1.0)


def check_tested(reply):
    return check_scored(reply.tested, reply.samples, ["personal"], EXAMPLE, 10, 100)


def test_an_honest_answer_passes():
    check(TRAINED)
    check(trained(norms={}), measured=False)
    check_tested(SCORED)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"terms": {"far": 1.0}}, "reports the term 'far', and the method's are ce, near"),
        ({"terms": {"\x1b[2J": 1.0}}, r"the term '\\x1b\[2J'"),
        ({"norms": {"ce": 1.0, "far": 1.0}}, "reports the norm 'far'"),
        ({"norms": {"near": 1.0}}, "gradient norms without 'ce'"),
        ({"norms": {"ce": -1.0}}, "or below 0"),
        ({"terms": {"ce": 1e305}}, r"reports 'ce' = 1e\+305; numbers are 1e\+100 at most"),
        ({"terms": {"ce": -1e300}, "norms": {"ce": 1.0}}, r"reports 'ce' = -1e\+300"),
        ({"notes": [Note(code="engine.x", message="x", figure=f) for f in (1e300, 1.0)]}, "reports 'engine.x' = 1e"),
        ({"samples": 10**6}, "reports 1,000,000 samples; 2,000 at most with 100 samples"),
        ({"steps": 10**6}, "reports 1,000,000 steps"),
        ({"notes": [Note(code="fedavg.diverged", message="x", figure=0.0)]}, "a diagnostic called 'fedavg.diverged'"),
    ],
)
def test_what_a_job_cannot_have_given_is_refused(facts, says):
    with pytest.raises(MessageError, match=says):
        check(trained(**facts))


def test_norms_that_nobody_asked_for_are_refused():
    with pytest.raises(MessageError, match="does not measure them"):
        check(TRAINED, measured=False)


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ({}, "results of nothing; asked for personal"),
        ({"personal": (5, 10), "global": (5, 10)}, "asked for personal"),
        ({"personal": (5, 20)}, "tested on 20 samples; the client has 10"),
    ],
)
def test_results_that_were_not_asked_for_are_refused(results, says):
    made = {name: result_of(correct, total) for name, (correct, total) in results.items()}
    with pytest.raises(MessageError, match=says):
        check_tested(SCORED.model_copy(update={"tested": made}))


@pytest.mark.parametrize(
    ("states", "says"),
    [
        ({"accuracy": {"correct": 11, "total": 10}}, "11 of 10 samples cannot be correct"),
        ({"accuracy": {"correct": "5", "total": 10}}, "accuracy.correct: need int"),
        ({"accuracy": {"correct": 5, "total": 10}, "more": {}}, "states of accuracy, loss, more"),
        ({"loss": {"value_sum": 1.0, "total": [[1]]}}, "loss.total: need int"),
    ],
)
def test_states_that_cannot_be_are_refused(states, says):
    result = PlainStates(total=10, states=result_of().states | states)
    with pytest.raises(MessageError, match=says):
        check_tested(SCORED.model_copy(update={"tested": {"personal": result}}))


def test_losses_that_are_not_finite_travel():
    """An honest node whose training diverges must be able to say so."""
    terms = {"ce": math.nan, "near": math.inf}
    back = read(trained(terms=terms).to_message(), TrainReply)
    assert math.isnan(back.terms["ce"])
    assert back.terms["near"] == math.inf
    result = result_of(0, 10, math.nan)
    back = read(SCORED.model_copy(update={"tested": {"personal": result}}).to_message(), EvalReply)
    assert math.isnan(check_tested(back)["personal"].value("loss"))


def test_shares_by_hand():
    """Of ten equal clients each may claim 2 / sqrt(10) = 63 % of all samples: 15 times the others' 900."""
    equal = dict.fromkeys(range(9), 100)
    assert not shares_too_large(equal | {9: 1500}, "auto")
    (why,) = shares_too_large(equal | {9: 1600}, "auto").values()
    assert why.startswith("it claims 1,600 samples, 64 % of all, where the median of the others is 100; at most 63.2 %")
    assert list(shares_too_large(equal | {9: 300}, 0.1)) == [9]
    assert not shares_too_large(equal | {9: 200}, 0.1)  # twice an equal share is always allowed
    assert list(shares_too_large(equal | {9: 10**12, 8: 10**9}, "auto")) == [9, 8]


def test_four_clients_are_bounded_as_well():
    """2 / sqrt(4) would be everything; 95 % is what three others of 100 leave to one of 5,700."""
    assert not shares_too_large({0: 100, 1: 100, 2: 100, 3: 5700}, "auto")
    assert list(shares_too_large({0: 100, 1: 100, 2: 100, 3: 5800}, "auto")) == [3]


def test_three_clients_may_claim_what_they_want():
    assert not shares_too_large({0: 1, 1: 1, 2: 10**9}, "auto")
