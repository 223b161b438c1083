"""The exchange of a round: requests to the clients' nodes, and their replies, checked as the results of jobs."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from fedloom.core.errors import ClientError, ConfigError, printable
from fedloom.core.records import Record, to_bytes, to_plain
from fedloom.engine import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob, kept_remotely, kept_since
from fedloom.evaluation import Evaluator, MetricStates
from fedloom.evaluation.intervals import linear_values, with_sums
from fedloom.flower import wire
from fedloom.flower.checks import check_scored
from fedloom.flower.links import Stalled, WorkLost
from fedloom.flower.node_registry import REPORT_SECONDS, NodeRegistry
from fedloom.flower.status import MAX_NAMED, LogRecord, client_list
from fedloom.flower.upload_checks import UploadReader
from fedloom.flower.wire import MAX_FACTS, AnyJob, Message, MessageError
from fedloom.methods.contract.contexts import Diagnostic

_LONGEST_PAUSE = 64  # rounds
_MOST_RESENDS = 8  # of a request whose node went away, or stands still and is needed, in one round
_FLOAT = 26  # characters of a number in JSON, with a comma: "-1.7976931348623157e+308, "
_COUNT = 19  # of a count up to 2^53: "9007199254740992, "
_BRACKETS = 4  # around a list or a mapping, with a comma
_MOST = 1 << 28  # characters that the server reads of one test: a quarter of a GiB
R = TypeVar("R", bound=wire.ResultReply)


class Pauses:
    """The pauses of clients that did not answer: 1, 2, 4 ... 64 rounds; an answer ends the pause."""

    def __init__(self) -> None:
        self._pauses: dict[int, tuple[int, int]] = {}  # rounds, and the round in which the client is asked again

    def pause(self, client: int, round_: int) -> int:
        """Pause a client that has not answered in `round_`; return the round in which it is asked again."""
        rounds, until = self._pauses.get(client, (0, 0))
        if until <= round_:
            rounds = min(max(1, 2 * rounds), _LONGEST_PAUSE)
            self._pauses[client] = rounds, round_ + rounds
        return self._pauses[client][1]

    def late_sentence(self, clients: Sequence[int], named: str, seconds: float, round_: int) -> str:
        """Pause `clients` that have not answered within `seconds` of a round; return a sentence on them as `named`."""
        next_rounds = {client: self.pause(client, round_) for client in clients}
        paused = [f"client {client} in round {until}" for client, until in next_rounds.items() if until > round_ + 1]
        text = f"continues without clients {named}: no answer within {seconds:g} s"
        return f"{text}; next asked: {', '.join(paused[:MAX_NAMED])}" if paused else text

    def end_pause(self, client: int) -> None:
        """End the pause of a client that has answered."""
        self._pauses.pop(client, None)

    def skipped_clients(self, clients: Iterable[int], round_: int, spare: int) -> list[int]:
        """Return, sorted, the `clients` to skip in a round: at most `spare`, those with the longest pauses."""
        # Only as many as a round can spare; the longest pauses mark the least reliable nodes.
        waiting = [client for client in clients if self._pauses.get(client, (0, 0))[1] > round_]
        return sorted(sorted(waiting, key=lambda client: (-self._pauses[client][0], client))[: max(spare, 0)])


class Exchange:
    """Sends the jobs of a round and collects the replies. on_poll: called after every look at the nodes."""

    def __init__(self, registry: NodeRegistry, on_poll: Callable[[], None]) -> None:
        self._links, self._registry, self._on_poll, self._pauses = registry.links, registry, on_poll, Pauses()
        self._config, self._status = registry.links.config, registry.links.status
        # The last payload and its bytes: one that several clients of a round get is serialised once.
        self._last_body = Record(), to_bytes({})
        self._late: dict[str, tuple[int, int, float]] = {}  # of requests that came to nothing: client, round, beginning

    def replies(self, jobs: Mapping[int, AnyJob], upload_limit: int) -> Iterator[tuple[int, Message | str]]:
        """Yield the replies to `jobs`, by client, as they arrive; text says why one is lost. upload_limit: in bytes."""
        if not jobs:
            return
        seconds, job = self._config.round_timeout or math.inf, next(iter(jobs.values()))
        # The run is already trained when newcomers are tested, so it does not wait for those that are offline.
        minimum = 0 if isinstance(job, NewcomerJob) else min(self._config.min_clients, len(jobs))
        round_ = job.ctx.round
        purpose = f"{'uploads' if isinstance(job, Job) else 'tests'} of round {round_}"
        if isinstance(job, NewcomerJob):
            purpose = f"tests on clients that never train, after round {round_}"
        # Set before anything is sent, because a node may answer at once.
        self._links.allow(upload_limit)
        unsent, pending, resends = dict(jobs), dict[str, int](), Counter[int]()  # pending: clients by request
        paused = self._pauses.skipped_clients(jobs, round_, spare=len(jobs) - minimum)
        for client in paused:
            del unsent[client]
        if paused:
            text = f"{purpose}: clients {client_list(paused)} are not asked, because they did not answer in time before"
            self._report(text, "paused", round_)
        began, reply_count, lost_count = time.monotonic(), 0, 0
        last_report = last_reachable = began
        while True:
            self._registry.poll()
            self._on_poll()
            if paused and reply_count + len(pending) + len(self._online(unsent)) < minimum:
                unsent |= {client: jobs[client] for client in paused}  # without them the run would end
                paused = []
            for client in self._online(unsent):
                pending[self._send(client, unsent.pop(client), max(seconds - (time.monotonic() - began), 0.0))] = client
            self._status.set_wait(purpose, [*unsent, *pending.values()], seconds - (time.monotonic() - began))
            for name, reply in self._links.receive([*pending, *self._late]):
                if name in self._late:
                    self._report_late(name, reply)
                    continue
                client = pending.pop(name)
                is_spare = isinstance(reply, Stalled) and len(jobs) - lost_count > minimum
                most = 1 if isinstance(reply, WorkLost) else 0 if is_spare else _MOST_RESENDS
                if isinstance(reply, str) and resends[client] < most:
                    resends[client] += 1
                    unsent[client] = jobs[client]
                    text = f"the request to client {client} is lost, and is sent once more: {printable(reply)}"
                    self._report(text, "lost", round_, client)
                else:
                    if isinstance(reply, Message):
                        self._pauses.end_pause(client)
                    elif isinstance(reply, Stalled):
                        self._pauses.pause(client, round_)
                    lost_count += isinstance(reply, str)
                    reply_count += 1
                    yield client, reply
                del reply  # large: release it before the next wait
            now = time.monotonic()
            sent_count = len(jobs) - len(paused) - len(unsent)
            last_reachable = now if pending or self._online(unsent) else last_reachable
            is_complete = last_reachable < now and (not unsent or sent_count >= minimum)
            remaining = seconds - (now - began)
            if seconds == math.inf and last_reachable < now:  # without a deadline, nodes have this time to come back
                remaining = self._config.join_timeout - (now - last_reachable)
            if is_complete or remaining <= 0:
                break
            if now - last_report >= REPORT_SECONDS:
                last_report = now
                waiting = self._status.named(sorted([*unsent, *pending.values()]))
                at_most = "" if remaining == math.inf else f", {remaining:.0f} s more"
                self._report(f"waiting for clients {waiting}{at_most}", "waiting", round_)
            time.sleep(self._links.transport.poll_seconds)
        self._last_body = {}, to_bytes({})  # large
        self._status.clear_wait()
        for name, client in pending.items():
            self._links.close(name)
            self._late[name] = client, round_, began
        self._report_missing({*unsent}, [*pending.values()], seconds, round_)

    def _report_late(self, name: str, reply: Message | str) -> None:
        client, round_, began = self._late.pop(name)
        if isinstance(reply, Message):
            seconds = f"{time.monotonic() - began:.0f} s of {self._config.round_timeout or math.inf:g} s"
            self._report(f"client {client} answered too late ({seconds})", "late", round_, client)

    def _report_missing(self, unsent: set[int], pending: list[int], seconds: float, round_: int) -> None:
        late = sorted([*pending, *self._online(unsent)])
        if late:
            self._report(self._pauses.late_sentence(late, self._status.named(late), seconds, round_), "late", round_)
        never_joined = self._registry.absence_reasons().keys()
        for reason, clients in (
            ("they have not joined", sorted(unsent & never_joined)),
            ("their nodes are offline", sorted(unsent - never_joined - {*late})),
        ):
            if clients:
                self._report(f"continues without clients {client_list(clients)}: {reason}", "lost", round_)

    def _report(self, text: str, event: str, round_: int, client: int | None = None) -> None:
        self._registry.note(LogRecord(text, event, round=round_, client=client))

    def _online(self, clients: Iterable[int]) -> list[int]:
        return [client for client in clients if self._registry.node_of(client) is not None]

    def _send(self, client: int, job: AnyJob, seconds: float) -> str:
        state_round = None if isinstance(job, NewcomerJob) else kept_since(job.state)
        request = wire.request_for(job, self._registry.identity, state_round)
        payload, (last, body) = job.payload if isinstance(job, Job) else job.server, self._last_body
        if payload.keys() != last.keys() or any(payload[name] is not last[name] for name in last):
            body = to_bytes(payload)
            self._last_body = payload, body
        node = self._registry.node_of(client)
        assert node is not None, "jobs are sent to clients that are online"
        return self._links.send(node, request, body, seconds)


def facts_limit(evaluator: Evaluator, tests: int | None = None) -> int:
    """Return how many characters the facts of a reply with some `tests` (None: one per predictor) may have. Raises
    `ConfigError` if that is more than the server reads."""
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
    """Reads the replies to jobs. test_limit: characters that the facts of a test may have."""

    def __init__(self, uploads: UploadReader, worker: Worker, registry: NodeRegistry) -> None:
        self._run, self._uploads, self._worker, self._registry = registry.identity.run, uploads, worker, registry
        self._test_sizes: dict[tuple[int, str, str], int] = {}  # by client, split and whose samples
        self.test_limit = max([MAX_FACTS, *map(facts_limit, worker.evaluators.values())])

    def job_result(self, job: Job, message: Message | str, samples: int) -> JobResult:
        """Read and check the result of a `job` in a `message`; an exception in the client's work is a `ClientError`."""
        message, reply = self._read(message, job, wire.TrainReply)
        state = kept_remotely(job.ctx.round) if reply.has_state else {}
        notes = [Diagnostic(printable(note.code), printable(note.message), note.figure) for note in reply.notes]
        counts = reply.steps, reply.samples, reply.seconds
        result = JobResult(reply.client, {}, state, reply.terms, *counts, reply.norms, notes)
        self._uploads.check(result, job, samples)
        return replace(result, upload=self._uploads.read(message.body, job, samples))

    def eval_result(self, test: EvalJob, message: Message | str) -> EvalResult:
        """Read and check the results of a test. The number of a client's test samples must not change."""
        _, reply = self._read(message, test, wire.EvalReply, self.test_limit)
        evaluator = self._worker.evaluator_for(test.protocol)
        client, key = test.ctx.client, (test.ctx.client, test.split, evaluator.data_kind)
        total = self._test_sizes.get(key) if evaluator.scenario.remote else evaluator.total(client, test.split)
        samples = self._registry.joined[client].samples
        examples = {name: evaluator.example_states(test.bins.get(name)) for name in evaluator.names}
        if test.pooled is not None:
            main = evaluator.names[0]
            width = 1 + 2 * len(linear_values(examples[main], evaluator, test.decision))
            examples[main] = with_sums(examples[main], torch.zeros(width, dtype=torch.float64))
        tested = check_scored(reply.tested, reply.samples, examples, total, samples)
        self._test_sizes[key] = next(iter(tested.values())).total
        return EvalResult(reply.client, tested, reply.samples)

    def newcomer_result(
        self, job: NewcomerJob, message: Message | str, names: Collection[str], evaluator: Evaluator, index: int
    ) -> dict[str, MetricStates]:
        """Read, from a `message`, the tests of a `job`: `names` of a client with the number `index` among newcomers."""
        _, reply = self._read(message, job, wire.ServeReply, facts_limit(evaluator, len(names)))
        total = None if evaluator.scenario.remote else evaluator.total(index, "test")
        if total is None and not any(states.total for states in reply.tested.values()):
            raise MessageError("it was tested on no samples, and a node that never trains needs test samples to join")
        samples = self._registry.joined[job.ctx.client].samples
        return check_scored(reply.tested, 0, dict.fromkeys(names, evaluator.example_states()), total, samples)

    def _read(self, message: Message | str, job: AnyJob, kind: type[R], limit: int = MAX_FACTS) -> tuple[Message, R]:
        if isinstance(message, str):
            raise LostReplyError(message)
        reply = wire.read_reply(message, kind, limit)
        client, round_ = job.ctx.client, job.ctx.round
        if isinstance(reply, wire.ErrorReply):
            if not reply.raised:
                raise MessageError(reply.error)
            cause = RemoteError(printable(reply.error))
            cause.add_note(printable(reply.raised, keep_lines=True))
            raise ClientError(client, round_, "on its node", cause, self._worker.method.name())
        if (reply.run, reply.client, reply.round) != (self._run, client, round_):
            sent = f"round {reply.round} of client {reply.client} in run {reply.run[:80]}"
            raise MessageError(f"it is of {sent}; this is round {round_} of client {client} in run {self._run}")
        return message, reply
