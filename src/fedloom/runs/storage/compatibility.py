"""Whether the states of a checkpoint are some that its run can go on from. A checkpoint may come from somebody else,
with checksums that fit damaged states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor

from fedloom.core.errors import CheckpointError, ClientError
from fedloom.core.records import Record, RecordError, Value
from fedloom.core.tables import ClassTable
from fedloom.engine import Federation
from fedloom.runs.storage.checkpoint import Checkpoint

_ADVICE = "put the file back, or delete the run folder and run again"


def restore(federation: Federation, start: Checkpoint) -> None:
    """Go on from a checkpoint. Raises `CheckpointError` if its server state, or a client's, has entries of other kinds,
    names or shapes than those with which the method begins."""
    if why := find_misfit(start.server, federation.server):
        raise CheckpointError(f"{start.path}: the server's state does not fit this config ({why}); {_ADVICE}")
    begun: dict[int, Record] = {}
    for client, state in start.states.items():
        if not 0 <= client < federation.scenario.clients:
            raise CheckpointError(
                f"{start.path}: holds a state of client {client}, whom the run does not have; {_ADVICE}"
            )
        group = federation.task_of(client).group
        if group not in begun:
            begun[group] = federation.method.client_init(federation.client_context(client, start.round))
        if why := find_misfit(state, begun[group]):
            raise CheckpointError(
                f"{start.path}: the state of client {client} does not fit this config ({why}); {_ADVICE}"
            )
        federation.states[client] = state
    federation.round, federation.server = start.round, start.server
    federation.states.changed.clear()


@contextlib.contextmanager
def report_misfits(start: Checkpoint | None, federation: Federation) -> Iterator[None]:
    """Within it, a state that lacks what the method reads is a `CheckpointError`, in the first round after `start`."""
    try:
        yield
    except (ClientError, RecordError, LookupError) as error:
        cause = error.__cause__ if isinstance(error, ClientError) else error
        first = isinstance(error, RecordError) or (start is not None and federation.round == start.round)
        if start is None or not first or not isinstance(cause, RecordError | LookupError):
            raise
        raise misfit_error(start, cause) from error


def misfit_error(checkpoint: Checkpoint, cause: BaseException) -> CheckpointError:
    """The error for a checkpoint whose states lack what the method or its nets read."""
    why = f"{type(cause).__name__}: {cause}" if not isinstance(cause, RecordError) else cause
    return CheckpointError(f"{checkpoint.path}: does not fit this config ({why}); {_ADVICE}")


def find_misfit(record: Record, begun: Record) -> str | None:
    """The first entry of a record that is of another kind, or has other names or shapes, than the one of that name with
    which a method begins; None if all fit. Entries may come and go, and tables and tensors grow in their first axis."""
    for name, value in record.items():
        if name in begun and _layout(value) != _layout(begun[name]):
            return f"'{name}' is {_description(value)}, not {_description(begun[name])}"
    return None


def _layout(value: Value) -> object:
    if isinstance(value, dict):
        return {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in value.items()}
    if isinstance(value, ClassTable):
        return "table", value.values.dim(), tuple(value.values.shape[-2:])
    return ("tensor", value.dim()) if isinstance(value, Tensor) else "scalar"


def _description(value: Value) -> str:
    if isinstance(value, dict):
        entries = sum(tensor.numel() for tensor in value.values())
        return f"a tree of {len(value)} tensors with {entries} entries ({', '.join(value)[:60]})"
    if isinstance(value, ClassTable):
        return f"a table of shape {tuple(value.values.shape)}"
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
