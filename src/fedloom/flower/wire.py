"""The messages between server and nodes: facts as JSON, and a record as safetensors bytes. Reading executes nothing.

Reading is strict: unknown keys, wrong types and another version of the format are refused. The messages of jobs and
results have the fields of the dataclasses in `engine/jobs.py`, less those that stay on one side. The server believes no
node, so every field has a bound: the `Field` in its annotation, or the default of its type; a field without a bound
ends the import.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from fedloom.core.errors import FedloomError, printable
from fedloom.core.records import to_plain
from fedloom.engine.jobs import (
    BODY_FIELDS,
    EvalJob,
    EvalResult,
    Job,
    JobResult,
    NewcomerJob,
    NewcomerResult,
    field_types,
)
from fedloom.evaluation.metric import Metric
from fedloom.flower.node_data import ChannelMoments, Scale

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
Name: TypeAlias = Annotated[str, Field(max_length=200)]
_MAX_ELEMENTS, _MAX_KEYS = 16, 64  # of a sequence, of a mapping
_UPPER_BOUNDS = ("le", "lt", "max_length", "pattern", "allow_inf_nan")  # arguments of `Field`; each needs one
_BY_TYPE: Mapping[Any, Any] = {
    bool: bool,
    int: Count,
    float: float,
    str: Name,
    type(None): None,
    Metric: Annotated[Mapping[Name, Any], Field(max_length=_MAX_KEYS)],  # `MetricStates.from_plain` checks the values
}

_SCALARS = (bool, int, float, str, type(None))


class Facts(BaseModel):
    """Facts that are read strictly."""

    # A loss that is not finite must be able to travel: the server reports it as the simulation does.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


def derive_model(kind: Any, base: type[Facts], without: Collection[str] = (), /, **more: Any) -> type[Any]:
    """Return a subclass of `base` with the fields of a dataclass.

    kind: the dataclass. base: class of the facts of one kind of message. without: names of fields that are left out.
    more: further fields, as `pydantic.create_model` takes them. Raises `TypeError` for a field that has no bound, or
    the name of another fact.
    """
    derived: dict[str, Any] = {}
    for name, type_ in field_types(kind, bounds=True).items():
        if name in without:
            continue
        if name in base.model_fields or name in more:
            raise TypeError(f"{kind.__name__}.{name}: every message has a fact of this name; use another one")
        try:
            derived[name] = (_bounded(type_), ...)
        except _UnboundedError as error:
            raise TypeError(
                f"{kind.__name__}.{name}: {error} has no bound in a message; use numbers, texts, mappings, sequences "
                "or dataclasses of them, or send it in the payload"
            ) from None
    return create_model(f"{kind.__name__}Facts", __base__=base, __doc__=kind.__doc__, **derived, **more)


@functools.cache
def facts_model(kind: Any) -> type[Facts]:
    """Return the model of a dataclass with all its fields."""
    return derive_model(kind, Facts)


def restore_fields(facts: BaseModel, kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that `facts` has, with printable text; states of metrics stay plain."""
    types_ = field_types(kind)
    shared = [name for name in types_ if name in type(facts).model_fields]
    return {name: _restored(getattr(facts, name), types_[name]) for name in shared}


class _UnboundedError(Exception):
    """A type that has no bound."""


def _bounded(type_: Any) -> Any:
    """Return the type of a field, with bounds. Raises `_UnboundedError`."""
    bounds: list[Any] = []
    if get_origin(type_) is Annotated:
        type_, *metadata = get_args(type_)
        bounds = [entry for entry in metadata if isinstance(entry, FieldInfo) and _has_upper_bound(entry)]
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Literal:
        return type_
    if origin in (Union, types.UnionType) and all(argument in _SCALARS for argument in arguments):
        return Union[tuple(_BY_TYPE[argument] for argument in arguments)]  # noqa: UP007 (of a tuple)
    if origin in (dict, Mapping):
        key, value = map(_bounded, arguments)
        return Annotated[Mapping[key, value], *(bounds or [Field(max_length=_MAX_KEYS)])]  # type: ignore[valid-type]
    if origin in (list, Sequence):
        element = _bounded(arguments[0])
        return Annotated[Sequence[element], *(bounds or [Field(max_length=_MAX_ELEMENTS)])]  # type: ignore[valid-type]
    if bounds and type_ in _SCALARS:
        return Annotated[type_, *bounds]
    if isinstance(type_, Hashable) and type_ in _BY_TYPE:
        return _BY_TYPE[type_]
    if isinstance(type_, type) and is_dataclass(type_):
        return facts_model(type_)
    raise _UnboundedError(getattr(type_, "__name__", str(type_)))


def _has_upper_bound(field: FieldInfo) -> bool:
    return any(getattr(entry, name, None) is not None for entry in field.metadata for name in _UPPER_BOUNDS)


def _restored(value: Any, type_: Any) -> Any:
    """Return a field's value with dataclasses again in place of their facts."""
    if isinstance(value, BaseModel):
        return type_(**restore_fields(value, type_))
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping) and type_ is not Metric:
        return {key: _restored(element, get_args(type_)[1]) for key, element in value.items()}
    if isinstance(value, Sequence):
        return [_restored(element, get_args(type_)[0]) for element in value]
    return value


VERSION = 2
MAX_FACTS = 1 << 20  # characters of a message's facts, without the states of metrics
_NO_FACTS = {*BODY_FIELDS, "ctx", "indices", "state", "client"}  # a node has its own; every message says its client
_Text: TypeAlias = Annotated[str, Field(max_length=1 << 16)]
_Samples: TypeAlias = Annotated[int, Field(ge=0, le=2**40)]  # sums of such counts fit 64 bits


class MessageError(FedloomError):
    """A message that cannot be read, or that does not answer the request."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it travels. facts: JSON. body: the bytes of a record (`core/records.py`), or nothing."""

    facts: str
    body: bytes = b""


class _MessageFacts(Facts):
    wire_version: Literal[2] = 2
    run: Name

    def to_message(self, body: bytes = b"") -> Message:
        """Return these facts as a message with the bytes of a record."""
        return Message(self.model_dump_json(), body)


class Request(_MessageFacts, extra="ignore"):
    """The facts of every request from the server to a node.

    do: join the run, train, test, or serve a client that never trains. fingerprint, version: of the config and of
    fedloom. state_round: the round after which the node stored the private state to continue from, null for none.
    scale: of numeric features, once the nodes' columns are standardised.
    """

    do: Literal["join", "train", "test", "serve"]
    fingerprint: Name
    version: Name
    client: int = -1
    round: Count = 0
    state_round: Count | None = None
    scale: Scale | None = None


class JoinRequest(Request, extra="forbid"):
    """A request to join the run."""

    do: Literal["join"] = "join"


class JobRequest(Request, extra="forbid"):
    """A request to do a job, or to test."""


class JoinReply(_MessageFacts):
    """The node's client, a token of its disk, its training samples and class names; moments if nodes pool them.

    clock: the node's time, in seconds since 1970.
    """

    kind: Literal["joined"] = "joined"
    client: Count
    token: Name
    samples: _Samples
    classes: tuple[Name, ...]
    moments: ChannelMoments | None = None
    clock: Annotated[float, Field(ge=0, le=2**40)] | None = None


class ResultReply(_MessageFacts):
    """The result of a job or of tests."""

    kind: str
    client: Count
    round: Count


class UploadReply(ResultReply):
    """The result of a job, with its upload as the body. has_state: whether the node stored a private state."""

    has_state: bool


class ErrorReply(_MessageFacts):
    """Why a node cannot do what was requested. raised: the traceback of an exception in the client's work, if any."""

    kind: Literal["failed"] = "failed"
    client: int = -1
    round: Count = 0
    error: _Text
    raised: _Text = ""


Reply: TypeAlias = JoinReply | ResultReply | ErrorReply
AnyJob: TypeAlias = Job | EvalJob | NewcomerJob
AnyResult: TypeAlias = JobResult | EvalResult | NewcomerResult
F = TypeVar("F", bound=_MessageFacts)
_WORDS: Mapping[Any, str] = {  # of jobs, the `do` of the request; of results, the `kind` of the reply
    Job: "train",
    EvalJob: "test",
    NewcomerJob: "serve",
    JobResult: "trained",
    EvalResult: "scored",
    NewcomerResult: "served",
}


def _word(kind: Any) -> str:
    return next(word for job_or_result, word in _WORDS.items() if issubclass(kind, job_or_result))


@functools.cache
def request_type(kind: Any) -> type[JobRequest]:
    """Return the request that carries jobs of a kind."""
    do = _word(kind)
    return derive_model(kind, JobRequest, _NO_FACTS, do=(Literal[do], do))


@functools.cache
def reply_type(kind: Any) -> type[ResultReply]:
    """Return the reply that carries results of a kind."""
    base, word = UploadReply if issubclass(kind, JobResult) else ResultReply, _word(kind)
    return derive_model(kind, base, _NO_FACTS, kind=(Literal[word], word))


for _job_kind in (Job, EvalJob, NewcomerJob):  # a field that has no bound ends the import
    request_type(_job_kind)
TrainReply, EvalReply, ServeReply = map(reply_type, (JobResult, EvalResult, NewcomerResult))


def request_for(job: AnyJob, **facts: Any) -> JobRequest:
    """Return the request for a job. facts: those that every request has."""
    kind: Any = type(job)
    return _with_fields(request_type(kind), job, facts)


def reply_with(result: AnyResult, **facts: Any) -> ResultReply:
    """Return the reply with a result. facts: those that every reply has."""
    if isinstance(result, JobResult):
        facts["has_state"] = bool(result.state)
    kind: Any = type(result)
    return _with_fields(reply_type(kind), result, facts)


def _with_fields(model: type[F], content: AnyJob | AnyResult, facts: dict[str, Any]) -> F:
    kind: Any = type(content)
    shared = [name for name in field_types(kind) if name in model.model_fields]
    fields = {name: to_plain(getattr(content, name)) for name in shared}
    return model.model_validate_json(json.dumps(fields | facts, default=BaseModel.model_dump))


def read(message: Message, kind: type[F], limit: int = MAX_FACTS) -> F:
    """Read the facts of a message that is a `kind`.

    Raises `MessageError` for anything else, and for facts of more than `limit` characters.
    """
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
    """Read a reply, or the node's error. Raises as `read`.

    message: the message of the node. kind: the class of the facts that the request asks for. limit: characters that the
    facts may have, at most.
    """
    try:
        return read(message, ErrorReply, limit)
    except MessageError:
        return read(message, kind, limit)
