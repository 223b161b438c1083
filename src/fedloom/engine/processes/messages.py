"""What crosses between processes: tensors as places in shared memory, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from fedloom.engine.jobs import Done, Job, Test, TestDone
from fedloom.engine.processes.shared_memory import Packed, Packer, Place, Sent, unpack
from fedloom.evaluation.metrics import Tested
from fedloom.methods.contract.contexts import ClientContext, Finding, Task

Asked: TypeAlias = Job | Test


class Facts(NamedTuple):
    """A `ClientContext` whose task is known over there."""

    round: int
    client: int
    samples: int
    group: int
    class_counts: Place | Sent


class Order(NamedTuple):
    """A job, or the test of a split: then `payload` is the server's state."""

    facts: Facts
    indices: Place | Sent
    payload: Packed
    state: Packed
    measured: bool
    closing: bool
    split: str | None


class Left(NamedTuple):
    """A `Done`."""

    client: int
    payload: Packed
    state: Packed
    terms: Mapping[str, float]
    steps: int
    samples: int
    seconds: float
    norms: Mapping[str, float]
    notes: Sequence[Finding]


class Found(NamedTuple):
    """A `TestDone`."""

    client: int
    tested: dict[str, Tested]
    samples: int


def packed(asked: Asked, pack: Packer) -> Order:
    """What a client is asked to do, put into shared memory; what clients share, once a round."""
    ctx = asked.ctx
    facts = Facts(ctx.round, ctx.client, ctx.samples, ctx.task.group, pack.place(ctx.class_counts))
    state, indices = pack.pack(asked.state, shared=False), pack.place(asked.indices)
    if isinstance(asked, Test):
        return Order(facts, indices, pack.pack(asked.server), state, False, False, asked.split)
    return Order(facts, indices, pack.pack(asked.payload), state, asked.measured, asked.closing, None)


def asked_of(order: Order, tasks: Sequence[Task], view: Callable[[Place | Sent], Tensor]) -> Asked:
    """What `packed` put there, as views."""
    facts = order.facts
    counts = view(facts.class_counts)
    ctx = ClientContext(tasks[facts.group], facts.round, facts.client, facts.samples, counts)
    payload, state, indices = unpack(order.payload, view), unpack(order.state, view), view(order.indices)
    if order.split is not None:
        return Test(ctx, payload, state, indices, order.split)
    return Job(ctx, payload, state, indices, order.measured, order.closing)


def answer_of(done: Done | TestDone, pack: Packer) -> Left | Found:
    """What a client left, put into shared memory."""
    if isinstance(done, TestDone):
        return Found(done.client, done.tested, done.samples)
    counts = done.terms, done.steps, done.samples, done.seconds, done.norms, done.notes
    return Left(done.client, pack.pack(done.payload), pack.pack(done.state), *counts)


def unpacked(answer: Left | Found, view: Callable[[Place | Sent], Tensor]) -> Any:
    """What `answer_of` put there, as views."""
    if isinstance(answer, Found):
        return TestDone(*answer)
    counts = answer.terms, answer.steps, answer.samples, answer.seconds, answer.norms, answer.notes
    return Done(answer.client, unpack(answer.payload, view), unpack(answer.state, view), *counts)
