"""Jobs and results: a client's work in a round or a test, its outcome, and the uploads that an attack forges."""

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import Tensor, nn

from fedloom.core.errors import ClientError, ConfigError, FedloomError, ServerError
from fedloom.core.records import Record, get_number, wire_size
from fedloom.data.attacks import AttackRound, UploadAttack
from fedloom.data.augment import Augmentation
from fedloom.data.scenario import Scenario
from fedloom.evaluation.metric import MetricStates
from fedloom.methods.contract.contexts import ClientContext, Diagnostic, Start, Task
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Choose, Consts, OptimizerSpec, Phase
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Net, Role

_UNTOUCHED = frozenset({Role.BN_STAT, Role.COUNTER, Role.BUFFER})  # roles of entries that attacks leave alone


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How clients train unless a phase says otherwise. `augment` is for the batches of training phases alone."""

    batch_size: int
    optimizer: OptimizerSpec
    augment: Augmentation = field(default_factory=Augmentation)


Stage: TypeAlias = Literal["opening", "round", "closing"]


def methods_by_stage(method: Method) -> Mapping[Stage, Method]:
    """Return the method of each stage of a run; a stage that the run lacks has none."""
    with hooked(method, "opening", 0):
        opening = method.opening()
    with hooked(method, "closing", 0):
        closing = method.closing()
    stages: dict[Stage, Method | None] = {"opening": opening, "round": method, "closing": closing}
    return {stage: of_stage for stage, of_stage in stages.items() if of_stage is not None}


def require_data(method: Method, scenario: Scenario) -> None:
    """Raise `ConfigError` for several labels if the method knows one, and for missing or unfit data at the server."""
    if scenario.train_set.multi and method.spec.labels == "single":
        raise ConfigError(
            f"method = '{method.name()}' cannot train on samples with several labels: {method.spec.single_because}; "
            "take one that `fedloom methods --several-labels` lists, as fedavg, or ask for a single label"
        )
    needed, public = method.spec.public, scenario.public
    if needed is None:
        return
    if public is None or not len(public):
        problem = "set scenario.public to a share of the training samples, e.g. 0.05, or to {source: name, its keys}"
        raise ConfigError(f"{method.name()} needs data at the server, and it has none: {problem}")
    if needed == "labels" and public.classes != scenario.class_names:
        classes = public.classes, scenario.class_names
        server_classes, client_classes = (", ".join(n[:6]) + (", ..." if len(n) > 6 else "") for n in classes)
        raise ConfigError(
            f"scenario.public: {method.name()} uses the labels of the server's data, whose classes are "
            f"{server_classes}; the clients' are {client_classes}; take a source with the same classes"
        )


_AWAY = "kept by the client since round"


def kept_remotely(round_: int) -> Record:
    """Return a placeholder for a state that the client itself keeps, as it was after a round."""
    return {_AWAY: round_}


def kept_since(state: Record) -> int | None:
    """The round of a state that the client keeps itself, 0 after an opening round; None for every other state."""
    return int(get_number(state, _AWAY)) if _AWAY in state else None


@dataclass(frozen=True, slots=True)
class Job:
    """One client's work for one round."""

    ctx: ClientContext
    payload: Record
    state: Record
    indices: Tensor  # the client's training samples in the shared set [n_k], int64
    measured: bool = False  # whether gradients of the loss's terms are measured in the last step of training phases
    stage: Stage = "round"
    steps: int | None = None  # the most steps of a training phase


class SentJobs:
    """The jobs of a round's clients, made by `make` when an engine asks for them, so that few payloads are in memory.
    Counts their bytes; keeps payloads of clients in `kept`, and each architecture's first participant (`samples`)."""

    def __init__(self, clients: Sequence[int], make: Callable[[int], Job], kept: Container[int]) -> None:
        self._clients, self._make, self._kept = clients, make, kept
        self.bytes: dict[int, int] = {}  # by client
        self.payloads: dict[int, Record] = {}
        self.samples: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Job]:
        last: Record = {}
        size = 0
        for client in self._clients:
            job = self._make(client)
            payload, group = job.payload, job.ctx.task.group
            # a payload for several clients is measured once; an empty one is not sent
            if payload.keys() != last.keys() or any(payload[name] is not last[name] for name in payload):
                size = wire_size(payload) if payload else 0
            last = payload
            self.bytes[client] = size
            if client in self._kept:
                self.payloads[client] = payload
            # not the first that starts, because engines take the largest clients first
            if group not in self.samples or client < self.samples[group].ctx.client:
                self.samples[group] = job
            yield job


@dataclass(frozen=True, slots=True)
class JobResult:
    """The outcome of a job: upload, next state, mean loss terms of the last epoch, steps and samples processed, and
    gradient norms of loss terms if the job measures them."""

    client: int
    upload: Record
    state: Record
    terms: Mapping[str, float]
    steps: int
    samples: int
    seconds: float
    norms: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[Diagnostic] = ()


@dataclass(frozen=True, slots=True)
class EvalJob:
    """A test: of one client's personal model, or of the server's model on a client's samples or on a slice of all."""

    ctx: ClientContext  # with client -1, -2, ... for the first, second, ... slice (`Evaluator.states`)
    server: Record
    state: Record
    indices: Tensor  # the client's training samples [n_k], for methods that adapt
    split: str
    protocol: str | None = None  # None takes the run's main one
    bins: Mapping[str, Tensor] = field(default_factory=dict)  # of a first test (`Evaluator.states`)
    pooled: MetricStates | None = None  # of a first test, if nodes shall make sums for intervals (`with_group_sums`)
    decision: tuple[int, float] | None = None  # class and threshold, for these sums


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The outcome of a test: metric states by predictor, and the number of `samples` that adapting processed."""

    client: int  # below 0 for a slice
    tested: dict[str, MetricStates]
    samples: int = 0


@dataclass(frozen=True, slots=True)
class NewcomerJob:
    """The tests of the trained run on a client that never trained, which it makes from the server's state alone."""

    ctx: ClientContext
    server: Record


@dataclass(frozen=True, slots=True)
class NewcomerResult:
    """The outcome of a newcomer's tests: metric states by the name of the way in which it was served."""

    client: int
    tested: dict[str, MetricStates]


@dataclass(frozen=True, slots=True)
class Draws:
    """A client's generators of one round: the order of its samples, and how they are augmented, if they are."""

    order: np.random.Generator
    augment: np.random.Generator | None


@dataclass(slots=True)
class Client:
    """One client in its round: its job, the results of `begin` and `phases`, and its own results so far."""

    job: Job
    method: Method
    start: Start
    phases: Sequence[Phase]
    draws: Draws
    consts: Consts
    collected: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    samples: int = 0

    def trained(self, terms: dict[str, float], collected: dict[str, Any], steps: int, samples: int) -> None:
        """Add a training phase: mean terms of its last epoch, statistics (collected), counts of steps and samples."""
        self.terms = terms or self.terms
        self.steps, self.samples = self.steps + steps, self.samples + samples
        self.learned(collected)
        self.collected |= collected

    def learned(self, results: dict[str, Any]) -> None:
        """Statistics that later losses may use."""
        self.consts = self.consts | results

    @property
    def remaining_ratio(self) -> float:
        """Remaining rounds divided by finished rounds; decides whether a speed-up pays off."""
        ctx = self.job.ctx
        return max(0, ctx.task.rounds - ctx.round) / ctx.round if ctx.round else 0.0

    def notes(self) -> list[Diagnostic]:
        """Report parts of the data that are no parts, because the client has a single sample."""
        parts = [phase.part for phase in self.phases if not isinstance(phase, Choose) and phase.part is not None]
        if not parts or self.job.indices.numel() > 1:
            return []
        names = ", ".join(sorted({part.name for part in parts}))
        message = f"client {self.job.ctx.client} has a single sample: it is in the part {names} and in the others, too"
        return [Diagnostic("data.part_of_one_sample", message, 1.0)]


@contextlib.contextmanager
def hooked(
    method: Method, hook: str, round_: int, client: int = -1, error: type[ClientError] = ServerError
) -> Iterator[None]:
    """A block that calls one hook, for a client or (-1) for all: an exception becomes an `error` that names method,
    hook, round and client. Errors that a method words itself pass, unless a `ClientError` is to wrap them."""
    try:
        yield
    except Exception as failure:
        if isinstance(failure, FedloomError) and error is ServerError:
            raise
        raise error(client, round_, hook, failure, method.name()) from failure


def staged(ctx: ClientContext, stage: str, method: Method) -> contextlib.AbstractContextManager[None]:
    """A block in which `method` works on the client of `ctx`; an exception becomes a `ClientError` of that stage."""
    return hooked(method, stage, ctx.round, ctx.client, ClientError)


def extra_of(method: Method, net: Net) -> nn.Module | None:
    """Return what a method adds to a net."""
    with hooked(method, "extra", 0):
        return method.extra(net)


def with_forged(
    uploads: Mapping[int, Record],
    bad: frozenset[int],
    payloads: Mapping[int, Record],
    scenario: Scenario,
    spec: Spec,
    task_of: Callable[[int], Task],
    round_: int,
) -> Mapping[int, Record]:
    """Return the uploads of a round, with those of bad clients forged if the scenario has an attack on uploads. Forgers
    know the payloads that they received, and each draws from its own stream of round `round_`."""
    attack = scenario.attack
    if not bad or not isinstance(attack, UploadAttack):
        return uploads
    changes = [name for name, sent in spec.sends.items() if sent.form == "change"]
    # By id: colluding changes are summed, and floating-point sums depend on their order.
    honest = {client: uploads[client] for client in sorted(bad)}
    forged = {}
    for client, upload in honest.items():
        task, shared = task_of(client), list(honest.values()) if attack.colludes else [upload]
        rng = task.streams.numpy("attack", round_, client)
        known = AttackRound(len(uploads), len(bad), task.names(_UNTOUCHED), changes, rng)
        forged[client] = attack.forge_upload(upload, payloads[client], shared, known)
    return {client: forged.get(client, upload) for client, upload in uploads.items()}
