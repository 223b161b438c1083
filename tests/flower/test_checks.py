"""Facts of replies against the jobs that asked for them, sizes of uploads against each other, and new server states."""

import math
import re

import pytest
import torch

from fedloom.core.errors import RunFolderError
from fedloom.core.tables import ClassTable
from fedloom.evaluation.metric import MetricStates
from fedloom.evaluation.metrics import Accuracy, Loss
from fedloom.flower.checks import References, UploadNorm, check_scored, check_trained, shares_too_large, upload_norms
from fedloom.flower.wire import EvalReply, MessageError, Note, PlainStates, TrainReply, read
from fedloom.methods import METHODS
from fedloom.methods.contract.spec import Sent
from fedloom.nets.net import Role

TRAINED = TrainReply(
    run="ab", client=1, round=2, steps=10, samples=100, seconds=0.5, terms={"ce": 1.0, "near": 0.1},
    norms={"ce": 1.0, "near": 0.2}, notes=[], has_state=False,
)  # fmt: skip
EXAMPLE = MetricStates(1, {"accuracy": Accuracy(1, 1), "loss": Loss(0.5, 1)})


def check(measured=True, **facts):
    check_trained(TRAINED.model_copy(update=facts), measured, 100, {"ce", "near"}, passes=1.0)


def states_of(correct=5, total=10, loss_sum=3.0):
    states = {"accuracy": {"correct": correct, "total": total}, "loss": {"value_sum": loss_sum, "total": total}}
    return PlainStates(total=total, states=states)


def check_tested(**tested):
    return check_scored(tested, 0, {"personal": EXAMPLE}, 10, 100)


def test_an_honest_answer_passes():
    check()
    check(norms={}, measured=False)
    check_tested(personal=states_of())


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"terms": {"far": 1.0}}, "reports the term 'far', and the method's are ce, near"),
        ({"terms": {"\x1b[2J": 1.0}}, r"the term '\\x1b\[2J'"),
        ({"norms": {"ce": 1.0, "far": 1.0}}, "reports the norm 'far'"),
        ({"norms": {"near": 1.0}}, "gradient norms without 'ce'"),
        ({"norms": {"ce": -1.0}}, "or below 0"),
        ({"measured": False}, "does not measure them"),
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
        check(**facts)


def with_states(**states):
    return {"personal": PlainStates(total=10, states=states_of().states | states)}


@pytest.mark.parametrize(
    ("tested", "says"),
    [
        ({}, "results of nothing; asked for personal"),
        ({"personal": states_of(), "global": states_of()}, "asked for personal"),
        ({"personal": states_of(5, 20)}, "tested on 20 samples; the client has 10"),
        (with_states(accuracy={"correct": 11, "total": 10}), "11 of 10 samples cannot be correct"),
        (with_states(accuracy={"correct": "5", "total": 10}), "accuracy.correct: need int"),
        (with_states(more={}), "states of accuracy, loss, more"),
        (with_states(loss={"value_sum": 1.0, "total": [[1]]}), "loss.total: need int"),
    ],
)
def test_results_of_tests_that_cannot_be_are_refused(tested, says):
    with pytest.raises(MessageError, match=says):
        check_tested(**tested)


def test_losses_that_are_not_finite_travel():
    """An honest node whose training diverges must be able to say so."""
    terms = {"ce": math.nan, "near": math.inf}
    back = read(TRAINED.model_copy(update={"terms": terms}).to_message(), TrainReply)
    assert math.isnan(back.terms["ce"])
    assert back.terms["near"] == math.inf
    scored = EvalReply(run="ab", client=1, round=2, tested={"personal": states_of(0, 10, math.nan)}, samples=0)
    tested = check_tested(**read(scored.to_message(), EvalReply).tested)
    assert math.isnan(tested["personal"].value("loss"))


def test_shares_by_hand():
    """Of ten equal clients each may claim 2 / sqrt(10) = 63 % of all samples: 15 times the others' 900."""
    equal = dict.fromkeys(range(9), 100)
    assert not shares_too_large(equal | {9: 1500}, "auto")
    (why,) = shares_too_large(equal | {9: 1600}, "auto").values()
    assert why.startswith("it claims 1,600 samples, 64 % of all, where the median of the others is 100; at most 63.2 %")
    assert list(shares_too_large(equal | {9: 300}, 0.1)) == [9]
    assert not shares_too_large(equal | {9: 200}, 0.1)  # twice an equal share is always allowed
    assert list(shares_too_large(equal | {9: 10**12, 8: 10**9}, "auto")) == [9, 8]


def test_shares_of_few_clients():
    """2 / sqrt(4) would be everything; 95 % is what three others of 100 leave to one of 5,700."""
    assert not shares_too_large({0: 100, 1: 100, 2: 100, 3: 5700}, "auto")
    assert list(shares_too_large({0: 100, 1: 100, 2: 100, 3: 5800}, "auto")) == [3]
    assert not shares_too_large({0: 1, 1: 1, 2: 10**9}, "auto")


# -- sizes of uploads --------------------------------------------------------------------------------------------------
SENDS = {"model": Sent(), "step": Sent(form="change"), "prototypes": Sent(per_client=True), "wide": Sent(spread=3.0)}
ROLES = {"w": Role.BODY, "head.w": Role.HEAD}


def norms(upload, sent=None):
    return {item.label: item.norm for item in upload_norms(upload, sent or {}, SENDS, ROLES)}


def test_trees_are_measured_by_their_change_and_everything_else_as_it_is():
    upload = {"model": {"w": torch.tensor([4.0, 1.0]), "head.w": torch.tensor([[2.0]]), "count": torch.tensor(7)}}
    sent = {"model": {"w": torch.tensor([1.0, -3.0]), "head.w": torch.tensor([[5.0]]), "count": torch.tensor(1)}}
    assert norms(upload, sent) == {"the change of the body of model": 5.0, "the change of the head of model": 3.0}
    step = {"step": {"w": torch.tensor([3.0, 4.0])}}
    assert norms(step, step) == {"the body of step": 5.0}  # a change already
    table = ClassTable(torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([True, False, True]))
    upload = {"prototypes": table, "scale": torch.tensor([6.0, 8.0]), "loss": -0.5, "samples": 9, "name": "x"}
    assert norms(upload) == {"row 0 of prototypes": 5.0, "row 2 of prototypes": 2.0, "scale": 10.0, "loss": 0.5}


def test_rows_of_tables_are_measured_by_their_change_too():
    """Row 0 moves by (3, 4); row 1 does not move, which counts as half of its length; row 2 was not received."""
    table = ClassTable(torch.tensor([[3.0, 10.0], [0.0, 9.0], [0.0, 2.0]]), torch.tensor([True, True, True]))
    received = ClassTable(torch.tensor([[0.0, 6.0], [0.0, 9.0], [0.0, 0.0]]), torch.tensor([True, True, False]))
    lengths = norms({"prototypes": table}, {"prototypes": received})
    assert lengths["the change of row 0 of prototypes"] == pytest.approx(math.hypot(5.0, 3.0))
    assert lengths["the change of row 1 of prototypes"] == pytest.approx(4.5)
    assert "the change of row 2 of prototypes" not in lengths
    assert {"row 0 of prototypes", "row 1 of prototypes", "row 2 of prototypes"} < lengths.keys()
    wider = ClassTable(torch.zeros(2, 2), torch.tensor([True, True]))
    assert len(norms({"prototypes": table}, {"prototypes": wider})) == 3  # of another shape: no change


def refused(lengths, ratio=5.0, key="model", samples=None, references=None, rehearsed=None):
    """The clients, numbered in order, whose uploads of these lengths are refused, with the reasons."""
    lengths = lengths if isinstance(lengths, dict) else dict(enumerate(lengths))
    items = {client: [UploadNorm(key, key, norm)] for client, norm in lengths.items()}
    samples = samples or dict.fromkeys(items, 10)
    first = {} if rehearsed is None else {key: (rehearsed, 10)}
    judged = (references or References()).judge(items, samples, SENDS, ratio, first)
    return {client: reason for client, (excess, reason) in judged.items() if excess > 1}


def test_an_upload_is_refused_by_its_ratio_to_the_median():
    """Lengths 1, 2, 3, 4 and 16: the median is 3, five times that 15. Four times the samples allow twice as much."""
    lengths = [1.0, 2.0, 3.0, 4.0, 16.0]
    too_large = "model is 5.33 times as large as the median client's, and at most 5 times is allowed (flower.max_ratio)"
    assert refused(lengths) == {4: too_large}
    assert not refused(lengths, samples=dict.fromkeys(range(4), 10) | {4: 40})
    assert list(refused([1.0] * 4 + [math.inf])) == [4]
    # A method may say that honest uploads lie further apart.
    assert not refused([1.0, 1.0, 1.0, 1.0, 14.0], key="wide")
    assert refused([1.0, 1.0, 1.0, 1.0, 14.0], ratio=4.0, key="wide")


def test_the_reference_falls_by_a_fifth_for_each_upload_of_a_client():
    usual = References()
    assert not refused([10.0] * 4, references=usual)
    assert not refused([0.1] * 3 + [39.0], references=usual)  # 390 times the others, 3.9 times what was usual
    assert usual.items == {"model": 10.0}
    assert list(refused([0.1] * 3 + [33.0], references=usual)) == [3]  # 10 * 0.8 ** 2 * 5 = 32
    assert not refused({0: 0.1, 1: 0.1, 2: 0.1, 9: 49.0}, references=usual)  # its first upload


def test_rounds_of_three_are_judged_by_each_other_and_by_those_before():
    """The first six uploads may be twice as long; then one of three that is 5.5 times as long as usual is too long."""
    assert list(refused([1.0, 1.0, 1e9])) == [2]
    assert not refused([1.0, 1.0, 9.0])
    usual = References()
    assert not refused({0: 1.0, 1: 1.0, 2: 1.0}, references=usual)
    assert not refused({3: 1.0, 4: 1.0, 5: 1.0}, references=usual)
    assert list(refused({6: 5.5, 7: 5.5, 0: 1.0}, references=usual)) == [6, 7]  # colluders: a majority of the round
    assert list(refused({8: 5.5}, references=usual)) == [8]


def test_two_nodes_are_judged_by_the_rehearsal_and_then_by_the_last_round():
    """Of 1 and 20 the rehearsal of 2 stands between, and allows 10 times as much, later 5 times."""
    usual = References()
    for round_ in range(20):  # what is usual follows the honest client down to a twentieth
        honest = 0.86**round_
        assert list(refused([honest, 21 * honest], references=usual, rehearsed=2.0)) == [1]
    assert list(refused([1.0, 20.5])) == [1]  # without a rehearsal: twice the bound times the smaller one
    assert not refused([1.0, 9.0])


def test_a_client_that_is_alone_is_judged_by_its_own_past():
    usual = References()
    for round_ in range(60):
        assert not refused([3.0 * 1.1**round_], references=usual, rehearsed=1.0)
    assert refused([6.0 * 1.1**60 * 3], references=usual)


def test_clients_of_other_sizes_are_compared_as_if_they_had_the_median_one():
    """A norm grows with the root of the samples: 100 times as many allow 10 times as much."""
    sizes = {0: 10, 1: 10, 2: 1000}
    assert not refused([1.0, 1.0, 99.0], samples=sizes)  # 10 * 10 * 1, and _FIRST = 2
    assert list(refused([1.0, 1.0, 101.0], samples=sizes)) == [2]


def test_a_thousand_clients_are_remembered():
    usual = References()
    for client in range(0, 1200, 4):
        refused(dict.fromkeys(range(client, client + 4), 1.0), references=usual)
    assert len(usual.uploads) == len(usual.latest["model"]) == 1000
    assert min(usual.uploads) == 200


@pytest.mark.parametrize(
    ("method", "refused"), [("fedsc", {3}), ("fedsc+dp", set()), ("fedsc+servermomentum+dp", set())]
)
def test_private_uploads_are_not_compared(method, refused):
    """Before the noise, one client's size would decide whether another one counts."""
    sends = METHODS.get(method).configured("sound", {}).spec.sends
    sizes = {client: 1.0 if client < 3 else 1000.0 for client in range(4)}
    keys = ("model/body/change", "model/head/change", "prototypes/rows")
    norms = {client: [UploadNorm(key, key, size) for key in keys] for client, size in sizes.items()}
    judged = References().judge(norms, dict.fromkeys(sizes, 10), sends, 5.0)
    assert {client for client, (excess, _) in judged.items() if excess > 1} == refused


def test_a_client_that_claims_all_rows_does_not_move_the_median():
    """Rows are compared with the median over clients of each client's own median, not over rows."""
    honest = {k: [UploadNorm("prototypes/rows", f"row {k} of prototypes", 1.0)] for k in range(4)}
    hostile = [UploadNorm("prototypes/rows", f"row {k} of prototypes", 100.0) for k in range(10)]
    judged = References().judge(honest | {4: hostile}, dict.fromkeys(range(5), 10), SENDS, 5.0)
    assert [client for client, (excess, _) in judged.items() if excess > 1] == [4]


# -- new states of the server ------------------------------------------------------------------------------------------
def state(weight, row=0.0):
    table = ClassTable(torch.tensor([[row], [0.0]]), torch.tensor([True, False]))
    return {"model": {"w": torch.tensor([weight]), "count": torch.tensor(3)}, "prototypes": table, "scale": 1.0}


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (state(float("nan")), "the server's model would not be finite"),
        (state(1.0, float("inf")), "the server's prototypes would not be finite"),
        (state(1e38), "the server's model would reach 1e\\+38"),
        (state(1.0, 2e9), "the server's prototypes would reach 2e\\+09"),
        ({**state(1.0), "scale": float("nan")}, "the server's scale would not be finite"),
    ],
)
def test_a_state_that_clients_cannot_use_is_refused(after, says):
    references = References()
    assert re.search(says, references.fault(state(0.0), after))
    assert not references.steps


def test_a_state_that_moves_far_further_than_before_is_refused():
    """Steps of 1 and 2 are good; 101 is more than 50 times 2, and 99 is not."""
    guard = References()
    assert guard.fault(state(0.0), state(1.0)) is None
    assert guard.fault(state(1.0), state(3.0)) is None
    assert "the server's model would change 50.5 times as far" in str(guard.fault(state(3.0), state(104.0)))
    assert guard.fault(state(3.0), state(102.0)) is None


def test_the_largest_upload_is_measured_by_what_is_usual():
    guard = References(items={"model": 10.0, "rows": 0.1})
    assert guard.size([UploadNorm("model", "model", 20.0), UploadNorm("rows", "row 1", 0.5)]) == 5.0
    assert guard.size([]) == 0.0


def test_what_is_usual_outlives_the_server(tmp_path):
    latest = {"model/body/change": {-1: (0.4, 3), 7: (0.5, 9)}}
    references = References(items={"model/body/change": 0.5}, latest=latest, uploads={7: 2}, steps={"model": 2.0})
    references.write(tmp_path)
    assert References.read(tmp_path) == references


@pytest.mark.parametrize("value", ["{", "NaN", "Infinity", "-1.0", "null", '"x"'])
def test_references_that_bound_nothing_are_refused(tmp_path, value):
    (tmp_path / References.FILE).write_text(f'{{"items": {{"model": {value}}}, "steps": {{}}}}')
    with pytest.raises(RunFolderError, match="damaged; delete it, and the run continues"):
        References.read(tmp_path)
