"""The round loop. It calls the hooks of a method and never asks which method it runs."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.records import Record, wire_size
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views, label_counts
from fedloom.engine import jobs, round_report
from fedloom.engine.client import Worker
from fedloom.engine.clock import Arrivals, Clock, Devices
from fedloom.engine.round_report import ObservedRound, RoundObserver, RoundReport, Seconds
from fedloom.engine.serial import Engine
from fedloom.engine.states import ClientStates
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Task
from fedloom.methods.contract.means import keep_unrecorded
from fedloom.methods.contract.method import Method, Uploads
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import group_of
from fedloom.nets.net import FunctionalNet

# Makes the server's next state and tests it: it gets the function that aggregates, the state so far and the uploads,
# and returns the new state with the uploads from which it was made.
Guard: TypeAlias = Callable[[Callable[[Uploads], Record], Record, Uploads], tuple[Record, Uploads]]

_CACHED_CLIENTS = 4096  # clients whose class counts are cached
_SORTED_BY_SIZE = 32  # last clients of a round, which start by size
_NO_LIMITS: Mapping[int, int] = {}


@dataclass(slots=True)
class _Work:
    """The clients' work in a round so far: bytes and payloads by client, seconds, and when the last training ended."""

    bytes_up: dict[int, int] = field(default_factory=dict)
    bytes_down: dict[int, int] = field(default_factory=dict)
    payloads: dict[int, Record] = field(default_factory=dict)
    seconds: float = 0.0
    ended: float = 0.0


class Federation:
    """A running federation: the server's state, the clients' states, and the number of finished rounds.

    A checkpoint holds these three (`server`, `states`, `round`) and the `clock` if there is one, because everything
    random is derived from them and the seed. Raises `ConfigError` if the method refuses the run.

    Attributes:
        methods: the method of each stage: of the rounds, and of an opening and a closing round if the run has them.
        initial_diagnostics: the method's reports before the first round.
        guard: if set, it tests every new server state before it is kept, and may leave uploads out.
        observer: if set, it looks at every round of the method. It changes nothing.
        clock: virtual time, with the uploads that are on their way; None without.

    Args:
        tasks: one task for each architecture; client k has the task k mod their number.
        participation: share of the clients that is drawn for a round, above 0 and at most 1.
        states: where client states are kept; None keeps all in memory.
        nets: nets with which the server computes, one for each architecture.
        devices: those of the clients in virtual time; None has no such time, unless the method is asynchronous.
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
        devices: Devices | None = None,
    ) -> None:
        self.method, self.engine, self.tasks, self.scenario = method, engine, tasks, scenario
        # views of the clients, or of one client that has all samples
        self.train = scenario.train.together() if method.spec.pooled else scenario.train
        self.clients_per_round = max(1, round(participation * scenario.clients))
        jobs.require_data(method, scenario)
        arrivals = method.spec.arrivals
        self.clock: Clock | None = None
        if not method.spec.pooled and (devices is not None or arrivals is not None):
            samples = [len(self.train[client]) for client in range(len(self.train))]
            self.clock = Clock(devices or Devices(), method, tasks[0], samples)
        with jobs.hooked(method, "examine", 0):
            self.initial_diagnostics = list(method.examine(tasks, arrivals or self.clients_per_round))
        if scenario.attack is not None and (reason := scenario.attack.why_idle(self.clients_per_round)) is not None:
            self.initial_diagnostics.append(Diagnostic("attack.idle", reason, 0.0))
        self._nets, self.methods = nets, jobs.methods_by_stage(method)
        self.round = 0
        self.guard: Guard | None = None
        self.observer: RoundObserver | None = None
        self._drawn: tuple[int, tuple[int, ...]] = -1, ()  # the round and its participants
        self.sample_jobs: dict[
            jobs.Stage, Mapping[int, jobs.Job]
        ] = {}  # of the last round: a job of each group of architectures
        with jobs.hooked(method, "server_init", 0):
            self.server: Record = method.server_init(self.server_context())
        self.states = ClientStates() if states is None else states
        # a partial of a function: a cached bound method would hold the federation, and that would hold the cache
        counts = functools.partial(_class_counts, scenario, scenario.train)
        self._class_counts = functools.lru_cache(_CACHED_CLIENTS)(counts)

    def task_of(self, client: int) -> Task:
        """Return the constant facts of the run for a client's architecture."""
        return self.tasks[group_of(client, self.tasks)]

    def server_context(self, client: int = -1) -> ServerContext:
        """Return the server's context in the current round, for one client or (-1) for all."""
        return self.context(self.round, client)

    def context(self, round_: int, client: int = -1) -> ServerContext:
        """Return the server's context in a round, for one client or (-1) for all; `drawn` is known of the last one."""
        task = self.tasks[0] if client < 0 else self.task_of(client)
        net = self._nets[task.group] if self._nets else None
        drawn = self._drawn[1] if self._drawn[0] == round_ else ()
        return ServerContext(task, round_, net, self.scenario.public, self._nets, self.clients_per_round, client, drawn)

    def participants(self, round_: int) -> list[int]:
        """Return the clients with data that the method selects for a round, by id. Raises `ValueError` for bad ids."""
        with jobs.hooked(self.method, "select", round_):
            selected = sorted(self.method.select(self.server, self.clients_per_round, self.context(round_)))
        if len(set(selected)) < len(selected) or not all(0 <= k < len(self.train) for k in selected):
            problem = f"need different ids of 0 .. {len(self.train) - 1}"
            raise ValueError(f"{self.method.name()} selects clients {selected}: {problem}")
        return [k for k in selected if len(self.train[k])]

    def client_context(self, client: int, round_: int) -> ClientContext:
        """Return the context of one client in a round, with its own samples, even if another one trains on them."""
        counts = self._class_counts(client)
        return ClientContext(self.task_of(client), round_, client, len(self.scenario.train[client]), counts)

    def state_of(self, ctx: ClientContext) -> Record:
        """Return the client's state, or `client_init` for a client that has none here: it is new, or keeps its own."""
        state = self.states.get(ctx.client)
        if state is not None and jobs.kept_since(state) is None:
            return state
        with jobs.hooked(self.method, "client_init", ctx.round, ctx.client):
            return self.method.client_init(ctx)

    def predictors(self, state: Record | None, client: int = -1) -> dict[str, Predictor]:
        """Return the method's predictors after the present round, of a client's state or (None) of the server alone."""
        with jobs.hooked(self.method, "predictors", self.round, client):
            return self.method.predictors(self.server, state, self.server_context(client))

    def run_first_round(self, worker: Worker, job: jobs.Job) -> jobs.JobResult:
        """Run a client's very first round here, on the samples of `job`, and return its result. Its state can replace
        that of a client that keeps its state itself and has taken part before. Raises `ClientError` where a hook
        raises: the method may never meet this round, so a caller makes a note of it."""
        method, ctx, client = self.method, replace(job.ctx, round=1), job.ctx.client
        with jobs.hooked(method, "server_init", 0, client):
            server = method.server_init(self.context(0, client))
        with jobs.hooked(method, "down", 1, client):
            payload = method.down(server, client, replace(self.context(1, client), drawn=self._drawn[1]))
        with jobs.hooked(method, "client_init", 1, client):
            state = method.client_init(ctx)
        return worker.run(replace(job, ctx=ctx, payload=payload, state=state, measured=False, stage="round"))

    def _job_state(self, ctx: ClientContext) -> Record:
        """The state that a job carries: the client's, or the record that says since when the client keeps its own."""
        state = self.states.get(ctx.client)
        return self.state_of(ctx) if state is None else state

    def job(self, client: int, round_: int, *, measured: bool = False, steps: int | None = None) -> jobs.Job:
        """Return one client's job in round `round_`, which counts from 1, or is 0 for an opening round."""
        ctx = self.client_context(client, round_)
        if self.method.spec.pooled:
            counts = _class_counts(self.scenario, self.train, client)
            ctx = replace(ctx, samples=len(self.train[client]), class_counts=counts)
        stage = self.stage_of(round_)
        with jobs.hooked(self.methods[stage], "down", round_, client):
            payload = self.methods[stage].down(self.server, client, self.context(round_, client))
        return jobs.Job(ctx, payload, self._job_state(ctx), self.train.tensor(client), measured, stage, steps)

    def stage_of(self, round_: int) -> jobs.Stage:
        """Return the stage of a round: 0 is the opening, one after the last the closing, if the method has them."""
        stage: jobs.Stage = "opening" if round_ == 0 else "closing" if round_ > self.tasks[0].rounds else "round"
        return stage if stage in self.methods else "round"

    def tests(self, split: str, protocol: str | None = None) -> Iterator[jobs.EvalJob]:
        """Yield the tests of the personal models of all clients after the present round, on "val" or "test" data."""
        for client in range(self.scenario.clients):
            ctx = self.client_context(client, self.round)
            yield jobs.EvalJob(
                ctx, self.server, self._job_state(ctx), self.scenario.train.tensor(client), split, protocol
            )

    def server_tests(self, split: str, slices: int, protocol: str | None = None) -> Iterator[jobs.EvalJob]:
        """Yield the tests of the server's model on a split, in slices of all samples, or (0) on each client's."""
        no_samples = torch.zeros(0, dtype=torch.int64)
        no_counts = torch.zeros(self.scenario.num_classes, dtype=torch.int64)
        # Ids below 0 stand for slices of all samples.
        for client in range(-1, -1 - slices, -1) if slices else range(self.scenario.clients):
            ctx = ClientContext(self.tasks[0], self.round, client, 0, no_counts)
            yield jobs.EvalJob(ctx, self.server, {}, no_samples, split, protocol)

    def step(self) -> RoundReport:
        """Run the next round, with an opening round before the first and a closing round after the last, if the method
        has them, and return its report. If no participant has data, the server's state stays."""
        next_round = self.round + 1
        with self.tasks[0].streams.isolated("server", next_round):
            opening = self._run_with_all("opening", 0) if next_round == 1 else None
            drawn = self.participants(next_round) if self.method.spec.arrivals is None else ()
            report = self._run_round(self.method, next_round, drawn)
            self.round = next_round
            closing = self._run_with_all("closing", next_round + 1) if next_round == self.tasks[0].rounds else None
        return report.with_stages(opening, closing)

    def _run_with_all(self, stage: jobs.Stage, round_: int) -> RoundReport | None:
        """Run the round of a stage over all clients with data; None if the method has no such stage."""
        if stage not in self.methods:
            return None
        return self._run_round(self.methods[stage], round_, [k for k in range(len(self.train)) if len(self.train[k])])

    def _run_round(self, method: Method, round_: int, drawn: Sequence[int]) -> RoundReport:
        """Run a round with the clients drawn for it: send, train, arrive, aggregate, observe, store."""
        started, self._drawn, work = time.perf_counter(), (round_, tuple(drawn)), _Work()
        ctx, observed = self.context(round_), self.observer is not None and method is self.method
        if self.clock is None:
            by_client, uploads = self._train(method, round_, drawn, work)
            arrivals = None
        else:
            arrivals = self._train_on(self.clock, method, round_, drawn, work)
            by_client = arrivals.results
            uploads = {client: result.upload for client, result in by_client.items()}
            ctx = replace(ctx, staleness=arrivals.staleness, drawn=tuple(drawn or uploads))
        server, uploads = self._aggregate(method, uploads, ctx)
        aggregated = time.perf_counter()
        diagnostics = self._observe(method, ctx, server, work.payloads, uploads) if observed else []
        # Store: the new states, and the report.
        looked, results = time.perf_counter(), [by_client[client] for client in uploads]
        if by_client:
            self.server = server
            diagnostics += self._diagnostics(method, uploads, results, ctx)
        self._keep_states(results)
        with jobs.hooked(method, "figures", round_):
            figures = dict(method.figures(self.server, ctx))
        if arrivals is not None:
            figures, diagnostics = figures | arrivals.figures, diagnostics + arrivals.diagnostics
        seconds = Seconds.of_round(
            started, work.ended or started, aggregated, looked, time.perf_counter(), work.seconds
        )
        traffic = (0, 0) if method.spec.pooled else (sum(work.bytes_up.values()), sum(work.bytes_down.values()))
        steps, samples = sum(result.steps for result in results), sum(result.samples for result in results)
        terms, groups = round_report.mean_terms(results), self._samples_by_group(uploads)
        return RoundReport(
            round_, tuple(uploads), *traffic, terms, steps, samples, groups, seconds, diagnostics, figures=figures
        )

    def _train(
        self, method: Method, round_: int, clients: Sequence[int], work: "_Work", steps: Mapping[int, int] = _NO_LIMITS
    ) -> tuple[dict[int, jobs.JobResult], Uploads]:
        """Send to clients and train them, some with a largest number of `steps`; return their results, and their
        uploads unpacked, in the order of client ids, in which every mean sums."""
        attackers = frozenset[int]() if method.spec.pooled else frozenset(self.scenario.bad).intersection(clients)
        # The engine asks for each job when a client starts, and no client trains after this loop.
        observed = self.observer is not None and method is self.method
        sent = self._jobs(round_, clients, clients if observed else attackers, steps)
        by_client = dict[int, jobs.JobResult]()
        for result in self.engine.run(sent):
            by_client[result.client] = result
            work.bytes_up[result.client] = wire_size(result.upload) if result.upload else 0
        work.ended, stage = time.perf_counter(), self.stage_of(round_)
        work.seconds += sum(result.seconds for result in by_client.values())
        work.bytes_down |= sent.bytes
        work.payloads |= sent.payloads
        if stage != "round" or round_ == self.tasks[0].rounds:  # the payloads of other rounds would only take memory
            self.sample_jobs[stage] = {**self.sample_jobs.get(stage, {}), **sent.samples}
        uploads: Uploads = {client: by_client[client].upload for client in sorted(by_client)}
        forged = jobs.with_forged(uploads, attackers, sent.payloads, self.scenario, method.spec, self.task_of, round_)
        with jobs.hooked(method, "unpack", round_):
            return by_client, method.unpack(self.server, forged, functools.partial(self.context, round_))

    def _train_on(self, clock: Clock, method: Method, round_: int, drawn: Sequence[int], work: "_Work") -> Arrivals:
        """Train clients on a clock, and return what arrives by the end of the round."""
        spec = method.spec
        keep = self.engine.keep if clock.mixes_rounds else lambda record: record

        def train(clients: Sequence[int], steps: Mapping[int, int]) -> list[tuple[jobs.JobResult, int, int]]:
            if spec.arrivals is not None:
                self._drawn = round_, tuple(clients)
            by_client, uploads = self._train(method, round_, clients, work, steps)
            kept = {
                k: replace(by_client[k], upload=keep(u), state=keep(by_client[k].state)) for k, u in uploads.items()
            }
            return [(result, work.bytes_down[k], work.bytes_up[k]) for k, result in kept.items()]

        def payload(client: int) -> int:
            with jobs.hooked(method, "down", round_, client):
                return wire_size(method.down(self.server, client, self.context(round_, client)))

        if method is not self.method:
            return clock.run_all(round_, drawn, train)
        if spec.arrivals is None:
            return clock.run_round(round_, drawn, payload, train)
        return clock.run_arrivals(round_, self.clients_per_round, spec, payload, train)

    def _jobs(self, round_: int, drawn: Sequence[int], kept: Container[int], steps: Mapping[int, int]) -> jobs.SentJobs:
        """The jobs of a round, which are made on demand. kept: clients whose payload is needed after the round."""
        measured = round_report.measured_clients(round_, drawn)
        # by id, in which the server sums, but the last ones by size, so that no worker waits long for the very last
        first, last = drawn[:-_SORTED_BY_SIZE], drawn[-_SORTED_BY_SIZE:]
        clients = [*first, *sorted(last, key=lambda client: -len(self.train[client]))]
        return jobs.SentJobs(
            clients, lambda client: self.job(client, round_, measured=client in measured, steps=steps.get(client)), kept
        )

    def _aggregate(self, method: Method, uploads: Uploads, ctx: ServerContext) -> tuple[Record, Uploads]:
        """The server's next state, and the uploads from which it was made: all, unless the guard refuses some."""
        if not uploads:
            return self.server, {}

        def aggregate(accepted: Uploads) -> Record:
            with jobs.hooked(method, "aggregate", ctx.round):
                return keep_unrecorded(self.server, method.aggregate(self.server, accepted, ctx), accepted)

        # A new state may share the memory of uploads, which an engine reuses in the next round, so it is kept.
        if self.guard is None:
            return self.engine.keep(aggregate(uploads)), uploads
        server, accepted = self.guard(aggregate, self.server, uploads)
        return self.engine.keep(server), accepted

    def _observe(
        self, method: Method, ctx: ServerContext, after: Record, payloads: Mapping[int, Record], uploads: Uploads
    ) -> list[Diagnostic]:
        """Let the observer look at the round. It asks for jobs of all clients, and a method may have none: a note."""
        if self.observer is None or method is not self.method or not uploads:
            return []
        samples = {client: len(self.train[client]) for client in range(len(self.train)) if len(self.train[client])}
        job = functools.partial(self.job, round_=ctx.round)
        with ctx.task.streams.isolated("observer", ctx.round):
            try:
                self.observer.observe(ObservedRound(method, ctx, self.server, after, payloads, uploads, samples, job))
            except ClientError as error:
                return [Diagnostic("observer.failed", f"round {ctx.round} is not observed: {error}", float(ctx.round))]
        return []

    def _diagnostics(
        self, method: Method, uploads: Uploads, results: Sequence[jobs.JobResult], ctx: ServerContext
    ) -> list[Diagnostic]:
        """Diagnostics of the method, of losses that diverged, of loss terms, and notes of engine and workers."""
        with jobs.hooked(method, "diagnostics", ctx.round):
            diagnostics = method.diagnostics(self.server, uploads, ctx)
        ratios = round_report.gradient_ratios([result.norms for result in results])
        return [
            *diagnostics,
            *round_report.divergence(method.name(), results, ctx.round),
            *round_report.balance_diagnostics(method.name(), ratios, ctx.round, ctx.task.rounds),
            *self.engine.notes(),
            *(note for result in results for note in result.notes),
        ]

    def _keep_states(self, results: Sequence[jobs.JobResult]) -> None:
        for result in results:
            if result.state:
                self.states[result.client] = self.engine.keep(result.state)
            else:  # a client without state starts from `client_init`
                self.states.pop(result.client, None)

    def _samples_by_group(self, clients: Iterable[int]) -> dict[int, int]:
        samples = Counter[int]()
        for client in clients:
            samples[self.task_of(client).group] += len(self.train[client])
        return dict(samples)


def _class_counts(scenario: Scenario, train: Views, client: int) -> Tensor:
    """A client's samples of each class [C]; spread evenly if only the client knows its labels."""
    if scenario.remote:
        per_class, remainder = divmod(len(train[client]), scenario.num_classes)
        return per_class + (torch.arange(scenario.num_classes) < remainder).long()
    return label_counts(scenario.train_set.y[train.tensor(client)], scenario.num_classes)
