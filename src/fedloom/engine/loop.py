"""The round loop. It calls the hooks of a method and never asks which method it runs."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fedloom.core.records import Record, wire_size
from fedloom.data.scenario import Scenario
from fedloom.engine import term_balance
from fedloom.engine.attacked import as_seen, idle
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, Job, JobResult, kept_since
from fedloom.engine.public import require_public
from fedloom.engine.serial import Engine
from fedloom.engine.states import States
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, ServerContext, Task
from fedloom.methods.contract.method import Method, Uploads
from fedloom.nets.functional_net import FunctionalNet
from fedloom.nets.groups import group_of

# Makes the server's next state and tests it: it gets the function that aggregates, the state so far and the uploads,
# and returns the new state with the uploads from which it was made.
Guard: TypeAlias = Callable[[Callable[[Uploads], Record], Record, Uploads], tuple[Record, Uploads]]

_REMEMBERED = 4096  # clients whose class counts are kept
_LAST = 32  # clients of a round that are ordered by size


@dataclass(slots=True)
class Seconds:
    """Wall-clock seconds by phase. `train` is the clients' work, `move` everything between server and clients."""

    train: float = 0.0
    aggregate: float = 0.0
    move: float = 0.0

    def plus(self, other: Seconds) -> Seconds:
        """Both together."""
        return Seconds(self.train + other.train, self.aggregate + other.aggregate, self.move + other.move)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round: who took part, bytes on the wire (serialised payloads), loss terms, seconds, samples.

    held: training samples of the participants, by group of architectures; closing: of those of the closing round, which
    in all else is part of this one. figures: the method's own (`Method.figures`).
    """

    round: int
    participants: tuple[int, ...]
    bytes_up: int
    bytes_down: int
    terms: Mapping[str, float]
    steps: int
    samples: int
    held: Mapping[int, int]
    seconds: Seconds
    diagnostics: list[Diagnostic] = field(default_factory=list)
    closing: Mapping[int, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def with_closing(self, other: RoundReport) -> RoundReport:
        """This round and the closing one as one report."""
        return replace(
            self,
            bytes_up=self.bytes_up + other.bytes_up,
            bytes_down=self.bytes_down + other.bytes_down,
            steps=self.steps + other.steps,
            samples=self.samples + other.samples,
            seconds=self.seconds.plus(other.seconds),
            diagnostics=[*self.diagnostics, *other.diagnostics],
            closing=other.held,
        )


class Federation:
    """A running federation: the server's state, the clients' states, and the number of finished rounds.

    These three are all that a checkpoint must hold; everything random is derived from them and the seed. `tasks` has
    one task per architecture; client k has that of group k mod their number. `examined` is what the method had to say
    before the first round; nets: what the server computes with, by group. `guard`, where set, tests every new server
    state before it is kept, and may leave uploads out. Raises `ConfigError` if the method refuses the run.
    """

    def __init__(
        self,
        method: Method,
        engine: Engine,
        tasks: Sequence[Task],
        scenario: Scenario,
        *,
        participation: float,
        states: States | None = None,
        nets: Sequence[FunctionalNet] = (),
    ) -> None:
        self.method, self.engine, self.tasks, self.scenario = method, engine, tasks, scenario
        self.sampled = max(1, round(participation * scenario.clients))
        require_public(method, scenario)
        self.examined = method.examine(tasks, self.sampled) + idle(scenario, self.sampled)
        self._nets, self._closing = nets, method.closing()
        self.round = 0
        self.guard: Guard | None = None
        self.server: Record = method.server_init(self.server_context())
        self.states = States() if states is None else states
        # a function, not a method: a cache of a bound one would hold the federation, which holds the cache
        self._class_counts = functools.lru_cache(_REMEMBERED)(functools.partial(_counted, scenario))

    def task_of(self, client: int) -> Task:
        """The facts of the run for one client."""
        return self.tasks[group_of(client, self.tasks)]

    def server_context(self, client: int = -1) -> ServerContext:
        """Where the server is now, dealing with one client, or (-1) with all."""
        return self._context(self.tasks[0] if client < 0 else self.task_of(client), self.round)

    def _context(self, task: Task, round_: int) -> ServerContext:
        net = self._nets[task.group] if self._nets else None
        return ServerContext(task, round_, net, self.scenario.public, self._nets, self.sampled)

    def participants(self, round_: int) -> list[int]:
        """Clients that the method selects for a round, in the order of their ids. Those without data sit out.

        Raises `ValueError` for ids that do not exist, or come twice.
        """
        chosen = sorted(self.method.select(self.server, self.sampled, self._context(self.tasks[0], round_)))
        if len(set(chosen)) < len(chosen) or not all(0 <= k < self.scenario.clients for k in chosen):
            raise ValueError(
                f"{self.method.name()} selects clients {chosen}: need different ids of 0 .. {self.scenario.clients - 1}"
            )
        return [k for k in chosen if len(self.scenario.train[k])]

    def client_context(self, client: int, round_: int) -> ClientContext:
        """The facts of one client."""
        counts = self._class_counts(client)
        return ClientContext(self.task_of(client), round_, client, len(self.scenario.train[client]), counts)

    def state_of(self, facts: ClientContext) -> Record:
        """The client's state; a client without one (new, or lost) starts from `client_init`, and so does one that keeps
        its state itself, as far as the server knows."""
        known = self.states.get(facts.client)
        return self.method.client_init(facts) if known is None or kept_since(known) else known

    def first_round(self, worker: Worker, job: Job) -> JobResult:
        """The result of a client's very first round, run here by `worker` on the samples of `job`.

        Where clients keep their states themselves, the state that it leaves stands in for one of a client that took
        part before: some payloads fit such a client alone, e.g. one that brings nothing but changes.
        """
        method, ctx = self.method, replace(job.ctx, round=1)
        server = method.server_init(self._context(ctx.task, 0))
        payload = method.down(server, ctx.client, self._context(ctx.task, 1))
        state = method.client_init(ctx)
        return worker.run(replace(job, ctx=ctx, payload=payload, state=state, measured=False, closing=False))

    def _carried(self, facts: ClientContext) -> Record:
        """The state that goes with a job: the client's, or what stands for one that it keeps itself."""
        known = self.states.get(facts.client)
        return self.state_of(facts) if known is None else known

    def job(self, client: int, round_: int, *, measured: bool = False) -> Job:
        """One client's work in a round, from the server's and its own present state."""
        facts = self.client_context(client, round_)
        closing = round_ > facts.task.rounds and self._closing is not None
        method = self._closing if closing and self._closing is not None else self.method
        payload = method.down(self.server, client, self._context(facts.task, round_))
        return Job(facts, payload, self._carried(facts), self.scenario.train.tensor(client), measured, closing)

    def tests(self, split: str) -> Iterator[EvalJob]:
        """The tests of all clients' personal models, sampled or not, after the present round."""
        for client in range(self.scenario.clients):
            facts = self.client_context(client, self.round)
            yield EvalJob(facts, self.server, self._carried(facts), self.scenario.train.tensor(client), split)

    def step(self) -> RoundReport:
        """Run one round and move on; after the last one, the method's closing round. If no participant has data, the
        server's state stays. A net on the server that draws from the generators of the process draws the round's own.
        """
        with self.tasks[0].streams.isolated("server", self.round + 1):
            return self._step()

    def _step(self) -> RoundReport:
        now = self.round + 1
        report = self._exchanged(self.method, now, self.participants(now))
        self.round = now
        if self._closing is not None and now == self.tasks[0].rounds:
            everyone = [k for k in range(self.scenario.clients) if len(self.scenario.train[k])]
            report = report.with_closing(self._exchanged(self._closing, now + 1, everyone))
        return report

    def _exchanged(self, method: Method, now: int, chosen: Sequence[int]) -> RoundReport:
        """What goes down, what clients do, and what the server makes of it."""
        began, ctx = time.perf_counter(), self._context(self.tasks[0], now)
        seconds, down = Seconds(), _Sizes()
        bad, received = frozenset(self.scenario.bad).intersection(chosen), dict[int, Record]()

        def made(client: int) -> Job:
            job = self.job(client, now, measured=now in term_balance.ROUNDS)
            down.add(job.payload)
            if client in bad:
                received[client] = job.payload
            return job

        uploads = _Uploads(self.engine.run(_Jobs(self._order_of_work(chosen), made)), chosen)
        if self.engine.may_drop_clients:
            chosen = uploads.close()
        seen = as_seen(uploads, bad.intersection(chosen), received, self.scenario, method.spec, self.task_of, now)
        diagnostics, asked, before = list[Diagnostic](), time.perf_counter(), uploads.waited
        read = method.unpack(self.server, seen, lambda client: self._context(self.task_of(client), now))
        server = self.server
        if chosen:
            server, read = self._aggregated(method, read, ctx)
            server, chosen = self.engine.keep(server), list(read)
        done = uploads.all()
        in_order = [done[client] for client in chosen]
        if uploads:
            self.server = server
            diagnostics = method.diagnostics(self.server, read, ctx)
            balance = term_balance.balance([one.norms for one in in_order])
            diagnostics = diagnostics + self._diverged(in_order, now)
            diagnostics = diagnostics + term_balance.diagnostics(method.name(), balance, now, ctx.task.rounds)
            diagnostics = diagnostics + self.engine.notes() + [note for one in in_order for note in one.notes]
        for one in in_order:
            if one.state:
                self.states[one.client] = self.engine.keep(one.state)
            else:  # a client without state starts from `client_init`
                self.states.pop(one.client, None)
        finished = time.perf_counter()
        seconds.train = min(sum(one.seconds for one in in_order), uploads.waited)  # side by side: wall-clock
        seconds.aggregate = finished - asked - (uploads.waited - before)
        seconds.move = max(0.0, finished - began - seconds.train - seconds.aggregate)
        return RoundReport(
            round=now,
            participants=tuple(chosen),
            bytes_up=uploads.sizes.total,
            bytes_down=down.total,
            terms=_mean_terms(in_order),
            steps=sum(one.steps for one in in_order),
            samples=sum(one.samples for one in in_order),
            held=self._held(chosen),
            seconds=seconds,
            diagnostics=diagnostics,
            figures=method.figures(self.server, ctx),
        )

    def _aggregated(self, method: Method, uploads: Uploads, ctx: ServerContext) -> tuple[Record, Uploads]:
        """The server's next state, and the uploads from which it was made: all of them, unless a guard refuses some."""
        if self.guard is None:
            return method.aggregate(self.server, uploads, ctx), uploads
        return self.guard(lambda accepted: method.aggregate(self.server, accepted, ctx), self.server, uploads)

    def _order_of_work(self, clients: Sequence[int]) -> list[int]:
        """The first ones in the order of their ids, in which the server sums; the last ones by size, the largest first,
        so that nobody waits long for the very last."""
        first, last = clients[:-_LAST], clients[-_LAST:]
        return [*first, *sorted(last, key=lambda client: -len(self.scenario.train[client]))]

    def _held(self, clients: Sequence[int]) -> dict[int, int]:
        """Training samples of some clients, by group."""
        held: dict[int, int] = {}
        for client in clients:
            group = self.task_of(client).group
            held[group] = held.get(group, 0) + len(self.scenario.train[client])
        return held

    def _diverged(self, done: Sequence[JobResult], now: int) -> list[Diagnostic]:
        """A diagnostic if the losses of some participants are not finite. Nothing is repaired, the run goes on."""
        lost = sum(not all(math.isfinite(value) for value in d.terms.values()) for d in done)
        if not lost:
            return []
        message = f"diverged: in round {now} the losses of {lost} of {len(done)} participants are not finite"
        return [Diagnostic(f"{self.method.name()}.diverged", message, float(lost))]


class _Sizes:
    """Bytes on the wire of the payloads of a round. What several clients get is measured once."""

    def __init__(self) -> None:
        self.total = 0
        self._last: tuple[Record, int] = ({}, 0)

    def add(self, payload: Record) -> None:
        """Count a payload; an empty one is not sent."""
        known, size = self._last
        if payload.keys() != known.keys() or any(payload[name] is not known[name] for name in known):
            size = wire_size(payload) if payload else 0
        self._last = payload, size
        self.total += size


class _Uploads(Mapping[int, Record]):
    """What the clients of a round send, in the order of their ids, each as soon as it is there: the server sums the
    first while others still train. `waited`: seconds that it had to wait."""

    def __init__(self, arriving: Iterator[JobResult], clients: Sequence[int]) -> None:
        self._arriving, self._clients = arriving, clients
        self._done: dict[int, JobResult] = {}
        self.sizes, self.waited = _Sizes(), 0.0

    def __getitem__(self, client: int) -> Record:
        if client not in self._done:
            self._wait_for(client)
        return self._done[client].payload

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def close(self) -> Sequence[int]:
        """Leave out clients that were lost: from now on, those that are there, once the last of them has ended."""
        self._clients = sorted(self.all())
        return self._clients

    def all(self) -> dict[int, JobResult]:
        """What all clients left, once the last of them has ended."""
        self._wait_for(None)
        return self._done

    def _wait_for(self, client: int | None) -> None:
        began = time.perf_counter()
        for done in self._arriving:
            self._done[done.client] = done
            self.sizes.add(done.payload)
            if done.client == client:
                break
        self.waited += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The jobs of a round's clients, each made when it is asked for."""

    clients: Sequence[int]
    made: Callable[[int], Job]

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[Job]:
        return map(self.made, self.clients)


def _mean_terms(done: Sequence[JobResult]) -> dict[str, float]:
    """Loss terms averaged over the clients that report them, weighted by samples processed; `done` by client id."""
    names = dict.fromkeys(name for d in done for name in d.terms)
    means = {}
    for name in names:
        pairs = [(d.terms[name], d.samples) for d in done if name in d.terms and d.samples]
        total = sum(weight for _, weight in pairs)
        means[name] = sum(value * weight for value, weight in pairs) / total if total else 0.0
    return means


def _counted(scenario: Scenario, client: int) -> Tensor:
    """A client's samples of each class [C]; where only the client knows them, spread evenly."""
    if scenario.remote:
        each_class, rest = divmod(len(scenario.train[client]), scenario.num_classes)
        return each_class + (torch.arange(scenario.num_classes) < rest).long()
    labels = scenario.train_set.y[scenario.train.tensor(client)]
    return torch.bincount(labels, minlength=scenario.num_classes)
