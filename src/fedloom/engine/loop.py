"""The round loop. It calls the hooks of a method and never asks which method it runs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.engine import round_report as term_balance
from fedloom.engine.arrivals import ArrivingUploads, LazyJobs, PayloadBytes, idle_attack_diagnostics, with_forged
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, Job, JobResult, Stage, kept_since, methods_by_stage
from fedloom.engine.round_report import ObservedRound, RoundObserver, RoundReport, Seconds
from fedloom.engine.serial import Engine
from fedloom.engine.states import ClientStates
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Task
from fedloom.methods.contract.method import Method, Uploads
from fedloom.nets.loaded_net import group_of
from fedloom.nets.net import FunctionalNet


def require_public(method: Method, scenario: Scenario) -> None:
    """Raise `ConfigError` if the server's data are missing, or if a method that uses labels gets other classes."""
    needed, public = method.spec.public, scenario.public
    if needed is None:
        return
    if public is None or not len(public):
        raise ConfigError(
            f"{method.name()} needs data at the server, and it has none: set scenario.public to a share of the "
            "training samples, e.g. 0.05, or to {source: name, its keys}"
        )
    if needed == "labels" and public.classes != scenario.class_names:
        server_classes, client_classes = (
            ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            for names in (public.classes, scenario.class_names)
        )
        raise ConfigError(
            f"scenario.public: {method.name()} uses the labels of the server's data, whose classes are "
            f"{server_classes}; the clients' are {client_classes}; take a source with the same classes"
        )


# Makes the server's next state and tests it: it gets the function that aggregates, the state so far and the uploads,
# and returns the new state with the uploads from which it was made.
Guard: TypeAlias = Callable[[Callable[[Uploads], Record], Record, Uploads], tuple[Record, Uploads]]

_CACHED_CLIENTS = 4096  # clients whose class counts are cached
_SORTED_BY_SIZE = 32  # last clients of a round, which start by size


class Federation:
    """A running federation: the server's state, the clients' states, and the number of finished rounds.

    These three are all that a checkpoint must hold; everything random is derived from them and the seed.

    Raises `ConfigError` if the method refuses the run.

    Attributes:
        server: state of the server, a record.
        states: states of the clients by id.
        round: number of finished rounds.
        clients_per_round: clients that are drawn for a round.
        methods: the method of each stage: of the rounds, and of an opening and a closing round if the run has them.
        initial_diagnostics: what the method reports before the first round.
        train: training views of the clients, or of one client that has all samples (`Spec.pooled`).
        guard: if set, it tests every new server state before it is kept, and may leave uploads out.
        observer: if set, it looks at every round of the method. It changes nothing.

    Args:
        tasks: one task for each architecture; client k has the task k mod their number.
        participation: share of the clients that is drawn for a round, above 0 and at most 1.
        states: where client states are kept; None keeps all in memory.
        nets: nets with which the server computes, one for each architecture.
    """

    def __init__(
        self,
        method: Method,
        engine: Engine,
        tasks: Sequence[Task],
        scenario: Scenario,
        *,
        participation: float,
        states: ClientStates | None = None,
        nets: Sequence[FunctionalNet] = (),
    ) -> None:
        self.method, self.engine, self.tasks, self.scenario = method, engine, tasks, scenario
        self.train = scenario.train.together() if method.spec.pooled else scenario.train
        self.clients_per_round = max(1, round(participation * scenario.clients))
        require_public(method, scenario)
        diagnostics = method.examine(tasks, self.clients_per_round)
        self.initial_diagnostics = diagnostics + idle_attack_diagnostics(scenario, self.clients_per_round)
        self._nets, self.methods = nets, methods_by_stage(method)
        self.round = 0
        self.guard: Guard | None = None
        self.observer: RoundObserver | None = None
        self.server: Record = method.server_init(self.server_context())
        self.states = ClientStates() if states is None else states
        # a partial of a function: a cached bound method would hold the federation, and that would hold the cache
        self._class_counts = functools.lru_cache(_CACHED_CLIENTS)(
            functools.partial(_class_counts, scenario, scenario.train)
        )

    def task_of(self, client: int) -> Task:
        """Return the constant facts of the run for a client's architecture."""
        return self.tasks[group_of(client, self.tasks)]

    def server_context(self, client: int = -1) -> ServerContext:
        """Return the server's context in the current round, for one client or (-1) for all."""
        return self._context(self.round, client)

    def _context(self, round_: int, client: int = -1) -> ServerContext:
        task = self.tasks[0] if client < 0 else self.task_of(client)
        net = self._nets[task.group] if self._nets else None
        return ServerContext(task, round_, net, self.scenario.public, self._nets, self.clients_per_round, client)

    def participants(self, round_: int) -> list[int]:
        """Return the clients that the method selects for a round, by id, without those that have no data.

        Raises `ValueError` for ids that do not exist or occur twice.
        """
        selected = sorted(self.method.select(self.server, self.clients_per_round, self._context(round_)))
        if len(set(selected)) < len(selected) or not all(0 <= k < len(self.train) for k in selected):
            raise ValueError(
                f"{self.method.name()} selects clients {selected}: need different ids of 0 .. {len(self.train) - 1}"
            )
        return [k for k in selected if len(self.train[k])]

    def client_context(self, client: int, round_: int) -> ClientContext:
        """Return the context of one client in a round, with its own samples, even if another one trains on them."""
        counts = self._class_counts(client)
        return ClientContext(self.task_of(client), round_, client, len(self.scenario.train[client]), counts)

    def state_of(self, ctx: ClientContext) -> Record:
        """Return the client's state, or `client_init` for a client that has none here: it is new, or keeps its own."""
        state = self.states.get(ctx.client)
        return self.method.client_init(ctx) if state is None or kept_since(state) is not None else state

    def run_first_round(self, worker: Worker, job: Job) -> JobResult:
        """Run a client's very first round here, on the samples of `job`, and return its result.

        Its state can replace that of a client that keeps its state itself and has taken part before. Payloads such as
        bare changes of weights need a state like that.
        """
        method, ctx = self.method, replace(job.ctx, round=1)
        server = method.server_init(self._context(0, ctx.client))
        payload = method.down(server, ctx.client, self._context(1, ctx.client))
        state = method.client_init(ctx)
        return worker.run(replace(job, ctx=ctx, payload=payload, state=state, measured=False, stage="round"))

    def _job_state(self, ctx: ClientContext) -> Record:
        """The state that a job carries: the client's, or the record that says since when the client keeps its own."""
        state = self.states.get(ctx.client)
        return self.state_of(ctx) if state is None else state

    def job(self, client: int, round_: int, *, measured: bool = False) -> Job:
        """Return one client's job in a round, from the present states.

        Args:
            client: id of the client.
            round_: the round, which counts from 1; 0 is an opening round.
            measured: also measure gradients of terms.
        """
        ctx = self.client_context(client, round_)
        if self.method.spec.pooled:
            counts = _class_counts(self.scenario, self.train, client)
            ctx = replace(ctx, samples=len(self.train[client]), class_counts=counts)
        stage: Stage = "opening" if round_ == 0 else "closing" if round_ > ctx.task.rounds else "round"
        stage = stage if stage in self.methods else "round"
        payload = self.methods[stage].down(self.server, client, self._context(round_, client))
        return Job(ctx, payload, self._job_state(ctx), self.train.tensor(client), measured, stage)

    def tests(self, split: str, protocol: str | None = None) -> Iterator[EvalJob]:
        """Yield the tests of the personal models of all clients, participants or not, after the present round.

        Args:
            split: "val" or "test".
            protocol: None takes the run's main one.
        """
        for client in range(self.scenario.clients):
            ctx = self.client_context(client, self.round)
            yield EvalJob(ctx, self.server, self._job_state(ctx), self.scenario.train.tensor(client), split, protocol)

    def server_tests(self, split: str, slices: int, protocol: str | None = None) -> Iterator[EvalJob]:
        """Yield the tests of the server's model after the present round.

        Args:
            split: "val" or "test".
            slices: number of slices; 0 tests on each client's samples.
            protocol: None takes the run's main one.
        """
        no_samples = torch.zeros(0, dtype=torch.int64)
        no_counts = torch.zeros(self.scenario.num_classes, dtype=torch.int64)
        for client in range(-1, -1 - slices, -1) if slices else range(self.scenario.clients):
            ctx = ClientContext(self.tasks[0], self.round, client, 0, no_counts)
            yield EvalJob(ctx, self.server, {}, no_samples, split, protocol)

    def step(self) -> RoundReport:
        """Run the next round, with an opening round before the first and a closing round after the last, if the method
        has them. Return its report.

        If no participant has data, the server's state stays. Nets on the server draw from a stream of the round.
        """
        with self.tasks[0].streams.isolated("server", self.round + 1):
            return self._step()

    def _step(self) -> RoundReport:
        next_round = self.round + 1
        opening = self._run_with_all("opening", 0) if next_round == 1 else None
        report = self._run_round(self.method, next_round, self.participants(next_round))
        self.round = next_round
        closing = self._run_with_all("closing", next_round + 1) if next_round == self.tasks[0].rounds else None
        report = report.with_opening(opening) if opening else report
        return report.with_closing(closing) if closing else report

    def _run_with_all(self, stage: Stage, round_: int) -> RoundReport | None:
        """Run the round of a stage over all clients with data; None if the method has no such stage."""
        if stage not in self.methods:
            return None
        return self._run_round(self.methods[stage], round_, [k for k in range(len(self.train)) if len(self.train[k])])

    def _run_round(self, method: Method, round_: int, clients: Sequence[int]) -> RoundReport:
        """Send payloads, let the engine run the clients, aggregate their uploads, and keep the new states."""
        started, ctx = time.perf_counter(), self._context(round_)
        bytes_down, kept_payloads = PayloadBytes(), dict[int, Record]()
        observer = self.observer if method is self.method else None
        pooled = method.spec.pooled  # nothing travels, and nobody forges it
        bad = frozenset[int]() if pooled else frozenset(self.scenario.bad).intersection(clients)
        measured = term_balance.measured_clients(round_, clients)

        def make_job(client: int) -> Job:
            job = self.job(client, round_, measured=client in measured)
            bytes_down.add(job.payload)
            if observer is not None or client in bad:
                kept_payloads[client] = job.payload
            return job

        uploads = ArrivingUploads(self.engine.run(LazyJobs(self._order_of_work(clients), make_job)), clients)
        if self.engine.may_drop_clients:
            clients = uploads.drop_missing()
        attackers = bad.intersection(clients)
        received = with_forged(uploads, attackers, kept_payloads, self.scenario, method.spec, self.task_of, round_)
        aggregation_started, waited_before = time.perf_counter(), uploads.waited_seconds
        unpacked = method.unpack(self.server, received, lambda client: self._context(round_, client))
        server, observing = self.server, 0.0
        if clients:
            aggregating = method if observer is None else observer.noting(method)
            server, unpacked = self._aggregate(aggregating, unpacked, ctx)
            server, clients = self.engine.keep(server), list(unpacked)
            if observer is not None:
                observing = self._observe(observer, method, ctx, server, kept_payloads, unpacked)
        all_results = uploads.results()
        results, diagnostics = [all_results[client] for client in clients], list[Diagnostic]()
        if uploads:
            self.server = server
            diagnostics = [*method.diagnostics(self.server, unpacked, ctx), *self._diagnostics(method, results, ctx)]
        self._keep_states(results)
        ended = time.perf_counter()
        seconds = Seconds(  # clients that train side by side take wall-clock time once
            train=min(sum(result.seconds for result in results), uploads.waited_seconds),
            aggregate=ended - aggregation_started - (uploads.waited_seconds - waited_before) - observing,
        )
        seconds.move = max(0.0, ended - started - seconds.train - seconds.aggregate - observing)
        return RoundReport(
            round=round_,
            participants=tuple(clients),
            bytes_up=0 if pooled else uploads.bytes.total,
            bytes_down=0 if pooled else bytes_down.total,
            terms=_mean_terms(results),
            steps=sum(result.steps for result in results),
            samples=sum(result.samples for result in results),
            samples_by_group=self._samples_by_group(clients),
            seconds=seconds,
            diagnostics=diagnostics,
            figures=method.figures(self.server, ctx),
        )

    def _aggregate(self, method: Method, uploads: Uploads, ctx: ServerContext) -> tuple[Record, Uploads]:
        """The server's next state, and the uploads from which it was made: all, unless the guard refuses some."""
        if self.guard is None:
            return method.aggregate(self.server, uploads, ctx), uploads
        return self.guard(lambda accepted: method.aggregate(self.server, accepted, ctx), self.server, uploads)

    def _observe(
        self,
        observer: RoundObserver,
        method: Method,
        ctx: ServerContext,
        after: Record,
        payloads: Mapping[int, Record],
        uploads: Uploads,
    ) -> float:
        """Let the observer look at the round, and return the seconds that it took."""
        started = time.perf_counter()
        samples = {client: len(self.train[client]) for client in range(len(self.train)) if len(self.train[client])}
        job = functools.partial(self.job, round_=ctx.round)
        with ctx.task.streams.isolated("observer", ctx.round):
            observer.observe(ObservedRound(method, ctx, self.server, after, payloads, uploads, samples, job))
        return time.perf_counter() - started

    def _diagnostics(self, method: Method, results: Sequence[JobResult], ctx: ServerContext) -> list[Diagnostic]:
        """Diagnostics of a round apart from the method's: diverged losses, loss terms, notes of engine and workers."""
        ratios = term_balance.gradient_ratios([result.norms for result in results])
        return [
            *self._divergence(results, ctx.round),
            *term_balance.balance_diagnostics(method.name(), ratios, ctx.round, ctx.task.rounds),
            *self.engine.notes(),
            *(note for result in results for note in result.notes),
        ]

    def _keep_states(self, results: Sequence[JobResult]) -> None:
        for result in results:
            if result.state:
                self.states[result.client] = self.engine.keep(result.state)
            else:  # a client without state starts from `client_init`
                self.states.pop(result.client, None)

    def _order_of_work(self, clients: Sequence[int]) -> list[int]:
        """The order in which clients start.

        The first ones start by id, the order in which the server sums. The last ones start by size, the largest first,
        so that the round does not wait long for the very last client.
        """
        first, last = clients[:-_SORTED_BY_SIZE], clients[-_SORTED_BY_SIZE:]
        return [*first, *sorted(last, key=lambda client: -len(self.train[client]))]

    def _samples_by_group(self, clients: Sequence[int]) -> dict[int, int]:
        """Training samples of some clients, by architecture group."""
        samples: dict[int, int] = {}
        for client in clients:
            group = self.task_of(client).group
            samples[group] = samples.get(group, 0) + len(self.train[client])
        return samples

    def _divergence(self, results: Sequence[JobResult], round_: int) -> list[Diagnostic]:
        """A diagnostic if losses of participants are not finite. Nothing is repaired, and the run continues."""
        diverged = sum(not all(math.isfinite(value) for value in result.terms.values()) for result in results)
        if not diverged:
            return []
        message = f"diverged: in round {round_} the losses of {diverged} of {len(results)} participants are not finite"
        return [Diagnostic(f"{self.method.name()}.diverged", message, float(diverged))]


def _mean_terms(results: Sequence[JobResult]) -> dict[str, float]:
    """Loss terms averaged over the clients that report them, weighted by samples processed; in order of client ids."""
    names = dict.fromkeys(name for result in results for name in result.terms)
    means = {}
    for name in names:
        pairs = [(r.terms[name], r.samples) for r in results if name in r.terms and r.samples]
        total = sum(weight for _, weight in pairs)
        means[name] = sum(value * weight for value, weight in pairs) / total if total else 0.0
    return means


def _class_counts(scenario: Scenario, train: Views, client: int) -> Tensor:
    """A client's samples of each class [C]; spread evenly if only the client knows its labels."""
    if scenario.remote:
        per_class, remainder = divmod(len(train[client]), scenario.num_classes)
        return per_class + (torch.arange(scenario.num_classes) < remainder).long()
    labels = scenario.train_set.y[train.tensor(client)]
    return torch.bincount(labels, minlength=scenario.num_classes)
