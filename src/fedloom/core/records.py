"""Records and their bytes.

A record is a flat dict of named values: trees, class tables, tensors and plain scalars. States, payloads and uploads
are records, and so checkpoints and messages share one format: safetensors with a JSON header, never pickle. Of a
class table only the rows of held classes are written."""

import dataclasses
import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_FORMAT = 2
_READABLE = (1, _FORMAT)  # format 1 wrote scalars as JSON values, whose length depends on their digits
_WORD = re.compile("[0-9a-f]{16}")


def get_tree(record: Mapping[str, Value], name: str) -> Tree:
    """Return the tree `name`. Raises `RecordError` if the record has no tree of that name."""
    return cast(Tree, _get(record, name, dict))


def get_table(record: Mapping[str, Value], name: str) -> ClassTable:
    """Return the class table `name`. Raises `RecordError` as `get_tree` does."""
    return cast(ClassTable, _get(record, name, ClassTable))


def get_tensor(record: Mapping[str, Value], name: str) -> Tensor:
    """Return the tensor `name`. Raises `RecordError` as `get_tree` does."""
    return cast(Tensor, _get(record, name, Tensor))


def get_number(record: Mapping[str, Value], name: str) -> float:
    """Return the number `name`. Raises `RecordError` as `get_tree` does."""
    return cast(float, _get(record, name, (int, float)))


def _get(record: Mapping[str, Value], name: str, kind: type | tuple[type, ...]) -> Value:
    if name not in record:
        raise RecordError(f"a record has no '{name}'; it has {', '.join(sorted(record)) or 'nothing'}")
    value = record[name]
    if not isinstance(value, kind):
        expected = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise RecordError(f"'{name}' in a record is a {type(value).__name__}, not a {expected.replace('dict', 'tree')}")
    return value


class RecordError(FedloomError):
    """Bytes that are no record of this version, or a record that lacks an entry."""


def to_bytes(record: Record) -> bytes:
    """Serialize a record as safetensors; equal records give equal bytes. Tensors are copied to the CPU."""
    leaves, header = _leaves(record)
    return save(_copy_shared({leaf.path: leaf.data() for leaf in leaves}), metadata={_HEADER: header})


def from_bytes(data: bytes) -> Record:
    """Parse what `to_bytes` wrote. Raises `RecordError` for anything else."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        # `load` returns tensors only, so the metadata are read from the header of the file.
        header = parse_json(parse_json(data[8 : 8 + length])[_RESERVED][_HEADER])
        if header["format"] not in _READABLE:
            raise RecordError(f"record format {header['format']}: this version reads formats 1 and {_FORMAT}")
        return {name: _rebuild(name, entry, tensors) for name, entry in header["entries"].items()}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise RecordError(f"not a fedloom record, or damaged: {error}") from error


def json_header(record: Record) -> str:
    """Return the JSON header in `to_bytes(record)`: names, kinds and scalars, without reading the tensors' values."""
    return _leaves(record)[1]


def wire_size(record: Record) -> int:
    """Return len(to_bytes(record)), computed from names, dtypes and shapes without reading the tensors' values."""
    leaves, header = _leaves(record)
    return _file_size(tuple((leaf.path, leaf.tensor.dtype, leaf.shape()) for leaf in leaves), header)


def map_tensors(record: Record, function: Callable[[Tensor], Tensor]) -> Record:
    """Return the record with `function`, which keeps shapes, applied to every tensor."""

    def mapped(value: Value) -> Value:
        if isinstance(value, ClassTable):
            return ClassTable(function(value.values), function(value.held))
        if isinstance(value, dict):
            return {name: function(tensor) for name, tensor in value.items()}
        return function(value) if isinstance(value, Tensor) else value

    return {name: mapped(value) for name, value in record.items()}


def is_finite(record: Record) -> bool:
    """Whether all floating-point values of a record are finite."""
    return all(bool(torch.isfinite(tensor).all()) for _, tensor in floats_of(record))


def floats_of(record: Record) -> Iterator[tuple[str, Tensor]]:
    """Yield the floating-point tensors of a record with the names of their entries."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ((name, tensor) for tensor in value.values() if tensor.is_floating_point())
        elif isinstance(value, ClassTable):
            yield name, value.values[value.held]
        elif isinstance(value, Tensor) and value.is_floating_point():
            yield name, value
        elif isinstance(value, float):
            yield name, torch.tensor(value, dtype=torch.float64)


def _copy_shared(tensors: Tree) -> Tree:
    """Copy tensors that share memory with an earlier one, which safetensors refuses (one tensor under two names)."""
    storages: set[int] = set()
    for path, tensor in tensors.items():
        # Views of one storage count as shared, even where they do not overlap.
        storage = tensor.untyped_storage().data_ptr()
        tensors[path] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return tensors


# Name, kind and detail: the names of a tree; the type, text and value of a scalar (for a cache, 1 and True are one key,
# and so are 0.0 and -0.0).
_Entry: TypeAlias = tuple[str, str, Any]


class _Leaf(NamedTuple):
    """One tensor of the file: `tensor`, or the rows of a class table where `held`."""

    path: str
    tensor: Tensor
    held: Tensor | None = None

    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape) if self.held is None else (int(self.held.sum()), self.tensor.shape[-1])

    def data(self) -> Tensor:
        tensor = self.tensor if self.held is None else self.tensor[self.held]
        return tensor.detach().cpu().contiguous()


def _leaves(record: Record) -> tuple[list[_Leaf], str]:
    """Return the tensors of a record, and the JSON header that rebuilds it from them."""
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
    """Return the JSON header for these entries; cached, because a run sends few shapes very often."""
    described: dict[str, Any] = {}
    paths = [_RESERVED]
    for name, kind, detail in entries:
        described[name] = {"kind": kind}
        if kind == "tree":
            described[name]["names"] = list(detail)
        if kind == "scalar":
            described[name] |= _encode_scalar(detail[-1])
        leaf_names = {"tree": detail, "table": ("rows", "held"), "scalar": ()}.get(kind)
        paths += [name] if leaf_names is None else [f"{name}/{leaf_name}" for leaf_name in leaf_names]
    if len(set(paths)) != len(paths):
        raise ValueError(f"record {sorted(described)}: two of its tensors would have the same path, or a reserved one")
    return json.dumps({"format": _FORMAT, "entries": described}, separators=(",", ":"))


# Safetensors lays tensors out by dtype, in this order (wider first), then by name.
SAFETENSORS_DTYPES = (
    *(torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16),
    *(torch.float16, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@functools.lru_cache(maxsize=4096)
def _file_size(leaves: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], header: str) -> int:
    """Return the bytes of a safetensors file: 8, the JSON layout padded to a multiple of 8, and the values."""
    layout: dict[str, Any] = {_RESERVED: {_HEADER: header}}
    offset = 0
    for path, dtype, shape in sorted(leaves, key=lambda leaf: (SAFETENSORS_DTYPES.index(leaf[1]), leaf[0])):
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
    return _decode_scalar(entry) if "type" in entry else cast(Scalar, entry["value"])


def _encode_scalar(value: Scalar) -> dict[str, str]:
    """Return a scalar as text of a fixed length, so that equal payloads have equal sizes; longer integers in full."""
    if isinstance(value, str):
        return {"type": "str", "value": value}
    if isinstance(value, float):
        return {"type": "float", "value": struct.pack(">d", value).hex()}
    # A bool is an int as well, so it is asked for first.
    kind = "bool" if isinstance(value, bool) else "int"
    if -(1 << 63) <= value < 1 << 63:
        return {"type": kind, "value": struct.pack(">q", value).hex()}
    return {"type": kind, "value": hex(value)}


def _decode_scalar(entry: Mapping[str, str]) -> Scalar:
    kind, text = entry["type"], entry["value"]
    if kind == "str":
        return str(text)
    if not _WORD.fullmatch(text):
        if kind == "int" and re.fullmatch("-?0x[0-9a-f]+", text):
            return int(text, 16)
        raise ValueError(f"the {kind} {text[:40]!r} is no 64-bit word")
    if kind == "float":
        return cast(float, struct.unpack(">d", bytes.fromhex(text))[0])
    if kind not in ("bool", "int"):
        raise ValueError(f"a scalar of type {kind[:40]!r}")
    (number,) = struct.unpack(">q", bytes.fromhex(text))
    return bool(number) if kind == "bool" else cast(int, number)


def to_plain(value: Any) -> Any:
    """Return dataclasses and mappings as dicts, sequences and tensors as lists, and other values as they are."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(element) for key, element in value.items()}
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_plain(element) for element in value]
    return value
