"""The engine whose clients are nodes: it sends jobs as requests, and checks the replies before they count.
Private states stay on the nodes; the server only keeps the round of each state. Every wait is bounded, and reports the
clients that are missing."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine import Federation, Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob
from fedloom.engine.serial import Engine, Jobs
from fedloom.evaluation import MetricStates
from fedloom.flower.checks import References, UploadNorm, shares_too_large, upload_norms
from fedloom.flower.exchange import Exchange, LostReplyError, ReplyReader, facts_limit
from fedloom.flower.node_data import stand_in_views
from fedloom.flower.node_registry import FederationError, NodeRegistry
from fedloom.flower.scores import OUTLYING, ClientScores, Directions, correct_share, directions
from fedloom.flower.status import LogRecord, client_list
from fedloom.flower.transport import BYTES_PER_CHARACTER
from fedloom.flower.upload_checks import UploadReader
from fedloom.flower.wire import MAX_FACTS, AnyJob, Message, MessageError
from fedloom.methods.contract.contexts import ClientContext, Diagnostic
from fedloom.methods.contract.method import Uploads
from fedloom.runs.newcomers import Newcomer, NewcomerTests

T = TypeVar("T")


class RemoteEngine(Engine):
    """Runs clients on the nodes of a transport. worker: the server's own, which rehearses uploads."""

    name = "flower"

    def __init__(self, registry: NodeRegistry, federation: Federation, worker: Worker, out: Path | None) -> None:
        self._registry, self._federation, self._worker, self._out = registry, federation, worker, out
        self._config, self._status, self._note = registry.links.config, registry.links.status, registry.note
        self._uploads = UploadReader(federation, worker, self._config.max_norm, self._note)
        self._references = References.read(out) or References()
        self._norms: dict[int, list[UploadNorm]] = {}  # of the round's uploads, by client
        self._failures, self._refusals = 0, list[str]()  # of this round
        self._scores, self._outliers, self._is_last = ClientScores(), set[int](), False
        scenario = federation.scenario  # its test samples only name clients, and change no round
        self._tests = scenario.public or scenario.test_set
        self._replies = ReplyReader(self._uploads, worker, registry)
        self._exchange = Exchange(registry, self.update_sizes)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yield the results of clients whose uploads are accepted, all of which are compared before the first one.
        Raises `ClientError` if more than `max_failures` clients fail, `FederationError` if too few remain."""
        requested = {job.ctx.client: job for job in jobs}
        if not requested:
            return
        self._begin_round(requested)
        joined = self._registry.joined
        counts = {client: reply.samples for client, reply in joined.items() if client in requested}
        refused = self._refuse_large_shares(requested, counts, "the upload")
        accepted = {client: job for client, job in requested.items() if client not in refused}
        samples = {client: size for client, size in counts.items() if client in accepted}

        def read(client: int, reply: Message | str) -> JobResult:
            claimed = samples.setdefault(client, joined[client].samples)  # joined in this round
            return self._replies.job_result(requested[client], reply, claimed)

        limit = max((self._uploads.limit(job) for job in accepted.values()), default=0)
        results = self._exchanged(accepted, limit, "the upload", read)
        # Once more, because some joined after the jobs were sent.
        self._refuse_large_shares({client: requested[client] for client in results}, samples, "the upload", results)
        for client, reason in self._uploads.unlike_most(results, requested).items():
            self._refuse(requested[client], "the upload", MessageError(reason))
            del results[client]
        self._bound_uploads(requested, results, samples)
        self._require_enough(requested, len(results))
        while results:
            # Popped, so this engine keeps no upload that the caller has dropped.
            yield results.pop(next(iter(results)))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yield one result for each client that answers in time. Raises as `run` does."""
        requested = {test.ctx.client: test for test in tests}
        if not any(self._worker.evaluator_for(t.protocol).tests_on_clients(t.split) for t in requested.values()):
            yield from map(self._worker.test, requested.values())
            return
        self._begin_round(requested)

        def read(client: int, reply: Message | str) -> EvalResult:
            return self._replies.eval_result(requested[client], reply)

        limit = BYTES_PER_CHARACTER * (self._replies.test_limit - MAX_FACTS)
        results = self._exchanged(requested, limit, "the test", read)
        totals = {client: next(iter(result.tested.values())).total for client, result in results.items()}
        self._refuse_large_shares(requested, totals, "the test", results)
        self._require_enough(requested, len(results))
        main = self._worker.evaluator_for(next(iter(requested.values())).protocol).names[0]
        tested = {client: result.tested[main] for client, result in results.items() if main in result.tested}
        claims = {client: states.value("accuracy") for client, states in tested.items() if states.total}
        self._scores.add("claim", claims)
        self._report_scores(claims, next(iter(requested.values())).ctx.round)
        yield from results.values()

    def test_newcomers(self, tests: NewcomerTests) -> Iterator[tuple[Newcomer, dict[str, MetricStates]]]:
        """Yield the newcomers whose nodes answer in time, and their tests by name; the others are reported."""
        service = tests.service
        names, evaluator = service.names(), service.evaluator
        newcomers = {newcomer.client: newcomer for newcomer in service.newcomers()}
        no_counts = torch.zeros(self._federation.scenario.num_classes, dtype=torch.int64)
        requested = {
            client: NewcomerJob(ClientContext(newcomer.task, service.round, client, 0, no_counts), service.state)
            for client, newcomer in newcomers.items()
        }
        self._begin_round(requested)

        def read(client: int, reply: Message | str) -> dict[str, MetricStates]:
            return self._replies.newcomer_result(requested[client], reply, names, evaluator, newcomers[client].index)

        limit = BYTES_PER_CHARACTER * (facts_limit(evaluator, len(names)) - MAX_FACTS)
        results = self._exchanged(requested, limit, "the test", read)
        totals = {client: next(iter(tested.values())).total for client, tested in results.items()}
        self._refuse_large_shares(requested, totals, "the test", results)
        yield from ((newcomer, results[client]) for client, newcomer in newcomers.items() if client in results)

    def guard(self, aggregate: Callable[[Uploads], Record], before: Record, uploads: Uploads) -> tuple[Record, Uploads]:
        """Return the state that `aggregate` makes of `uploads`, by client, and those it used: the largest is dropped
        until it is valid after `before`. Raises `FederationError` if `min_clients` uploads give no valid one."""
        accepted, minimum = dict(uploads), min(self._config.min_clients, len(uploads))
        while True:
            after = aggregate(accepted)
            fault = self._references.fault(before, after)
            if fault is None:
                if self._out is not None:
                    self._references.write(self._out)
                return after, accepted
            if len(accepted) <= minimum:
                raise FederationError(
                    f"with the uploads of clients {client_list(sorted(accepted))} {fault}; the state before this round "
                    "is kept: find the node that sent wrong values, or lower the learning rate, and repeat the command"
                )
            client = max(accepted, key=lambda candidate: self._references.size(self._norms[candidate]))
            del accepted[client]
            text = f"the upload of client {client} is refused: with it {fault}, and it is the largest of the round"
            self._note(LogRecord(text, "refused", client=client))

    def notes(self) -> list[Diagnostic]:
        """Return, after the last round, who never took part, who stands out, and whose tests repeat training data."""
        if not self._is_last:
            return []
        leaking = sorted(client for client, reply in self._registry.joined.items() if reply.leaks)
        text = (
            f"test samples repeat training data, as those of one person do, at clients {client_list(leaking)}; their "
            "logs have counts, and `group` in a node's data file keeps persons together"
        )
        notes = [("leaks", text, float(len(leaking)))] if leaking else []
        for k in sorted(self._outliers):
            notes.append((f"unlike/{k}", self._scores.sentence(k), self._scores.deviation(k)[0]))
        for k, reason in self._registry.absence_reasons().items():
            notes.append((f"absent/{k}", f"client {k} never took part: {reason}", float(k)))
        return [Diagnostic(f"flower.{code}", text, figure) for code, text, figure in notes]

    def update_sizes(self) -> None:
        """Take the numbers of samples from the registry, if only the nodes know them. Rounds do so at every poll."""
        scenario, joined = self._federation.scenario, self._registry.joined
        sizes = scenario.train.sizes
        current = np.array([joined[k].samples if k in joined else size for k, size in enumerate(sizes)])
        if scenario.remote and (current != sizes).any():
            views = stand_in_views(current)
            self._federation.scenario, self._federation.train = dataclasses.replace(scenario, train=views), views

    def _begin_round(self, requested: Mapping[int, AnyJob]) -> None:
        self._failures, self._refusals = 0, []
        self._is_last = any(job.ctx.round >= job.ctx.task.rounds for job in requested.values())

    def _exchanged(
        self, jobs: Mapping[int, AnyJob], limit: int, subject: str, read: Callable[[int, Message | str], T]
    ) -> dict[int, T]:
        """Send `jobs`, and return what `read` makes of the replies that can be used, by client."""
        results: dict[int, T] = {}
        for client, reply in self._exchange.replies(jobs, limit):
            with self._refuse_faulty(subject, jobs[client]):
                results[client] = read(client, reply)
                self._status.record_round(client, jobs[client].ctx.round)
            del reply  # large
        return results

    # -- refusals --------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _refuse_faulty(self, subject: str, job: AnyJob) -> Iterator[None]:
        """Refuse a reply that cannot be used, and count an exception in the client's work; report both."""
        client, round_ = job.ctx.client, job.ctx.round
        try:
            yield
        except MessageError as error:
            self._refuse(job, subject, error)
        except ClientError as error:
            self._note(LogRecord(f"round {round_}: {error}", "failed", round=round_, client=client))
            self._failures += 1
            clients, limit = self._federation.scenario.clients, self._config.max_failures
            most = min(max(1, clients // 5), max(0, clients - self._config.min_clients)) if limit == "auto" else limit
            if self._failures > most and not isinstance(job, NewcomerJob):
                raise

    def _refuse_large_shares(
        self, jobs: Mapping[int, AnyJob], counts: Mapping[int, int], subject: str, results: dict[int, Any] | None = None
    ) -> set[int]:
        """Refuse clients that claim too large a share of all samples, and drop their results; return the clients."""
        # If the config describes the data, the server knows all counts, and there is nothing to refuse.
        refused = shares_too_large(counts, self._config.max_share) if self._federation.scenario.remote else {}
        refused = {client: reason for client, reason in refused.items() if client in jobs}
        for client, reason in refused.items():
            self._refuse(jobs[client], subject, MessageError(reason))
            if results is not None:
                del results[client]
        return {*refused}

    def _bound_uploads(
        self, requested: Mapping[int, Job], results: dict[int, JobResult], samples: Mapping[int, int]
    ) -> None:
        """Measure the uploads of a round, drop those that are far larger than usual, and score all of them."""
        self._norms, unit_vectors, shares = {}, dict[int, Directions](), dict[int, float]()
        for client, result in results.items():
            job = requested[client]
            sends, upload = self._uploads.method_of(job).spec.sends, self._uploads.unpacked(result.upload, job)
            self._norms[client] = list(upload_norms(upload, job.payload, sends, job.ctx.task.roles))
            unit_vectors[client] = directions(upload, job.payload, sends)
            net = self._worker.net_of_client(client).net
            tested = correct_share(net, job.ctx.task.init, upload, sends, self._tests)
            shares |= {} if tested is None else {client: tested}
        if not results:
            return
        (first_job, *_) = requested.values()
        sends, rehearsed = self._uploads.method_of(first_job).spec.sends, self._uploads.rehearsal_of(first_job).norms
        max_ratio = self._config.max_ratio or math.inf
        judged = self._references.judge(self._norms, samples, sends, max_ratio, rehearsed)
        refused = [client for client, (excess, _) in judged.items() if excess > 1]
        for client in refused:
            self._refuse(requested[client], "the upload", MessageError(judged[client][1]))
            del results[client]
        if first_job.stage == "round":
            self._scores.add("length", {k: math.log2(max(share, 2.0**-20)) for k, (share, _) in judged.items()})
            self._scores.add_directions(unit_vectors, refused)
            self._scores.add("test", shares)
            self._report_scores(self._norms, first_job.ctx.round)

    def _report_scores(self, clients: Iterable[int], round_: int) -> None:
        """Put the scores of `clients` into the status, and name those that begin to stand out."""
        for client in clients:
            stands_out = self._scores.deviation(client)[0] >= OUTLYING
            self._status.set_scores(client, {**self._scores.values[client], "outlier": stands_out})
            if stands_out and client not in self._outliers:
                self._note(LogRecord(self._scores.sentence(client), "unlike", round=round_, client=client))
            self._outliers = self._outliers | {client} if stands_out else self._outliers - {client}

    def _refuse(self, job: AnyJob, subject: str, error: Exception) -> None:
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
            limit = self._config.round_timeout
            raise FederationError(
                f"round {first_job.ctx.round}: {count} of {len(requested)} clients sent a usable reply"
                f"{'' if limit is None else f' within flower.round_timeout = {limit:g} s'}, and flower.min_clients = "
                f"{minimum}{refused}; start their nodes and repeat the command"
            )
