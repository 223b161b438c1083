"""Records: what is kept and what travels, and its bytes.

A record is a flat dict of named values: trees, class tables, tensors and plain scalars. Server state, client
state and payloads are all records, so checkpointing, eviction and sending are one mechanism: safetensors with one
JSON header, never pickle. Of a class table only the held rows are written.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedloom.core.errors import FedloomError
from fedloom.core.files import parse_json
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree

Scalar: TypeAlias = int | float | str | bool
Value: TypeAlias = Tree | ClassTable | Tensor | Scalar
Record: TypeAlias = dict[str, Value]

_HEADER = "fedloom"
_RESERVED = "__metadata__"
_FORMAT = 1


def get_tree(record: Mapping[str, Value], name: str) -> Tree:
    """The tree called `name`. Raises `RecordError` if there is none, or if it is something else."""
    return cast(Tree, _get(record, name, dict))


def get_table(record: Mapping[str, Value], name: str) -> ClassTable:
    """The class table called `name`. Raises `RecordError` as `get_tree` does."""
    return cast(ClassTable, _get(record, name, ClassTable))


def get_tensor(record: Mapping[str, Value], name: str) -> Tensor:
    """The tensor called `name`. Raises `RecordError` as `get_tree` does."""
    return cast(Tensor, _get(record, name, Tensor))


def get_number(record: Mapping[str, Value], name: str) -> float:
    """The number called `name`. Raises `RecordError` as `get_tree` does."""
    return cast(float, _get(record, name, (int, float)))


def _get(record: Mapping[str, Value], name: str, kind: type | tuple[type, ...]) -> Value:
    if name not in record:
        raise RecordError(f"a record has no '{name}'; it has {', '.join(sorted(record)) or 'nothing'}")
    value = record[name]
    if not isinstance(value, kind):
        wanted = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise RecordError(f"'{name}' in a record is a {type(value).__name__}, not a {wanted.replace('dict', 'tree')}")
    return value


class RecordError(FedloomError):
    """Bytes that are no record of this version, or a record without what was asked for."""


def to_bytes(record: Record) -> bytes:
    """The record as safetensors bytes; equal records give equal bytes. Tensors go through the CPU."""
    leaves, header = _leaves(record)
    return save(_unshared({leaf.path: leaf.data() for leaf in leaves}), metadata={_HEADER: header})


def from_bytes(data: bytes) -> Record:
    """The record that `to_bytes` wrote. Raises `RecordError` for anything else."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        header = parse_json(parse_json(data[8 : 8 + length])[_RESERVED][_HEADER])
        if header["format"] != _FORMAT:
            raise RecordError(f"record format {header['format']}: this version reads format {_FORMAT}")
        return {name: _rebuild(name, entry, tensors) for name, entry in header["entries"].items()}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise RecordError(f"not a fedloom record, or damaged: {error}") from error


def header_of(record: Record) -> str:
    """The JSON header in `to_bytes(record)`: names, kinds and scalars, made without touching the tensors' values."""
    return _leaves(record)[1]


def wire_size(record: Record) -> int:
    """len(to_bytes(record)), computed from names, dtypes and shapes without touching the tensors' values."""
    leaves, header = _leaves(record)
    return _file_size(tuple((leaf.path, leaf.tensor.dtype, leaf.shape()) for leaf in leaves), header)


def mapped(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """The record with every tensor changed; shapes stay."""
    return {name: _mapped(value, change) for name, value in record.items()}


def _mapped(value: Value, change: Callable[[Tensor], Tensor]) -> Value:
    if isinstance(value, ClassTable):
        return ClassTable(change(value.values), change(value.held))
    if isinstance(value, dict):
        return {name: change(tensor) for name, tensor in value.items()}
    return change(value) if isinstance(value, Tensor) else value


def _unshared(tensors: Tree) -> Tree:
    """The same values without shared memory, which safetensors refuses (one tensor under two names)."""
    seen: set[int] = set()
    for path, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        tensors[path] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return tensors


# Name, kind, and what else the header needs: a tree's names; a scalar's type, text and value (1 and True are
# one key to a cache, 0.0 and -0.0 too).
_Entry: TypeAlias = tuple[str, str, Any]


class _Leaf(NamedTuple):
    """One tensor of the file: `tensor`, or of a class table only the rows where `held`."""

    path: str
    tensor: Tensor
    held: Tensor | None = None

    def shape(self) -> tuple[int, ...]:
        if self.held is None:
            return tuple(self.tensor.shape)
        return int(self.held.sum()), self.tensor.shape[-1]

    def data(self) -> Tensor:
        tensor = self.tensor if self.held is None else self.tensor[self.held]
        return tensor.detach().cpu().contiguous()


def _leaves(record: Record) -> tuple[list[_Leaf], str]:
    """The tensors of a record, and the JSON header that rebuilds it from them."""
    leaves: list[_Leaf] = []
    entries: list[_Entry] = []
    for name, value in record.items():
        if isinstance(value, ClassTable):
            leaves += [_Leaf(f"{name}/rows", value.values, value.held), _Leaf(f"{name}/held", value.held)]
            entries.append((name, "table", None))
        elif isinstance(value, dict):
            leaves += [_Leaf(f"{name}/{key}", tensor) for key, tensor in value.items()]
            entries.append((name, "tree", tuple(value)))
        elif isinstance(value, Tensor):
            leaves.append(_Leaf(name, value))
            entries.append((name, "tensor", None))
        else:
            entries.append((name, "scalar", (type(value).__name__, repr(value), value)))
    return leaves, _header(tuple(entries))


@functools.lru_cache(maxsize=4096)
def _header(entries: tuple[_Entry, ...]) -> str:
    """The JSON header of a record with these entries; cached, because a run sends few shapes very often."""
    plain: dict[str, Any] = {}
    paths = [_RESERVED]
    for name, kind, detail in entries:
        plain[name] = {"kind": kind}
        if kind == "tree":
            plain[name]["names"] = list(detail)
        if kind == "scalar":
            plain[name]["value"] = detail[-1]
        parts = {"tree": detail, "table": ("rows", "held"), "scalar": ()}.get(kind)
        paths += [name] if parts is None else [f"{name}/{part}" for part in parts]
    if len(set(paths)) != len(paths):
        raise ValueError(f"record {sorted(plain)}: two of its tensors would have the same path, or a reserved one")
    return json.dumps({"format": _FORMAT, "entries": plain}, separators=(",", ":"))


# Safetensors lays tensors out by dtype, in this order (wider first), then by name.
DTYPES = (
    torch.int64,
    torch.float64,
    torch.float32,
    torch.int32,
    torch.bfloat16,
    torch.float16,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@functools.lru_cache(maxsize=4096)
def _file_size(leaves: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], header: str) -> int:
    """Bytes of a safetensors file: 8, the JSON layout padded to 8, the values."""
    layout: dict[str, Any] = {_RESERVED: {_HEADER: header}}
    offset = 0
    for path, dtype, shape in sorted(leaves, key=lambda leaf: (DTYPES.index(leaf[1]), leaf[0])):
        end = offset + math.prod(shape) * dtype.itemsize
        code = f"{'F' if dtype.is_floating_point else 'I'}{8 * dtype.itemsize}"
        code = {torch.bool: "BOOL", torch.uint8: "U8", torch.bfloat16: "BF16"}.get(dtype, code)
        layout[path] = {"dtype": code, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(layout, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + (len(text) + 7) // 8 * 8 + offset


def _rebuild(name: str, entry: dict[str, Any], tensors: dict[str, Tensor]) -> Value:
    kind = entry["kind"]
    if kind == "tree":
        return {key: tensors[f"{name}/{key}"] for key in entry["names"]}
    if kind == "tensor":
        return tensors[name]
    if kind == "table":
        rows, held = tensors[f"{name}/rows"], tensors[f"{name}/held"]
        values = torch.zeros((*held.shape, rows.shape[-1]), dtype=rows.dtype)
        values[held] = rows
        return ClassTable(values, held)
    return cast(Scalar, entry["value"])
