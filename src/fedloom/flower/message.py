"""A message as it travels, and how Flower carries it. Nodes load this file for every message, so it needs no torch."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError, printable

_STYPE, _FACTS, _BODY = "fedloom.record", "facts", "record"  # not NumPy's type, so no program reads it as an array
_OLDEST, _NEWEST = (1, 41), (1, 42)  # tested versions


class MessageError(FedloomError):
    """A message that cannot be read, does not answer the request, or has an upload that must not be aggregated."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it travels. facts: JSON. body: the bytes of a record, or of one part of it, or nothing."""

    facts: str
    body: bytes = b""


def require_flower() -> str:
    """Return Flower's version. Raises `ConfigError` if it is not installed, or is not a tested one."""
    try:
        flower_version = version("flwr")
    except PackageNotFoundError:
        raise ConfigError("Flower is not installed; pip install 'fedloom[flower]'") from None
    major, minor = (int(number) for number in flower_version.split(".")[:2])
    if not _OLDEST <= (major, minor) <= _NEWEST:
        low, high = (".".join(map(str, bound)) for bound in (_OLDEST, _NEWEST))
        raise ConfigError(
            f"Flower {flower_version}: fedloom is tested with {low} to {high}; pip install 'fedloom[flower]'"
        )
    return flower_version


def to_content(message: Message) -> Any:
    """Return a message as a Flower `RecordDict`, whose array has exactly the counted bytes."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    body = Array(dtype="uint8", shape=(len(message.body),), stype=_STYPE, data=message.body)
    return RecordDict({_FACTS: ConfigRecord({_FACTS: message.facts}), _BODY: ArrayRecord({_BODY: body})})


def from_content(content: Any) -> Message:
    """Read the message in a `RecordDict`. Raises `MessageError` for other content."""
    from flwr.app import ArrayRecord, ConfigRecord

    try:
        facts, body = content[_FACTS], content[_BODY]
        whole = {*content} == {_FACTS, _BODY} and {*facts} == {_FACTS} and {*body} == {_BODY}
        if not (whole and isinstance(facts, ConfigRecord) and isinstance(body, ArrayRecord)):
            raise MessageError("its records are not those of a fedloom message")
        text, array = facts[_FACTS], body[_BODY]
    except (KeyError, TypeError, ValueError) as error:
        raise MessageError(f"no message: {type(error).__name__}: {printable(str(error)[:200])}") from None
    if not isinstance(text, str) or array.stype != _STYPE or not isinstance(array.data, bytes):
        raise MessageError("its parts have the wrong types")
    return Message(text, array.data)
