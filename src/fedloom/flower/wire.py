"""What server and nodes write to each other: facts as JSON, and a record as safetensors bytes. Nothing is executed.

A letter is read strictly: unknown keys, wrong types and another version are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import FedloomError
from fedloom.flower.moments import Moments, Scale

VERSION = 2
MAX_FACTS = 1 << 20  # characters of a letter's facts
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
_Name: TypeAlias = Annotated[str, Field(max_length=200)]
_Text: TypeAlias = Annotated[str, Field(max_length=1 << 16)]
_Samples: TypeAlias = Annotated[int, Field(ge=0, le=2**40)]  # sums of such counts fit 64 bits
# A loss that is not finite must be able to travel: the server reports it as the simulation does.
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")
_NOTES, _TERMS = 16, 64  # at most, in one answer


class MessageError(FedloomError):
    """A letter that cannot be read, or does not belong here."""


@dataclass(frozen=True, slots=True)
class Message:
    """As it travels. `body`: a record's bytes (`core/records.py`), or nothing."""

    facts: str
    body: bytes = b""


class _MessageFacts(BaseModel):
    model_config = _STRICT

    letter: Literal[1] = 1
    run: _Name

    def to_message(self, body: bytes = b"") -> Message:
        """These facts with a record's bytes."""
        return Message(self.model_dump_json(), body)


class Request(_MessageFacts):
    """From the server to a node.

    do: join (say who you are), train or test. fingerprint, version: of the config and of fedloom. kept: the round that
    left the private state to go on from, 0 for the first one. measured, closing: as in a `Job`. split: of a test.
    scale: of measured features, where nodes have pooled it.
    """

    do: Literal["join", "train", "test"]
    fingerprint: _Name
    version: _Name
    client: int = -1
    round: _Count = 0
    kept: _Count = 0
    measured: bool = False
    closing: bool = False
    split: Literal["test", "val"] = "test"
    scale: Scale | None = None


class Note(BaseModel):
    """A diagnostic on its way."""

    model_config = _STRICT

    code: _Name
    message: Annotated[str, Field(max_length=2000)]
    figure: float


class JoinReply(_MessageFacts):
    """Who a node is: its client, a token of its disk, its samples and class names; moments where nodes pool them."""

    kind: Literal["joined"] = "joined"
    client: _Count
    token: _Name
    samples: _Samples
    classes: tuple[_Name, ...]
    moments: Moments | None = None


class TrainReply(_MessageFacts):
    """What a `JobResult` tells beside its payload. kept: whether the node keeps a private state of this round."""

    kind: Literal["trained"] = "trained"
    client: _Count
    round: _Count
    steps: _Count
    samples: _Count
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    terms: Annotated[Mapping[_Name, float], Field(max_length=_TERMS)]
    norms: Annotated[Mapping[_Name, float], Field(max_length=_TERMS)]
    notes: Annotated[Sequence[Note], Field(max_length=_NOTES)]
    kept: bool


class PredictorResult(BaseModel):
    """The states of all metrics of one predictor on `total` samples, as plain numbers (`MetricStates.to_plain`)."""

    model_config = _STRICT

    total: _Samples
    states: Annotated[Mapping[_Name, Mapping[_Name, Any]], Field(max_length=_TERMS)]


class EvalReply(_MessageFacts):
    """What a `EvalResult` tells."""

    kind: Literal["scored"] = "scored"
    client: _Count
    round: _Count
    results: Annotated[Mapping[_Name, PredictorResult], Field(max_length=_TERMS)]
    samples: _Samples


class ErrorReply(_MessageFacts):
    """A node that cannot do what it was asked. raised: an exception inside the client's work, with its traceback."""

    kind: Literal["failed"] = "failed"
    client: int = -1
    round: _Count = 0
    error: _Text
    raised: _Text = ""


Reply: TypeAlias = JoinReply | TrainReply | EvalReply | ErrorReply
F = TypeVar("F", bound=_MessageFacts)


def read(letter: Message, kind: type[F]) -> F:
    """The facts of a letter that is a `kind`. Raises `MessageError` for anything else."""
    if len(letter.facts) > MAX_FACTS:
        raise MessageError(f"a letter of {len(letter.facts)} characters; {MAX_FACTS} at most")
    try:
        return kind.model_validate_json(letter.facts)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:80] or "facts"
        why = " ".join(f"{place}: {first['msg']}".split())[:200]
        raise MessageError(f"no letter of version {VERSION} ({why})") from None


def read_reply(letter: Message, kind: type[F]) -> F | ErrorReply:
    """The same, or why there is none."""
    try:
        return read(letter, ErrorReply)
    except MessageError:
        return read(letter, kind)
