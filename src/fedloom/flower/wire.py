"""The messages between server and nodes: facts as JSON, and a record as safetensors bytes. Reading executes nothing.

Reading is strict: unknown keys, wrong types and another version of the format are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import FedloomError
from fedloom.flower.moments import Moments, Scale

VERSION = 2
MAX_FACTS = 1 << 20  # characters of a message's facts
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
_Name: TypeAlias = Annotated[str, Field(max_length=200)]
_Text: TypeAlias = Annotated[str, Field(max_length=1 << 16)]
_Samples: TypeAlias = Annotated[int, Field(ge=0, le=2**40)]  # sums of such counts fit 64 bits
# A loss that is not finite must be able to travel: the server reports it as the simulation does.
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")
_MAX_NOTES, _MAX_TERMS = 16, 64  # in one reply


class MessageError(FedloomError):
    """A message that cannot be read, or that does not answer the request."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it travels. facts: JSON. body: the bytes of a record (`core/records.py`), or nothing."""

    facts: str
    body: bytes = b""


class _MessageFacts(BaseModel):
    model_config = _STRICT

    wire_version: Literal[2] = 2
    run: _Name

    def to_message(self, body: bytes = b"") -> Message:
        """Return these facts as a message with the bytes of a record."""
        return Message(self.model_dump_json(), body)


class Request(_MessageFacts):
    """A request from the server to a node.

    do: join the run, train, or test. fingerprint, version: of the config and of fedloom. state_round: the round after
    which the node stored the private state to continue from, 0 for none. measured, closing: as in a `Job`. split: of
    a test. scale: of numeric features, once the nodes' columns are standardised.
    """

    do: Literal["join", "train", "test"]
    fingerprint: _Name
    version: _Name
    client: int = -1
    round: _Count = 0
    state_round: _Count = 0
    measured: bool = False
    closing: bool = False
    split: Literal["test", "val"] = "test"
    scale: Scale | None = None


class Note(BaseModel):
    """A diagnostic of the node's engine."""

    model_config = _STRICT

    code: _Name
    message: Annotated[str, Field(max_length=2000)]
    figure: float


class JoinReply(_MessageFacts):
    """The node's client, a token of its disk, its training samples and class names; moments if nodes pool them."""

    kind: Literal["joined"] = "joined"
    client: _Count
    token: _Name
    samples: _Samples
    classes: tuple[_Name, ...]
    moments: Moments | None = None


class TrainReply(_MessageFacts):
    """The facts of a client's result; its upload is the body. has_state: whether the node stored a private state."""

    kind: Literal["trained"] = "trained"
    client: _Count
    round: _Count
    steps: _Count
    samples: _Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    terms: Annotated[Mapping[_Name, float], Field(max_length=_MAX_TERMS)]
    norms: Annotated[Mapping[_Name, float], Field(max_length=_MAX_TERMS)]
    notes: Annotated[Sequence[Note], Field(max_length=_MAX_NOTES)]
    has_state: bool


class PredictorResult(BaseModel):
    """The states of all metrics of one predictor on `total` samples, as plain numbers (`MetricStates.to_plain`)."""

    model_config = _STRICT

    total: _Samples
    states: Annotated[Mapping[_Name, Mapping[_Name, Any]], Field(max_length=_MAX_TERMS)]


class EvalReply(_MessageFacts):
    """The results of a client's test, by predictor. samples: those that adapting processed."""

    kind: Literal["scored"] = "scored"
    client: _Count
    round: _Count
    results: Annotated[Mapping[_Name, PredictorResult], Field(max_length=_MAX_TERMS)]
    samples: _Samples


class ErrorReply(_MessageFacts):
    """Why a node cannot do what was requested. raised: the traceback of an exception in the client's work, if any."""

    kind: Literal["failed"] = "failed"
    client: int = -1
    round: _Count = 0
    error: _Text
    raised: _Text = ""


Reply: TypeAlias = JoinReply | TrainReply | EvalReply | ErrorReply
F = TypeVar("F", bound=_MessageFacts)


def read(message: Message, kind: type[F]) -> F:
    """Read the facts of a message that is a `kind`. Raises `MessageError` for anything else."""
    if len(message.facts) > MAX_FACTS:
        raise MessageError(f"a message of {len(message.facts)} characters; {MAX_FACTS} at most")
    try:
        return kind.model_validate_json(message.facts)
    except ValidationError as error:
        first_error = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first_error["loc"]))[:80] or "facts"
        reason = " ".join(f"{field}: {first_error['msg']}".split())[:200]
        raise MessageError(f"no message of version {VERSION} ({reason})") from None


def read_reply(message: Message, kind: type[F]) -> F | ErrorReply:
    """Read a reply that is a `kind`, or the node's error. Raises `MessageError` for anything else."""
    try:
        return read(message, ErrorReply)
    except MessageError:
        return read(message, kind)
