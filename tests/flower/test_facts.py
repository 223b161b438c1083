"""Messages have the fields of jobs and results, also those that are added later, and a bound on each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import Field, ValidationError

from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.flower import node, remote, replies
from fedloom.flower.server import serve
from fedloom.flower.transport import InProcessTransport
from fedloom.flower.wire import (
    EvalReply,
    MessageError,
    TrainReply,
    facts_model,
    read,
    reply_type,
    reply_with,
    request_for,
    request_type,
    restore_fields,
)
from fedloom.methods.contract.contexts import Diagnostic
from flower_world import DEALT, config_of, nodes_of  # noqa: F401 (a fixture)


@dataclass(frozen=True, slots=True)
class LongerJob(Job):
    """A job with a number more."""

    budget: int = 0


@dataclass(frozen=True, slots=True)
class LongerResult(JobResult):
    """A job's result with fields of every kind more."""

    budget: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)
    events: Sequence[Diagnostic] = ()
    device: Literal["cpu", "gpu"] = "cpu"
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class LongerEvaluation(EvalResult):
    """The result of an evaluation with a number more."""

    steps: int = 0


def values_of(content: Any) -> dict[str, Any]:
    return {entry.name: getattr(content, entry.name) for entry in fields(content)}


def longer(result: JobResult, budget: int) -> LongerResult:
    events = [Diagnostic("engine.x", "a\x1b[2J", 1.0)]
    return LongerResult(**values_of(result), budget=budget, shares={"a": 0.5}, events=events, device="gpu", comment="b")


def test_fields_that_are_added_cross_a_federation(nodes_of, monkeypatch):  # noqa: F811
    """The job's from the server to the client's worker, the results' from there to the server."""
    run, test, send = Worker.run, Worker.test, remote.RemoteEngine.run
    results: list[LongerResult | LongerEvaluation] = []

    def received(self, jobs):
        for result in send(self, [LongerJob(**values_of(job), budget=7) for job in jobs]):
            results.append(result)
            yield result

    def evaluated(self, test_, message, read_result=replies.ReplyReader.eval_result):
        results.append(read_result(self, test_, message))
        return results[-1]

    monkeypatch.setattr(node, "Job", LongerJob)
    monkeypatch.setattr(replies, "JobResult", LongerResult)
    monkeypatch.setattr(replies, "EvalResult", LongerEvaluation)
    monkeypatch.setattr(Worker, "run", lambda self, job: longer(run(self, job), getattr(job, "budget", 0)))
    monkeypatch.setattr(Worker, "test", lambda self, job: LongerEvaluation(**values_of(test(self, job)), steps=9))
    monkeypatch.setattr(remote.RemoteEngine, "run", received)
    monkeypatch.setattr(replies.ReplyReader, "eval_result", evaluated)
    config = config_of("ditto", rounds=1, evaluation={"every": 1, "protocol": "personal/local"})
    serve(config, InProcessTransport(nodes_of(config)))
    trained = [result for result in results if isinstance(result, LongerResult)]
    assert len(trained) == DEALT["clients"]
    assert {(result.budget, result.device, result.comment, *result.shares.items()) for result in trained} == {
        (7, "gpu", "b", ("a", 0.5))
    }
    assert trained[0].events == [Diagnostic("engine.x", "a\\x1b[2J", 1.0)]  # texts of nodes are printable
    evaluated_steps = [result.steps for result in results if isinstance(result, LongerEvaluation)]
    assert evaluated_steps
    assert set(evaluated_steps) == {9}


def result_message(**changes: Any):
    values = {
        "client": 1,
        "upload": {},
        "state": {"k": 3},
        "terms": {"ce": 0.5},
        "steps": 2,
        "samples": 3,
        "seconds": 0.25,
    }
    return reply_with(JobResult(**values), run="ab", round=2).model_copy(update=changes).to_message()


def test_records_and_private_states_are_no_facts():
    reply = read(result_message(), TrainReply)
    assert reply.has_state
    assert not reply.model_fields_set & {"state", "upload"}
    assert restore_fields(reply, JobResult) == {
        "client": 1, "terms": {"ce": 0.5}, "steps": 2, "samples": 3, "seconds": 0.25, "norms": {}, "notes": []
    }  # fmt: skip
    assert request_type(EvalJob).model_fields.keys() - request_type(Job).model_fields.keys() == {"split", "protocol"}


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
        {"notes": [facts_model(Diagnostic)(code="engine.x", message="x", figure=0.0)] * 17},
        {"client": -1},
        {"run": "x" * 201},
    ],
)
def test_facts_beyond_their_bounds_are_refused(changes):
    with pytest.raises(MessageError, match="no message of version 2"):
        read(result_message(**changes), TrainReply)


def test_the_bounds_of_nested_facts():
    with pytest.raises(ValidationError):
        facts_model(Diagnostic)(code="engine.x", message="x" * 2001, figure=0.0)
    with pytest.raises(MessageError, match="samples"):
        read(
            reply_with(EvalResult(1, {}), run="a", round=1).model_copy(update={"samples": 2**41}).to_message(),
            EvalReply,
        )


def test_a_split_that_no_run_has_is_refused():
    with pytest.raises(ValidationError, match="split"):
        request_for(EvalJob(None, {}, {}, torch.arange(1), "all"), run="a", fingerprint="f", version="1", do="test")


@pytest.mark.parametrize(
    ("type_", "says"),
    [
        (torch.Tensor, "Tensor has no bound"),
        (Record, r"dict\[str, torch.Tensor\] .* has no bound"),
        (Any, "Any has no bound"),
        (bytes, "bytes has no bound"),
        (Mapping[str, Any], "Any has no bound"),
        (Sequence[object], "object has no bound"),
        (tuple[int, ...], "tuple has no bound"),
        (Annotated[bytes, Field(max_length=3)], "bytes has no bound"),
        (int | bytes, r"int \| bytes has no bound"),
    ],
)
def test_a_field_without_a_bound_is_refused(type_, says):
    unbounded = dataclass(frozen=True)(
        type("Unbounded", (JobResult,), {"__annotations__": {"extra": type_}, "extra": None})
    )
    with pytest.raises(TypeError, match=rf"^Unbounded\.extra: {says}"):
        reply_type(unbounded)


def test_a_bound_from_below_alone_does_not_replace_the_default():
    @dataclass(frozen=True)
    class Counts:
        count: Annotated[int, Field(ge=-5)]
        word: Annotated[str, Field(min_length=1)]
        words: Annotated[Sequence[str], Field(description="words")]

    model = facts_model(type("Counts", (), dict(vars(Counts))))
    model(count=1, word="a", words=["b"])
    for changes in ({"count": 2**63}, {"word": "x" * 201}, {"words": ["a"] * 17}):
        with pytest.raises(ValidationError):
            model(**{"count": 1, "word": "a", "words": ["b"], **changes})


def test_a_field_with_the_name_of_another_fact_is_refused():
    clash = dataclass(frozen=True)(type("Clash", (JobResult,), {"__annotations__": {"round": int}, "round": 0}))
    with pytest.raises(TypeError, match=r"^Clash\.round: every message has a fact of this name"):
        reply_type(clash)
