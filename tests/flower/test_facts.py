"""Messages carry the fields of jobs and results, and have a bound on each of them."""

from dataclasses import fields
from typing import Any

import pytest
from pydantic import ValidationError

from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob, NewcomerResult
from fedloom.evaluation.metric import MetricStates
from fedloom.flower import wire
from fedloom.flower.wire import MessageError, Note, Request, TrainReply, read, reply_with
from fedloom.methods.contract.contexts import Diagnostic

ELSEWHERE = {"ctx", "indices", "state", "payload", "server", "upload"}  # on one side only, or the body of a message
ELSEWHERE_IN_JOBS = {"steps"}  # of virtual time alone, which a federation refuses
TRAIN = {"run": "ab", "fingerprint": "f", "version": "1", "round": 2, "do": "train"}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Job, wire.TrainRequest),
        (EvalJob, wire.EvalRequest),
        (NewcomerJob, wire.ServeRequest),
        (JobResult, wire.TrainReply),
        (EvalResult, wire.EvalReply),
        (NewcomerResult, wire.ServeReply),
        (Diagnostic, wire.Note),
        (MetricStates, wire.PlainStates),
    ],
)
def test_a_message_has_every_field_that_crosses_the_federation(kind, message):
    elsewhere = ELSEWHERE | (ELSEWHERE_IN_JOBS if kind is Job else set())
    assert {field.name for field in fields(kind)} - elsewhere <= message.model_fields.keys()


def result_message(**changes: Any):
    result = JobResult(1, {}, {"k": 3}, {"ce": 0.5}, 2, 3, 0.25, notes=[Diagnostic("engine.x", "x", 1.0)])
    return reply_with(result, Request(**TRAIN)).model_copy(update=changes).to_message()


def test_records_and_private_states_are_no_facts():
    reply = read(result_message(), TrainReply)
    assert reply.has_state
    assert reply.model_dump() == {
        "wire_version": 3, "run": "ab", "client": 1, "round": 2, "kind": "trained", "terms": {"ce": 0.5}, "steps": 2,
        "samples": 3, "seconds": 0.25, "norms": {}, "has_state": True,
        "notes": [{"code": "engine.x", "message": "x", "figure": 1.0}], "parts": None, "part": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": -1},
        {"steps": 2**63},
        {"seconds": -0.5},
        {"seconds": float("nan")},
        {"seconds": float("inf")},
        {"terms": {"x" * 201: 1.0}},
        {"terms": {str(n): 1.0 for n in range(65)}},
        {"notes": [Note(code="engine.x", message="x", figure=0.0)] * 17},
        {"client": -1},
        {"run": "x" * 201},
        {"kind": "scored"},
    ],
)
def test_facts_beyond_their_bounds_are_refused(changes):
    with pytest.raises(MessageError, match="no message of version 3"):
        read(result_message(**changes), TrainReply)


def test_the_bounds_of_nested_facts():
    with pytest.raises(ValidationError):
        Note(code="engine.x", message="x" * 2001, figure=0.0)
    with pytest.raises(ValidationError, match="samples"):
        reply_with(EvalResult(1, {}, 2**41), Request(**TRAIN))
    with pytest.raises(ValidationError, match="split"):
        wire.EvalRequest(**{**TRAIN, "do": "test"}, split="all", protocol=None)
