"""The messages between server and nodes: facts as JSON, and a record as safetensors bytes. Reading executes nothing.
Reading is strict: unknown keys, wrong types and another version of the format are refused. The server believes no node,
so every field has a bound."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.records import to_plain
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult, NewcomerJob, NewcomerResult, Stage
from fedloom.flower.message import Message as Message
from fedloom.flower.message import MessageError as MessageError
from fedloom.flower.node_data import ChannelMoments, Ranges, Scale

VERSION = 3
MAX_FACTS = 1 << 20  # characters of a message's facts, without the states of metrics
MAX_REQUEST = 1 << 24  # characters of a request, which may have the states of all nodes
MAX_PARTS = 1 << 16  # of a body
Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
Name: TypeAlias = Annotated[str, Field(max_length=200)]
_Text: TypeAlias = Annotated[str, Field(max_length=1 << 16)]
_Samples: TypeAlias = Annotated[int, Field(ge=0, le=2**40)]  # sums of such counts fit 64 bits
_Numbers: TypeAlias = Annotated[Mapping[Name, float], Field(max_length=64)]


class _Facts(BaseModel):
    # A loss that is not finite must be able to travel: the server reports it as the simulation does.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


class Parts(_Facts):
    """A body, which travels whole or in parts. digest: its sha256. part_bytes: of all parts but the last."""

    size: Count
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    part_bytes: Annotated[int, Field(gt=0, lt=2**63)]

    @classmethod
    def of(cls, body: bytes, part_bytes: int) -> "Parts":
        return cls(size=len(body), digest=hashlib.sha256(body).hexdigest(), part_bytes=part_bytes)

    def __len__(self) -> int:
        return -(-self.size // self.part_bytes)

    def span(self, index: int) -> slice:
        """Return where a part is in the body."""
        return slice(index * self.part_bytes, index * self.part_bytes + self.size_of(index))

    def size_of(self, index: int) -> int:
        return min(self.part_bytes, self.size - index * self.part_bytes)

    def checked(self, body: bytes) -> bytes:
        """Return a body whose parts have been joined. Raises `MessageError` if it is another one."""
        if len(body) != self.size or hashlib.sha256(body).hexdigest() != self.digest:
            announced = f"the one of {self.size:,} bytes that was announced"
            raise MessageError(f"a body of {len(body):,} bytes is not {announced}")
        return body


class _MessageFacts(_Facts):
    # parts: of the whole body. part: the one that is the message's body; None if it has the whole body, or none.
    wire_version: Literal[3] = 3
    run: Name
    parts: Parts | None = None
    part: Count | None = None

    def to_message(self, body: bytes = b"") -> Message:
        """Return these facts as a message with the bytes of a record."""
        return Message(self.model_dump_json(), body)


# Read before its handler is known; the handler reads the message again, as the kind that refuses unknown keys.
class Request(_MessageFacts, extra="ignore"):
    """The facts of every request from the server to a node. do: serve is a test of a client that never trains.
    fingerprint, version: of the config and of fedloom. state_round: of the private state to continue from. scale: once
    the nodes' columns are standardised. job: its name; asked again, a node continues, and does nothing twice. wait:
    seconds after which it answers with its progress. fetch: the part of the result's body to send."""

    do: Literal["join", "train", "test", "serve"]
    fingerprint: Name
    version: Name
    client: int = -1
    round: Count = 0
    state_round: Count | None = None
    scale: Scale | None = None
    job: Name = ""
    wait: Annotated[float, Field(ge=0)] | None = None
    fetch: Count = 0


class JoinRequest(Request, extra="forbid"):
    """A request to join the run; it has what all requests say of the run. ranges: in which nodes count their cells."""

    do: Literal["join"] = "join"
    ranges: Ranges = {}


class TrainRequest(Request, extra="forbid"):
    """A request to do a `Job`, whose payload is the body."""

    do: Literal["train"] = "train"
    measured: bool
    stage: Stage


class PlainStates(_Facts):
    """`MetricStates` of plain values, which `states_from_plain` checks."""

    total: _Samples
    states: Annotated[Mapping[Name, Annotated[Mapping[Name, Any], Field(max_length=64)]], Field(max_length=64)]


class EvalRequest(Request, extra="forbid"):
    """A request to do an `EvalJob`; the server's state is the body."""

    do: Literal["test"] = "test"
    split: Annotated[str, Field(pattern="^(test|val)$")]
    protocol: Name | None
    bins: Mapping[Name, Sequence[Sequence[Sequence[Count]]]] = {}
    pooled: PlainStates | None = None
    decision: tuple[Count, float] | None = None


class ServeRequest(Request, extra="forbid"):
    """A request to do a `NewcomerJob`; the server's state is the body."""

    do: Literal["serve"] = "serve"


class JoinReply(_MessageFacts):
    """The facts of a node that joins. token: of its disk. clock: in seconds since 1970. leaks: whether test samples
    repeat training data. unreadable: samples left out. labels: samples of each class, if compared; below five, 0."""

    kind: Literal["joined"] = "joined"
    client: Count
    token: Name
    samples: _Samples
    classes: tuple[Name, ...]
    moments: ChannelMoments | None = None
    clock: Annotated[float, Field(ge=0, le=2**40)] | None = None
    leaks: bool = False
    unreadable: _Samples = 0
    labels: tuple[_Samples, ...] = ()


class Note(_Facts):
    """A `Diagnostic`."""

    code: Name
    message: Annotated[str, Field(max_length=2000)]
    figure: float


class ResultReply(_MessageFacts):
    """The result of a job or of tests."""

    client: Count
    round: Count


class TrainReply(ResultReply):
    """A `JobResult`, with its upload as the body. has_state: whether the node stored a private state."""

    kind: Literal["trained"] = "trained"
    terms: _Numbers
    steps: Count
    samples: Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    norms: _Numbers
    notes: Annotated[Sequence[Note], Field(max_length=16)]
    has_state: bool


class EvalReply(ResultReply):
    """An `EvalResult`."""

    kind: Literal["scored"] = "scored"
    tested: Annotated[Mapping[Name, PlainStates], Field(max_length=64)]
    samples: _Samples


class ServeReply(ResultReply):
    """A `NewcomerResult`."""

    kind: Literal["served"] = "served"
    tested: Annotated[Mapping[Name, PlainStates], Field(max_length=1000)]


class ErrorReply(_MessageFacts):
    """Why a node cannot do what was requested. raised: the traceback of an exception in the client's work, if any.
    lost: whether the work was lost with its process, so that it may be requested again."""

    kind: Literal["failed"] = "failed"
    client: int = -1
    round: Count = 0
    error: _Text
    raised: _Text = ""
    lost: bool = False


class ProgressReply(_MessageFacts):
    """How far a job is. fraction: of the `phase`. needs: parts of the body that the node lacks. seconds: since the job
    began in its process. work: any number that grows while the node works."""

    kind: Literal["progress"] = "progress"
    phase: Name
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    detail: Name = ""
    needs: Annotated[Sequence[Count], Field(max_length=MAX_PARTS)] = ()
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    work: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class AnyReply(_MessageFacts, extra="ignore"):
    """The facts that all replies have, read before the kind of a reply is known."""

    kind: Name


Reply: TypeAlias = JoinReply | TrainReply | EvalReply | ServeReply | ErrorReply
AnyJob: TypeAlias = Job | EvalJob | NewcomerJob
F = TypeVar("F", bound=_MessageFacts)


def request_for(job: AnyJob, identity: JoinRequest, state_round: int | None = None) -> Request:
    """Return the request for a job in the run that `identity` describes. state_round: as in `Request`."""
    facts: dict[str, Any] = {name: getattr(identity, name) for name in ("run", "fingerprint", "version", "scale")}
    facts |= {"client": job.ctx.client, "round": job.ctx.round, "state_round": state_round}
    if isinstance(job, Job):
        return TrainRequest(measured=job.measured, stage=job.stage, **facts)
    if isinstance(job, EvalJob):
        bins = {name: counts.tolist() for name, counts in job.bins.items()}
        pooled = None if job.pooled is None else PlainStates(**to_plain(job.pooled))
        facts |= {"split": job.split, "protocol": job.protocol, "decision": job.decision}
        return EvalRequest(bins=bins, pooled=pooled, **facts)
    return ServeRequest(**facts)


def reply_with(result: JobResult | EvalResult | NewcomerResult, request: Request) -> Reply:
    """Return the reply to a `request` with its `result`."""
    facts: dict[str, Any] = {"run": request.run, "round": request.round, "client": result.client}
    if isinstance(result, JobResult):
        notes, facts["has_state"] = [Note(**asdict(note)) for note in result.notes], bool(result.state)
        facts |= {"terms": result.terms, "norms": result.norms, "steps": result.steps}
        return TrainReply(samples=result.samples, seconds=result.seconds, notes=notes, **facts)
    tested = {name: PlainStates(**to_plain(states)) for name, states in result.tested.items()}
    if isinstance(result, EvalResult):
        return EvalReply(tested=tested, samples=result.samples, **facts)
    return ServeReply(tested=tested, **facts)


def read(message: Message, kind: type[F], limit: int = MAX_FACTS) -> F:
    """Read the facts of a `message` of one `kind`, of at most `limit` characters. Raises `MessageError` otherwise."""
    if len(message.facts) > limit:
        raise MessageError(f"a message of {len(message.facts)} characters; {limit} at most")
    try:
        return kind.model_validate_json(message.facts)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first_error["loc"]))[:80] or "facts"
        reason = " ".join(f"{field}: {first_error['msg']}".split())[:200]
        raise MessageError(f"no message of version {VERSION} ({reason})") from None


def read_reply(message: Message, kind: type[F], limit: int = MAX_FACTS) -> F | ErrorReply:
    """Read the reply of one `kind` in a `message`, or the node's error. Raises as `read`."""
    try:
        # The error first: for an unreadable reply, the second attempt names the fields of the expected kind.
        return read(message, ErrorReply, limit)
    except MessageError:
        return read(message, kind, limit)
