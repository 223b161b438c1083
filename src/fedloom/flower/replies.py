"""Replies of nodes as the results of jobs: read, matched with the job, and checked before they count."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, TypeVar

from fedloom.core.errors import ClientError, ConfigError, printable
from fedloom.core.records import to_plain
from fedloom.engine import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob, kept_remotely
from fedloom.evaluation import Evaluator, MetricStates
from fedloom.flower.checks import check_scored
from fedloom.flower.node_registry import NodeRegistry
from fedloom.flower.upload_checks import UploadReader
from fedloom.flower.wire import (
    MAX_FACTS,
    AnyJob,
    ErrorReply,
    EvalReply,
    Message,
    MessageError,
    ResultReply,
    ServeReply,
    TrainReply,
    read_reply,
)
from fedloom.methods.contract.contexts import Diagnostic

R = TypeVar("R", bound=ResultReply)
_FLOAT = 26  # characters of a number in JSON, with a comma: "-1.7976931348623157e+308, "
_COUNT = 19  # of a count up to 2^53: "9007199254740992, "
_BRACKETS = 4  # around a list or a mapping, with a comma
_MOST = 1 << 28  # characters that the server reads of one test: a quarter of a GiB


def facts_limit(evaluator: Evaluator, tests: int | None = None) -> int:
    """Return how many characters the facts of a reply may have: as many as the states of its metrics need at most.

    evaluator: has the metrics. tests: number of tests in the reply; None for one per predictor. Raises `ConfigError`
    if the metrics need more than the server reads.
    """
    by_metric = {name: _characters(to_plain(state)) for name, state in evaluator.example_states().states.items()}
    limit = MAX_FACTS + (tests or len(evaluator.names)) * sum(by_metric.values())
    if limit > _MOST:
        name, need = max(by_metric.items(), key=lambda entry: entry[1])
        raise ConfigError(
            f"evaluation.metrics: a test may need {limit:,} characters over Flower, {need:,} of them for {name} with "
            f"{evaluator.scenario.num_classes:,} classes, and {_MOST:,} are allowed; leave this metric out"
        )
    return limit


def _characters(plain: Any) -> int:
    """Return how many characters a value in JSON has at most, if it has the shape of `plain`."""
    if isinstance(plain, dict):
        return _BRACKETS + sum(len(name) + _BRACKETS + _characters(value) for name, value in plain.items())
    if isinstance(plain, list):
        if plain and not isinstance(plain[0], list | dict):
            return _BRACKETS + _characters(plain[0]) * len(plain)
        return _BRACKETS + sum(map(_characters, plain))
    return _FLOAT if isinstance(plain, float) else _COUNT


class LostReplyError(MessageError):
    """A reply that will not arrive."""


class RemoteError(Exception):
    """An exception on a node; its traceback is in the notes."""


class ReplyReader:
    """Reads the replies to jobs of a `run`.

    uploads: reads and checks the bodies. worker: the server's own, whose evaluators say which results a test has.
    test_limit: characters that the facts of a test may have.
    """

    def __init__(self, run: str, uploads: UploadReader, worker: Worker, registry: NodeRegistry) -> None:
        self._run, self._uploads, self._worker, self._registry = run, uploads, worker, registry
        self._test_sizes: dict[tuple[int, str, str], int] = {}  # by client, split and whose samples
        self.test_limit = max([MAX_FACTS, *map(facts_limit, worker.evaluators.values())])

    def job_result(self, job: Job, message: Message | str, samples: int) -> JobResult:
        """Read and check the result of a `job` of a client that joined with `samples` training samples.

        Raises `MessageError`, and `ClientError` for an exception in the client's work.
        """
        message, reply = self._read(message, job, TrainReply)
        state = kept_remotely(job.ctx.round) if reply.has_state else {}
        notes = [Diagnostic(printable(note.code), printable(note.message), note.figure) for note in reply.notes]
        counts = reply.steps, reply.samples, reply.seconds
        result = JobResult(reply.client, {}, state, reply.terms, *counts, reply.norms, notes)
        self._uploads.check(result, job, samples)
        return replace(result, upload=self._uploads.read(message.body, job, samples))

    def eval_result(self, test: EvalJob, message: Message | str) -> EvalResult:
        """Read and check the results of a test. The number of a client's test samples must not change."""
        _, reply = self._read(message, test, EvalReply, self.test_limit)
        evaluator = self._worker.evaluator_for(test.protocol)
        client, key = test.ctx.client, (test.ctx.client, test.split, evaluator.data_kind)
        total = self._test_sizes.get(key) if evaluator.scenario.remote else evaluator.total(client, test.split)
        samples, example = self._registry.samples_of(client), evaluator.example_states()
        tested = check_scored(reply.tested, reply.samples, evaluator.names, example, total, samples)
        self._test_sizes[key] = next(iter(tested.values())).total
        return EvalResult(reply.client, tested, reply.samples)

    def newcomer_result(
        self, job: NewcomerJob, message: Message | str, names: Collection[str], evaluator: Evaluator, index: int
    ) -> dict[str, MetricStates]:
        """Read and check the tests of a client that never trained, with number `index` among those that never do.

        names: the ways in which it was served. evaluator: says which results a test has.
        """
        _, reply = self._read(message, job, ServeReply, facts_limit(evaluator, len(names)))
        total = None if evaluator.scenario.remote else evaluator.total(index, "test")
        if total is None and not any(states.total for states in reply.tested.values()):
            raise MessageError("it was tested on no samples, and a node that never trains needs test samples to join")
        samples = self._registry.samples_of(job.ctx.client)
        return check_scored(reply.tested, 0, names, evaluator.example_states(), total, samples)

    def _read(self, message: Message | str, job: AnyJob, kind: type[R], limit: int = MAX_FACTS) -> tuple[Message, R]:
        if isinstance(message, str):
            raise LostReplyError(message)
        reply = read_reply(message, kind, limit)
        client, round_ = job.ctx.client, job.ctx.round
        if isinstance(reply, ErrorReply):
            if not reply.raised:
                raise MessageError(reply.error)
            cause = RemoteError(printable(reply.error))
            cause.add_note(printable(reply.raised, keep_lines=True))
            raise ClientError(client, round_, "on its node", cause, self._worker.method.name())
        if (reply.run, reply.client, reply.round) != (self._run, client, round_):
            raise MessageError(
                f"it is of round {reply.round} of client {reply.client} in run {reply.run[:80]}; this is round "
                f"{round_} of client {client} in run {self._run}"
            )
        return message, reply
