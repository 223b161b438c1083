"""Memory that several processes see: tensors are put in by one and read in place by the others.

Where no such memory can be reserved, tensors travel with the message that names them.
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

# Address space, not memory: the file is sparse, and a page exists once it is written to.
_SPACE = 1 << 40
_ALIGN = 64
_IN_NUMPY = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
}


class SharedTensor(NamedTuple):
    """Where a tensor lies in a shared memory."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class InlineTensor(NamedTuple):
    """A tensor that travels with its message."""

    data: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]


class SharedMemory:
    """An anonymous file in memory, filled from the front and emptied at once.

    It has no name: the kernel frees it when the last process that maps it is gone, however that one ended. One process
    writes, any may read. A view is valid until the writer's `clear`. `reserved`: False where the system allows none
    (ulimit -v, ulimit -f); then nothing lies in here, and `put` gives what is to be sent. Whoever has it closes it:
    the descriptor would outlive the object, and the pages would stay with the descriptor.
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
            if handle is not None:  # what lies in there could not be read
                raise
            return
        self._start = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()
        self.reserved = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Crosses to a process that is being started: the file is passed on, not its contents."""
        return (_mapped, (DupFd(self._handle), self.used)) if self.reserved else (_none, ())

    def put(self, tensor: Tensor) -> SharedTensor | InlineTensor:
        """Where a tensor lies in here: a copy at the end, or where it was made by `empty_like`."""
        if not self.reserved:
            flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            return InlineTensor(flat.numpy().tobytes(), tensor.dtype, tuple(tensor.shape))
        offset = tensor.data_ptr() - self._start
        if 0 <= offset < self.used and tensor.is_contiguous():
            return SharedTensor(offset, tensor.dtype, tuple(tensor.shape))
        location = self._reserve(tensor)
        if tensor.numel():
            self.view(location).copy_(tensor.detach())
        return location

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Memory in here for a tensor of that shape and dtype, in the plain order. `put` finds it again."""
        if not self.reserved:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return self.view(self._reserve(tensor))

    def _reserve(self, tensor: Tensor) -> SharedTensor:
        location = SharedTensor(self.used, tensor.dtype, tuple(tensor.shape))
        self.used += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        return location

    def view(self, location: SharedTensor | InlineTensor) -> Tensor:
        """The tensor at `location`, without a copy."""
        if isinstance(location, InlineTensor):
            data = bytearray(location.data)  # which may be written to
            flat = torch.frombuffer(data, dtype=location.dtype) if data else torch.empty(0, dtype=location.dtype)
            return flat.view(location.shape)
        offset, dtype, shape = location
        numpy_dtype = _IN_NUMPY.get(dtype)
        if numpy_dtype is not None:  # at a third of what torch's own way costs, for tens of thousands of small tensors
            return torch.from_numpy(np.ndarray(shape, numpy_dtype, self._memory, offset))
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in here."""
        return self.reserved and self._start <= tensor.data_ptr() < self._start + _SPACE

    def clear(self) -> None:
        """Forget what is in here; the memory is used again."""
        self.used = 0

    def close(self) -> None:
        """Give back the descriptor at once, and the pages as soon as no view of them is left. Nothing can be put here
        afterwards, and it cannot go to another process."""
        if not self.reserved:
            return
        self.reserved, self.used = False, 0
        self._close_handle()
        del self._memory  # never `mmap.close`: views hold the mapping without its knowledge, and would lie nowhere


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
    """Puts records into a shared memory. A tensor of several records (the weights of a round) is put in once."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        # By id; holding the tensor, or the tree, keeps its id its own.
        self._located: dict[int, tuple[Tensor, SharedTensor | InlineTensor]] = {}
        self._trees: dict[int, tuple[Tree, Any]] = {}

    def clear(self) -> None:
        """Start a new round."""
        self._located.clear()
        self._trees.clear()
        self._memory.clear()

    def pack(self, record: Record, *, shared: bool = True) -> Packed:
        """A record with the locations of its tensors. shared: other records may have the same tensors."""
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
        """Where a tensor lies, put there now or earlier in this round."""
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
    """The record that was packed, as views: `view` is `SharedMemory.view`, or remembers what that gave."""
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
    """The record with copies of the tensors that lie in one of the memories."""
    return map_tensors(record, lambda tensor: tensor.clone() if any(m.holds(tensor) for m in memories) else tensor)
