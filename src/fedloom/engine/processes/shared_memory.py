"""Memory that several processes map: one writes tensors, the others read them without a copy.

Where the system allows no such memory, the message carries the tensors themselves.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.core.records import Record, Value, map_tensors
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree

# Address space, not memory: the file is sparse, so a page exists only once it is written to.
_SPACE = 1 << 40
_ALIGN = 64
_IN_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}


class SharedTensor(NamedTuple):
    """The location of a tensor in a shared memory. offset: in bytes."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class InlineTensor(NamedTuple):
    """A tensor whose bytes travel in the message."""

    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


def inline(tensor: Tensor) -> InlineTensor:
    """Return a tensor as bytes."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return InlineTensor(flat.numpy().tobytes(), tensor.dtype, tuple(tensor.shape))


def from_inline(tensor: InlineTensor) -> Tensor:
    """Return the tensor of the bytes."""
    data = bytearray(tensor.data)  # a bytearray, because the tensor must be writable
    flat = torch.frombuffer(data, dtype=tensor.dtype) if data else torch.empty(0, dtype=tensor.dtype)
    return flat.view(tensor.shape)


class SharedMemory:
    """An anonymous file in memory, filled from the front and cleared as a whole.

    One process writes, any may read. A view is valid until the writer's `clear`. The kernel frees the memory when the
    last process that maps it ends, but the descriptor must be given back by `close`. `reserved` is False where the
    system allows no such memory (ulimit -v, ulimit -f); `put` then returns tensors to send.
    """

    def __init__(self, handle: int | None = None, used: int = 0, *, reserve: bool = True) -> None:
        self.used, self.reserved = used, False
        if not reserve:
            return
        try:
            self._handle = _anonymous_file() if handle is None else handle
        except OSError:
            return
        self._close_handle = weakref.finalize(self, os.close, self._handle)
        try:
            self._memory = mmap.mmap(self._handle, _SPACE)
        except OSError:
            self._close_handle()
            if handle is not None:  # the reader of a memory cannot do without it
                raise
            return
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()
        self.reserved = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the descriptor, not the contents, to a process that is being started."""
        return (_mapped, (DupFd(self._handle), self.used)) if self.reserved else (_none, ())

    def put(self, tensor: Tensor) -> SharedTensor | InlineTensor:
        """Copy a tensor to the end of the memory, unless it is there already, and return its location."""
        if not self.reserved:
            return inline(tensor)
        offset = tensor.data_ptr() - self._start
        if 0 <= offset < self.used and tensor.is_contiguous():
            return SharedTensor(offset, tensor.dtype, tuple(tensor.shape))
        location = self._reserve(tensor)
        if tensor.numel():
            self.view(location).copy_(tensor.detach())
        return location

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Reserve a contiguous tensor of that shape and dtype in the memory. `put` does not copy it again."""
        if not self.reserved:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return self.view(self._reserve(tensor))

    def _reserve(self, tensor: Tensor) -> SharedTensor:
        location = SharedTensor(self.used, tensor.dtype, tuple(tensor.shape))
        self.used += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        return location

    def view(self, location: SharedTensor | InlineTensor) -> Tensor:
        """Return the tensor at `location`, without a copy."""
        if isinstance(location, InlineTensor):
            return from_inline(location)
        offset, dtype, shape = location
        numpy_dtype = _IN_NUMPY.get(dtype)
        if numpy_dtype is not None:  # faster than torch's own function, for thousands of small tensors
            return torch.from_numpy(np.ndarray(shape, numpy_dtype, self._memory, offset))
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)

    def holds(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor is in this file."""
        return self.reserved and self._start <= tensor.data_ptr() < self._start + _SPACE

    def clear(self) -> None:
        """Mark the memory as unused; new tensors overwrite it."""
        self.used = 0

    def close(self) -> None:
        """Give back the descriptor; the pages follow with the last view. The object cannot be used afterwards."""
        if not self.reserved:
            return
        self.reserved, self.used = False, 0
        self._close_handle()
        del self._memory  # not `mmap.close`: views do not count as users, and would point to unmapped memory


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("fedloom")
    else:
        handle, path = tempfile.mkstemp()
        Path(path).unlink()
    try:
        os.ftruncate(handle, _SPACE)
    except OSError:
        os.close(handle)
        raise
    return handle


def _mapped(handle: Any, used: int) -> SharedMemory:
    return SharedMemory(handle.detach(), used)


def _none() -> SharedMemory:
    return SharedMemory(reserve=False)


Packed = dict[str, Any]


class Packer:
    """Write records to a shared memory. A tensor of several records, such as the round's weights, is written once."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        # By id. The tensor or tree is kept alive, so that its id is not used again.
        self._located: dict[int, tuple[Tensor, SharedTensor | InlineTensor]] = {}
        self._trees: dict[int, tuple[Tree, Any]] = {}

    def clear(self) -> None:
        """Clear the memory for a new round."""
        self._located.clear()
        self._trees.clear()
        self._memory.clear()

    def pack(self, record: Record, *, shared: bool = True) -> Packed:
        """Return a record with locations instead of tensors.

        Args:
            record: the record.
            shared: whether other records may share its tensors.
        """
        if not shared:
            return {name: _packed(value, self._memory.put) for name, value in record.items()}
        return {name: self._shared(value) for name, value in record.items()}

    def _shared(self, value: Value) -> Any:
        if not isinstance(value, dict):
            return _packed(value, self.locate)
        packed_tree = self._trees.get(id(value))
        if packed_tree is None:
            packed_tree = self._trees[id(value)] = (value, _packed(value, self.locate))
        return packed_tree[1]

    def locate(self, tensor: Tensor) -> SharedTensor | InlineTensor:
        """Return the location of a tensor, which is written unless that happened earlier in this round."""
        located = self._located.get(id(tensor))
        if located is None:
            located = self._located[id(tensor)] = (tensor, self._memory.put(tensor))
        return located[1]


def _packed(value: Value, locate: Callable[[Tensor], SharedTensor | InlineTensor]) -> Any:
    if isinstance(value, ClassTable):
        return (locate(value.values), locate(value.held))
    if isinstance(value, dict):
        return {name: locate(tensor) for name, tensor in value.items()}
    return locate(value) if isinstance(value, Tensor) else value


def unpack(packed: Packed, view: Callable[[SharedTensor | InlineTensor], Tensor]) -> Record:
    """Return the packed record with views as tensors.

    Args:
        packed: the record with locations.
        view: `SharedMemory.view`, or a cached version of it.
    """
    return {name: _unpacked(value, view) for name, value in packed.items()}


def _unpacked(value: Any, view: Callable[[SharedTensor | InlineTensor], Tensor]) -> Value:
    if isinstance(value, SharedTensor | InlineTensor):
        return view(value)
    if isinstance(value, dict):
        return {name: view(location) for name, location in value.items()}
    if isinstance(value, tuple):
        return ClassTable(view(value[0]), view(value[1]))
    return value  # type: ignore[no-any-return]


def lasting(record: Record, memories: list[SharedMemory]) -> Record:
    """Return the record with copies of the tensors that are in one of the memories."""
    return map_tensors(record, lambda tensor: tensor.clone() if any(m.holds(tensor) for m in memories) else tensor)
