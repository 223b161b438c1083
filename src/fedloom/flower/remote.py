"""The engine whose clients are nodes: it sends jobs as requests, and checks the replies before they count.

Private states stay on the nodes. The server keeps only the round of the state (`engine/jobs.py`, `kept_remotely`).
Every wait is bounded, and reports the clients that it waits for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob
from fedloom.engine.serial import Engine, Jobs
from fedloom.evaluation import MetricStates
from fedloom.flower.absences import client_list
from fedloom.flower.bounds import FEWEST, NormBounds, UploadNorm, upload_norms
from fedloom.flower.checks import References, StateGuard, shares_too_large
from fedloom.flower.exchange import Exchange
from fedloom.flower.logs import LogRecord
from fedloom.flower.node_data import stand_in_views
from fedloom.flower.node_registry import FederationError, NodeRegistry, RunIdentity
from fedloom.flower.replies import LostReplyError, ReplyReader, facts_limit
from fedloom.flower.status import StatusWriter
from fedloom.flower.transport import BYTES_PER_CHARACTER, Transport
from fedloom.flower.upload_checks import UploadError, UploadReader
from fedloom.flower.wire import MAX_FACTS, AnyJob, MessageError
from fedloom.methods.contract.contexts import ClientContext, Diagnostic
from fedloom.methods.contract.method import Uploads
from fedloom.runs.config.sections import FlowerConfig
from fedloom.runs.newcomers import Newcomer, NewcomerTests


class RemoteEngine(Engine):
    """Runs clients on the nodes of a transport.

    worker: the server's own, which rehearses uploads. note: called with reports on missing, refused and late clients.
    out: the run's folder, for the references of upload bounds.
    """

    name = "flower"

    def __init__(
        self,
        transport: Transport,
        run: RunIdentity,
        federation: Federation,
        worker: Worker,
        config: FlowerConfig,
        status: StatusWriter,
        note: Callable[[str], None],
        registry: NodeRegistry,
        out: Path | None,
    ) -> None:
        self._run, self._config, self._status, self._note = run, config, status, note
        self._federation, self._worker, self._out = federation, worker, out
        self._uploads = UploadReader(federation, worker, config.max_norm, note)
        self._references = References.read(out)
        self._guard = StateGuard(self._references)
        self._bounds = None if config.max_ratio is None else NormBounds(config.max_ratio, self._references.items)
        self._norms: dict[int, list[UploadNorm]] = {}  # of the round's uploads, by client
        self._failures, self._refusals = 0, list[str]()  # of this round
        self._is_last, self._reported_unbounded = False, False
        self._registry = registry
        self._replies = ReplyReader(run.name, self._uploads, worker, registry)
        self._exchange = Exchange(transport, run, registry, config, status, note, self.update_sizes)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yield one result for each client whose upload arrives in time and is accepted.

        All uploads arrive before the first result is yielded, because each is compared with the others. Raises
        `ClientError` if more than `max_failures` clients fail, `FederationError` if fewer than `min_clients` remain.
        """
        requested = {job.ctx.client: job for job in jobs}
        if not requested:
            return
        self._begin_round(requested)
        accepted = self._within_share(requested)
        upload_limit = max((self._uploads.limit(job) for job in accepted.values()), default=0)
        samples = {client: size for client, size in self._registry.sizes().items() if client in accepted}
        results: dict[int, JobResult] = {}
        for client, reply in self._exchange.replies(accepted, upload_limit):
            with self._refuse_faulty("the upload", requested[client]):
                claimed = samples.setdefault(client, self._registry.samples_of(client))  # joined in this round
                results[client] = self._replies.job_result(requested[client], reply, claimed)
                self._status.record_round(client, requested[client].ctx.round)
            del reply
        if self._federation.scenario.remote:  # again: some joined after the jobs were sent
            for client, reason in shares_too_large(samples, self._config.max_share).items():
                if client in results:
                    self._refuse(requested[client], "the upload", MessageError(reason))
                    del results[client]
        self._bound_uploads(requested, results, samples)
        self._require_enough(requested, len(results))
        while results:
            yield results.pop(next(iter(results)))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yield one result for each client that answers in time. Raises as `run` does."""
        requested = {test.ctx.client: test for test in tests}
        if not any(self._worker.evaluator_for(t.protocol).tests_on_clients(t.split) for t in requested.values()):
            yield from map(self._worker.test, requested.values())
            return
        results: dict[int, EvalResult] = {}
        self._begin_round(requested)
        for client, reply in self._exchange.replies(
            requested, BYTES_PER_CHARACTER * (self._replies.test_limit - MAX_FACTS)
        ):
            with self._refuse_faulty("the test", requested[client]):
                results[client] = self._replies.eval_result(requested[client], reply)
        if self._federation.scenario.remote:
            accepted = {client: result.tested for client, result in results.items()}
            self._refuse_large_tests(requested, accepted)
            results = {client: results[client] for client in accepted}
        self._require_enough(requested, len(results))
        yield from results.values()

    def test_newcomers(self, tests: NewcomerTests) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """Yield the newcomers whose nodes answer in time, and their tests by name; the others are reported.

        Newcomers that are not there end no run: it is trained.
        """
        service, server = tests.service, tests.server
        names, evaluator = service.names(server), service.evaluator
        newcomers = {newcomer.client: newcomer for newcomer in service.newcomers()}
        no_counts = torch.zeros(self._federation.scenario.num_classes, dtype=torch.int64)
        requested = {
            client: NewcomerJob(ClientContext(newcomer.task, server.round, client, 0, no_counts), server.state)
            for client, newcomer in newcomers.items()
        }
        results: dict[int, dict[str, MetricStates]] = {}
        self._begin_round(requested)
        limit = BYTES_PER_CHARACTER * (facts_limit(evaluator, len(names)) - MAX_FACTS)
        for client, reply in self._exchange.replies(requested, limit):
            job, index = requested[client], newcomers[client].index
            with self._refuse_faulty("the test", job):
                results[client] = self._replies.newcomer_result(job, reply, names, evaluator, index)
                self._status.record_round(client, job.ctx.round)
        if self._federation.scenario.remote:
            self._refuse_large_tests(requested, results)
        yield from ((newcomer, results[client]) for client, newcomer in newcomers.items() if client in results)

    def guard(self, aggregate: Callable[[Uploads], Record], before: Record, uploads: Uploads) -> tuple[Record, Uploads]:
        """Aggregate, and test the new state: see `Federation.guard` and `fedloom.flower.checks`.

        aggregate: returns the next state from uploads. before: the server's state before the round. uploads: the
        uploads by client id. Returns the new state and its uploads. Raises `FederationError` if no `min_clients`
        uploads give a valid state.
        """
        accepted, minimum = dict(uploads), min(self._config.min_clients, len(uploads))
        while True:
            after = aggregate(accepted)
            fault = self._guard.fault(before, after)
            if fault is None:
                self._references.write(self._out)
                return after, accepted
            if len(accepted) <= minimum:
                raise FederationError(
                    f"with the uploads of clients {client_list(sorted(accepted))} {fault}; the state before this round "
                    "stays: see which node sent what it should not, or lower the learning rate, and go on with the "
                    "same command"
                )
            client = max(accepted, key=lambda candidate: self._guard.size(self._norms[candidate]))
            del accepted[client]
            text = f"the upload of client {client} is refused: with it {fault}, and it is the largest of the round"
            self._note(LogRecord(text, "refused", client=client))

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Diagnostic]:
        """Return, after the last round, the clients that never took part, with the reasons."""
        reasons = self._registry.absence_reasons() if self._is_last else {}
        return [
            Diagnostic(f"flower.absent/{client}", f"client {client} never took part: {reason}", float(client))
            for client, reason in reasons.items()
        ]

    def close(self) -> None:
        pass

    def _begin_round(self, requested: Mapping[int, AnyJob]) -> None:
        self._failures, self._refusals = 0, []
        for job in requested.values():
            self._is_last = job.ctx.round >= job.ctx.task.rounds

    def update_sizes(self) -> None:
        """Take the numbers of samples from the registry, if only the nodes know them. Rounds do so at every poll."""
        scenario = self._federation.scenario
        sizes = scenario.train.sizes
        reported = self._registry.sizes()
        current = np.array([reported.get(client, sizes[client]) for client in range(len(sizes))])
        if scenario.remote and (current != sizes).any():
            views = stand_in_views(current)
            self._federation.scenario, self._federation.train = dataclasses.replace(scenario, train=views), views

    # -- refusals --------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _refuse_faulty(self, subject: str, job: AnyJob) -> Iterator[None]:
        """Refuse a reply that cannot be used, and count an exception in the client's work; report both."""
        client, round_ = job.ctx.client, job.ctx.round
        try:
            yield
        except (MessageError, UploadError) as error:
            self._refuse(job, subject, error)
        except ClientError as error:
            self._note(LogRecord(f"round {round_}: {error}", "failed", round=round_, client=client))
            self._failures += 1
            clients, limit = self._federation.scenario.clients, self._config.max_failures
            most = min(max(1, clients // 5), max(0, clients - self._config.min_clients)) if limit == "auto" else limit
            if self._failures > most and not isinstance(job, NewcomerJob):
                raise

    def _within_share(self, requested: Mapping[int, Job]) -> dict[int, Job]:
        """Return the jobs of clients that do not claim too large a share of the round's samples."""
        if not self._federation.scenario.remote:  # the server knows all counts
            return dict(requested)
        counts = {client: size for client, size in self._registry.sizes().items() if client in requested}
        refused = shares_too_large(counts, self._config.max_share)
        for client, reason in refused.items():
            self._refuse(requested[client], "the upload", MessageError(reason))
        return {client: job for client, job in requested.items() if client not in refused}

    def _refuse_large_tests(self, requested: Mapping[int, AnyJob], tested: dict[int, dict[str, MetricStates]]) -> None:
        """Drop the tests of clients that claim too large a share of all test samples."""
        totals = {client: next(iter(states.values())).total for client, states in tested.items()}
        for client, reason in shares_too_large(totals, self._config.max_share).items():
            self._refuse(requested[client], "the test", MessageError(reason))
            del tested[client]

    def _bound_uploads(
        self, requested: Mapping[int, Job], results: dict[int, JobResult], samples: Mapping[int, int]
    ) -> None:
        """Measure the uploads of a round, and drop those that are far larger than the others."""
        self._norms = {}
        for client, result in results.items():
            job = requested[client]
            sends, roles = self._uploads.method_of(job).spec.sends, job.ctx.task.roles
            self._norms[client] = list(
                upload_norms(self._uploads.unpacked(result.upload, job), job.payload, sends, roles)
            )
        if self._bounds is None or not results:
            return
        (first_job, *_) = requested.values()
        sends = self._uploads.method_of(first_job).spec.sends
        for client, excess in self._bounds.judge(self._norms, samples, sends).items():
            self._refuse(requested[client], "the upload", UploadError(str(excess)))
            del results[client]
        if len(results) < FEWEST and not self._reported_unbounded:
            self._reported_unbounded = True
            text = (
                f"round {first_job.ctx.round} has {len(results)} uploads: with fewer than {FEWEST}, no upload is "
                "bounded by the others (flower.max_ratio, flower.max_share)"
            )
            self._note(LogRecord(text, "unbounded", round=first_job.ctx.round))

    def _refuse(self, job: AnyJob, subject: str, error: Exception) -> None:
        """Report a reply that does not count."""
        client, round_ = job.ctx.client, job.ctx.round
        event = "lost" if isinstance(error, LostReplyError) else "refused"
        if event == "refused":
            self._refusals.append(f"client {client}: {error}")
        text = f"round {round_}: {subject} of client {client} is {event}: {error}"
        self._note(LogRecord(text, event, round=round_, client=client))

    def _require_enough(self, requested: Mapping[int, AnyJob], count: int) -> None:
        minimum = min(self._config.min_clients, len(requested))
        if count < minimum:
            (first_job, *_) = requested.values()
            refused = f"; refused: {'; '.join(self._refusals)[:600]}" if self._refusals else ""
            raise FederationError(
                f"round {first_job.ctx.round}: {count} of {len(requested)} clients left something that counts within "
                f"flower.round_timeout = {self._config.round_timeout:g} s, and flower.min_clients = {minimum}{refused}"
                "; start their nodes and go on with the same command"
            )
