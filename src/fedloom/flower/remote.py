"""The engine whose clients are nodes: it hands out jobs as letters and takes in what they leave, as others do.

Private states stay with the nodes; in their place the server keeps the round that left them (`engine/jobs.py`, `away`).
An answer counts once it is read and checked. Every wait is bounded, and says for whom it waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedloom.config.sections import FlowerConfig
from fedloom.core.errors import ClientError, printable
from fedloom.core.records import Record
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, kept_remotely, kept_since
from fedloom.engine.serial import Jobs
from fedloom.flower.bindings import NodeBindings
from fedloom.flower.bounds import FEWEST, NormBounds, UploadNorm, upload_norms
from fedloom.flower.checks import check_scored, shares_too_large
from fedloom.flower.guard import References, StateGuard
from fedloom.flower.logs import LogRecord
from fedloom.flower.node_data import stand_in_views
from fedloom.flower.node_registry import FederationError, NodeRegistry, RunIdentity, listed
from fedloom.flower.pauses import Pauses
from fedloom.flower.payloads import Payloads
from fedloom.flower.status import StatusWriter
from fedloom.flower.transport import SMALL_REPLY_BYTES, Transport
from fedloom.flower.upload_checks import UploadError, UploadReader
from fedloom.flower.wire import ErrorReply, EvalReply, Message, MessageError, TrainReply, read_reply
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.method import Uploads

_EVERY = 10.0  # seconds between two words on whom a round waits for
_GRACE = 30.0  # seconds that an order outlives its round

A = TypeVar("A", TrainReply, EvalReply)


class LostReplyError(MessageError):
    """An answer that does not come."""


class RemoteError(Exception):
    """What happened on a node; its traceback is in the notes."""


class RemoteEngine:
    """Runs clients on the nodes of a link.

    worker: the server's own, which rehearses what clients send. board: keeps the status. note: is told who is missing,
    refused or late. roster: of clients that were waited for before; seats: for a new roster, which key and disk each
    client is bound to. out: the run's folder, where it keeps what is usual in this run. Raises `FederationError` if too
    few clients join.
    """

    name = "flower"
    reason = None
    may_drop_clients = True

    def __init__(
        self,
        link: Transport,
        run: RunIdentity,
        federation: Federation,
        worker: Worker,
        config: FlowerConfig,
        board: StatusWriter,
        note: Callable[[str], None],
        roster: NodeRegistry | None = None,
        out: Path | None = None,
        seats: NodeBindings | None = None,
    ) -> None:
        self._link, self._run, self._config, self._board, self._note = link, run, config, board, note
        self._pauses, self._is_last = Pauses(), False
        self._uploads = UploadReader(federation, worker, config.max_norm)
        self._worker, self._out, self._references = worker, out, References.read(out)
        self._guard = StateGuard(self._references)
        self._ratios = None if config.max_ratio is None else NormBounds(config.max_ratio, self._references.items)
        self._items: dict[int, list[UploadNorm]] = {}  # of the round's uploads
        self._totals: dict[tuple[int, str], int] = {}  # test samples of clients, by client and split
        self._failures, self._said_few = 0, False
        self._refusals: list[str] = []  # of the present round, in words
        scenario = federation.scenario
        sizes = None if scenario.remote else scenario.train.sizes.tolist()
        self._roster = roster or NodeRegistry(
            link, run, scenario.clients, scenario.class_names, board, note, sizes=sizes, seats=seats
        )
        self._payloads = Payloads()
        everyone = [client for client in range(scenario.clients) if len(scenario.train[client])]
        self._federation = federation
        if roster is None:
            self._roster.wait(everyone, config.min_clients, config.join_timeout, "join_timeout")
        self._learn_sizes()

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yields one `JobResult` for each client whose upload is there in time and can be used.

        All uploads are there before the first one is yielded, because each is compared with the others. Raises
        `ClientError` if more than `max_failures` clients fail, `FederationError` if fewer than `min_clients` remain.
        """
        requested = {job.ctx.client: job for job in jobs}
        if not requested:
            return
        self._failures, self._refusals = 0, []
        accepted = self._within_share(requested)
        results: dict[int, JobResult] = {}
        for client, answer in self._answers(accepted):
            with self._refusing("the upload", requested[client]):
                results[client] = self._result(requested[client], answer)
                self._board.counts(client, requested[client].ctx.round)
            del answer
        self._measure(requested, results)
        self._enough(requested, len(results))
        while results:
            yield results.pop(next(iter(results)))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yields one `EvalResult` for each client that answers in time. Raises as `run` does."""
        requested = {test.ctx.client: test for test in tests}
        scored: dict[int, EvalResult] = {}
        self._failures, self._refusals = 0, []
        for client, answer in self._answers(requested):
            with self._refusing("the test", requested[client]):
                scored[client] = self._score(requested[client], answer)
        if self._federation.scenario.remote:
            totals = {client: next(iter(result.tested.values())).total for client, result in scored.items()}
            for client, why in shares_too_large(totals, self._config.max_share).items():
                self._refuse(requested[client], "the test", MessageError(why))
                del scored[client]
        self._enough(requested, len(scored))
        yield from scored.values()

    def guard(self, aggregate: Callable[[Uploads], Record], before: Record, uploads: Uploads) -> tuple[Record, Uploads]:
        """Aggregate, and test the new state before it is kept: see `Federation.guard`, `fedloom.flower.guard`.

        Raises `FederationError` if fewer than `min_clients` uploads remain that give a state that can be kept.
        """
        accepted, least = dict(uploads), min(self._config.min_clients, len(uploads))
        while True:
            after = aggregate(accepted)
            fault = self._guard.fault(before, after)
            if fault is None:
                self._references.write(self._out)
                return after, accepted
            if len(accepted) <= least:
                raise FederationError(
                    f"with the uploads of clients {listed(sorted(accepted))} {fault}; the state before this round "
                    "stays: see which node sent what it should not, or lower the learning rate, and go on with the "
                    "same command"
                )
            client = max(accepted, key=lambda candidate: self._guard.size(self._items[candidate]))
            del accepted[client]
            what = f"the upload of client {client} is refused: with it {fault}, and it is the largest of the round"
            self._note(LogRecord(what, "refused", client=client))

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Diagnostic]:
        """In the last round: clients that never took part, and why."""
        absent = self._roster.never_joined() if self._is_last else {}
        return [
            Diagnostic(f"flower.absent/{client}", f"client {client} never took part: {reason}", float(client))
            for client, reason in absent.items()
        ]

    def close(self) -> None:
        pass

    # -- letters out and in --------------------------------------------------------------------------------------
    def _answers(self, each: Mapping[int, Job | EvalJob]) -> Iterator[tuple[int, Message | str]]:
        """Answers by client as they come, until all are there that can be, or the time is over.

        Clients that lately did not answer in time are not asked, unless too few would be left without them.
        """
        if not each:
            return
        seconds, least = self._config.round_timeout, min(self._config.min_clients, len(each))
        first = next(iter(each.values()))
        now = first.ctx.round
        what = f"{'uploads' if isinstance(first, Job) else 'tests'} of round {now}"
        about = functools.partial(LogRecord, round=now)
        self._is_last = now >= first.ctx.task.rounds
        self._link.limit = SMALL_REPLY_BYTES + max(
            self._uploads.limit(job) if isinstance(job, Job) else 0 for job in each.values()
        )
        unasked, out, again = dict(each), dict[str, int](), set[int]()
        paused = self._pauses.paused(each, now, spare=len(each) - least)
        for client in paused:
            del unasked[client]
        if paused:
            text = f"{what}: clients {listed(paused)} are not asked, for they did not answer in time before"
            self._note(about(text, "paused"))
        began, answered = time.monotonic(), 0
        told = began
        while True:
            self._roster.look()
            self._learn_sizes()
            if paused and answered + len(out) + len(self._there(unasked)) < least:
                unasked |= {client: each[client] for client in paused}  # without them the run would end
                paused = []
            for client in self._there(unasked):
                rest = max(seconds - (time.monotonic() - began), 0.0)
                out[self._send(client, unasked.pop(client), rest)] = client
            self._board.waits(what, [*unasked, *out.values()], seconds - (time.monotonic() - began))
            for name, answer in self._link.take(out):
                if name not in out:
                    continue  # one that comes twice counts once
                client = out.pop(name)
                if isinstance(answer, str) and client not in again:
                    again.add(client)
                    unasked[client] = each[client]
                    said = f"what client {client} was asked is lost, and it is asked once more: {printable(answer)}"
                    self._note(about(said, "lost", client=client))
                else:
                    if isinstance(answer, Message):
                        self._pauses.answered(client)
                    answered += 1
                    yield client, answer
                del answer  # large: let go before others are waited for
            clock = time.monotonic()
            asked = len(each) - len(paused) - len(unasked)
            complete = not out and not self._there(unasked) and (not unasked or asked >= least)
            if complete or clock - began >= seconds:
                break
            if clock - told >= _EVERY:
                told = clock
                waiting = sorted([*unasked, *out.values()])
                left = seconds - (clock - began)
                self._note(about(f"waiting for clients {listed(waiting)}, {left:.0f} s more", "waiting"))
            time.sleep(self._link.pause)
        self._payloads.forget()
        self._board.waited()
        late = sorted([*out.values(), *self._there(unasked)])
        if late:
            self._note(about(self._pauses.late_sentence(late, seconds, now), "late"))
        absent = self._roster.never_joined()
        for why, missing in (
            ("they have not joined", sorted(unasked.keys() & absent.keys())),
            ("their nodes are not there", sorted(unasked.keys() - absent.keys() - {*late})),
        ):
            if missing:
                self._note(about(f"goes on without clients {listed(missing)}: {why}", "lost"))

    def _there(self, clients: Iterable[int]) -> list[int]:
        """Those of some clients whose nodes are there."""
        return [client for client in clients if self._roster.node_of(client) is not None]

    def _learn_sizes(self) -> None:
        """Of clients with data of their own, only they know how many."""
        scenario = self._federation.scenario
        sizes = scenario.train.sizes
        known = np.array([self._roster.sizes().get(client, sizes[client]) for client in range(len(sizes))])
        if scenario.remote and (known != sizes).any():
            views = stand_in_views(known)
            self._federation.scenario = dataclasses.replace(scenario, train=views)

    def _send(self, client: int, asked: Job | EvalJob, seconds: float) -> str:
        """Send what a client is asked for, which is worth `seconds`; the name under which its answer will come."""
        facts = {"client": client, "round": asked.ctx.round, "kept": kept_since(asked.state)}
        if isinstance(asked, Job):
            order = self._run.order("train", measured=asked.measured, closing=asked.closing, **facts)
        else:
            order = self._run.order("test", split=asked.split, **facts)
        body = self._payloads.bytes_of(asked.payload if isinstance(asked, Job) else asked.server)
        node = self._roster.node_of(client)
        assert node is not None, "only clients that are there are asked"
        # worth a little longer than the round: an order that ends just before it would look lost, and be sent again
        return self._link.send(node, order.to_message(body), seconds + _GRACE)

    def _read(self, answer: Message | str, asked: Job | EvalJob, kind: type[A]) -> A:
        """An answer that belongs to what was asked. Raises `MessageError`, and `ClientError` for an exception there."""
        if isinstance(answer, str):
            raise LostReplyError(answer)
        told = read_reply(answer, kind)
        client, now = asked.ctx.client, asked.ctx.round
        if isinstance(told, ErrorReply):
            if not told.raised:
                raise MessageError(told.error)
            cause = RemoteError(printable(told.error))
            cause.add_note(printable(told.raised, keep_lines=True))
            raise ClientError(client, now, "on its node", cause)
        if (told.run, told.client, told.round) != (self._run.name, client, now):
            raise MessageError(
                f"it is of round {told.round} of client {told.client} in run {told.run[:80]}; this is round {now} of "
                f"client {client} in run {self._run.name}"
            )
        return told

    @contextlib.contextmanager
    def _refusing(self, what: str, requested: Job | EvalJob) -> Iterator[None]:
        """Refuse an answer that cannot be used, and count an exception in the client's work; both are named."""
        client, now = requested.ctx.client, requested.ctx.round
        try:
            yield
        except (MessageError, UploadError) as error:
            self._refuse(requested, what, error)
        except ClientError as error:
            self._note(LogRecord(f"round {now}: {error}", "failed", round=now, client=client))
            self._failures += 1
            if self._failures > self._max_failures:
                raise

    def _result(self, job: Job, answer: Message | str) -> JobResult:
        """The result of a client's round, checked."""
        trained = self._read(answer, job, TrainReply)
        assert isinstance(answer, Message), "a word is no answer"
        samples = self._roster.samples(job.ctx.client)
        self._uploads.check(trained, job, samples)
        payload = self._uploads.read(answer.body, job, samples)
        state = kept_remotely(job.ctx.round) if trained.kept else {}
        notes = [Diagnostic(printable(note.code), printable(note.message), note.figure) for note in trained.notes]
        counts = trained.terms, trained.steps, trained.samples, trained.seconds, trained.norms, notes
        return JobResult(job.ctx.client, payload, state, *counts)

    def _score(self, test: EvalJob, answer: Message | str) -> EvalResult:
        """The results of a client's test, checked; a client's number of test samples may not change."""
        scored = self._read(answer, test, EvalReply)
        evaluator = self._worker.evaluator
        assert evaluator is not None, "a worker whose clients are tested has an evaluator"
        client, key = test.ctx.client, (test.ctx.client, test.split)
        total = self._totals.get(key) if evaluator.scenario.remote else evaluator.total(client, test.split)
        tested = check_scored(scored, evaluator.names, evaluator.kinds, total, self._roster.samples(client))
        self._totals[key] = next(iter(tested.values())).total
        return EvalResult(client, tested, scored.samples)

    def _within_share(self, requested: Mapping[int, Job]) -> dict[int, Job]:
        """The jobs without those of clients that claim too large a share of the round's samples."""
        if not self._federation.scenario.remote:  # the server knows all counts
            return dict(requested)
        counts = {client: self._roster.samples(client) for client in requested if self._roster.has(client)}
        refused = shares_too_large(counts, self._config.max_share)
        for client, why in refused.items():
            self._refuse(requested[client], "the upload", MessageError(why))
        return {client: job for client, job in requested.items() if client not in refused}

    def _measure(self, requested: Mapping[int, Job], results: dict[int, JobResult]) -> None:
        """Measure the uploads of a round, and drop those that are far larger than the others."""
        self._items = {}
        for client, result in results.items():
            job = requested[client]
            sends, roles = self._uploads.method_of(job).spec.sends, job.ctx.task.roles
            self._items[client] = list(upload_norms(result.payload, job.payload, sends, roles))
        if self._ratios is None or not results:
            return
        (first, *_) = requested.values()
        samples = {client: self._roster.samples(client) for client in results}
        sends = self._uploads.method_of(first).spec.sends
        for client, excess in self._ratios.judge(self._items, samples, sends).items():
            self._refuse(requested[client], "the upload", UploadError(str(excess)))
            del results[client]
        if len(results) < FEWEST and not self._said_few:
            self._said_few = True
            what = (
                f"round {first.ctx.round} has {len(results)} uploads: with fewer than {FEWEST}, no upload is bounded "
                "by the others (flower.max_ratio, flower.max_share)"
            )
            self._note(LogRecord(what, "unbounded", round=first.ctx.round))

    def _refuse(self, requested: Job | EvalJob, what: str, error: Exception) -> None:
        """Name an answer that does not count."""
        client, now = requested.ctx.client, requested.ctx.round
        event = "lost" if isinstance(error, LostReplyError) else "refused"
        if event == "refused":
            self._refusals.append(f"client {client}: {error}")
        text = f"round {now}: {what} of client {client} is {event}: {error}"
        self._note(LogRecord(text, event, round=now, client=client))

    @property
    def _max_failures(self) -> int:
        """Clients of a round that may raise an exception."""
        if self._config.max_failures != "auto":
            return self._config.max_failures
        clients = self._federation.scenario.clients
        return min(max(1, clients // 5), max(0, clients - self._config.min_clients))

    def _enough(self, each: Mapping[int, Job | EvalJob], done: int) -> None:
        least = min(self._config.min_clients, len(each))
        if done < least:
            (first, *_) = each.values()
            refused = f"; refused: {'; '.join(self._refusals)[:600]}" if self._refusals else ""
            raise FederationError(
                f"round {first.ctx.round}: {done} of {len(each)} clients left something that counts within "
                f"flower.round_timeout = {self._config.round_timeout:g} s, and flower.min_clients = {least}{refused}; "
                "start their nodes and go on with the same command"
            )
