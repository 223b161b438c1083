"""Jobs and results as messages between processes: records become tensors in shared memory, the rest stays as it is.

A message has the fields of its class in `engine/jobs.py`, so a field that is added there reaches every worker.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from torch import Tensor

from fedloom.core.records import Record
from fedloom.engine.jobs import BODY_FIELDS, EvalJob, EvalResult, Job, JobResult, field_types
from fedloom.engine.processes.shared_memory import (
    InlineTensor,
    Packed,
    Packer,
    SharedTensor,
    from_inline,
    inline,
    unpack,
)
from fedloom.methods.contract.contexts import ClientContext, Task

Request: TypeAlias = Job | EvalJob
Reply: TypeAlias = JobResult | EvalResult
R = TypeVar("R", bound=Request | Reply)


class PackedMessage(NamedTuple):
    """A job or a result. shared: the record that all clients of a round have in common. values: other fields."""

    kind: type
    shared: Packed
    values: dict[str, Any]


class _Context(NamedTuple):
    """A `ClientContext` without its task, which every worker has."""

    round: int
    client: int
    samples: int
    group: int
    class_counts: SharedTensor | InlineTensor


class _Pickler(pickle.Pickler):
    """Writes tensors as bytes: those of fields that are no records, such as the states of metrics.

    With torch's own reduction for `Connection.send`, each would take a file and a connection to a socket, whose folder
    stays in the temporary folder when a worker ends.
    """

    def reducer_override(self, value: Any) -> Any:
        return (from_inline, (inline(value),)) if isinstance(value, Tensor) else NotImplemented


def send(pipe: Connection, content: Any) -> None:
    """Send messages, or an error, to the other end of a pipe, which takes them with `Connection.recv`."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(content)
    pipe.send_bytes(buffer.getbuffer())


def packed(content: Request | Reply, packer: Packer) -> PackedMessage:
    """Write the tensors of a job or a result to the packer's memory, and return the message."""
    shared: Packed = {}
    values: dict[str, Any] = {}
    request = isinstance(content, Job | EvalJob)
    kind: Any = type(content)
    for name, type_ in field_types(kind).items():
        value = getattr(content, name)
        if name in BODY_FIELDS:
            shared = packer.pack(value)
        elif type_ == Record:
            values[name] = packer.pack(value, shared=not request)  # a client's own state is in no other message
        elif type_ is Tensor:
            values[name] = packer.locate(value)
        elif type_ is ClientContext:
            counts = packer.locate(value.class_counts)
            values[name] = _Context(value.round, value.client, value.samples, value.task.group, counts)
        else:
            values[name] = value
    return PackedMessage(kind, shared, values)


def unpacked(
    message: PackedMessage, view: Callable[[SharedTensor | InlineTensor], Tensor], tasks: Sequence[Task] = ()
) -> Any:
    """Return the job or result of a message, with views of the memory as tensors.

    Args:
        message: the message.
        view: returns a tensor for its location.
        tasks: one a group, for jobs.
    """
    arguments: dict[str, Any] = {}
    for name, type_ in field_types(cast(Any, message.kind)).items():
        if name in BODY_FIELDS:
            arguments[name] = unpack(message.shared, view)
        elif type_ == Record:
            arguments[name] = unpack(message.values[name], view)
        elif type_ is Tensor:
            arguments[name] = view(message.values[name])
        elif type_ is ClientContext:
            context = cast(_Context, message.values[name])
            counts = view(context.class_counts)
            task = tasks[context.group]
            arguments[name] = ClientContext(task, context.round, context.client, context.samples, counts)
        else:
            arguments[name] = message.values[name]
    return message.kind(**arguments)
