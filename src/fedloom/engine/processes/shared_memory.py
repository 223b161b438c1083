"""Memory that several processes map, and messages whose tensors are in it: the reader gets them without a copy.

Where the system allows no such memory, the message carries the tensors themselves."""

import io
import math
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.core.records import Record, map_tensors
from fedloom.methods.contract.contexts import Task

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


class SharedMemory:
    """An anonymous file in memory, filled from the front and cleared as a whole. One process writes, any may read until
    its `clear`; `close` gives back the descriptor. Not `reserved` where the system allows none (ulimit -v, -f)."""

    def __init__(self, handle: int | None = None, used: int = 0, *, reserve: bool = True) -> None:
        self.used, self.reserved = used, False
        self._located: dict[int, tuple[weakref.ref[Tensor], SharedTensor]] = {}  # by id of the tensor
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

    def put(self, tensor: Tensor) -> SharedTensor:
        """Copy a tensor to the end of the memory, unless it is there already, and return its location."""
        offset = tensor.data_ptr() - self._start  # inside for what a worker has allocated here, as trained weights
        if 0 <= offset < self.used and tensor.is_contiguous():
            return SharedTensor(offset, tensor.dtype, tuple(tensor.shape))
        known, location = self._located.get(id(tensor), (None, None))
        if location is None or known is None or known() is not tensor:  # another tensor may have got the same id
            location = self._reserve(tensor)
            self._located[id(tensor)] = weakref.ref(tensor), location
            if tensor.numel():
                self.view(*location).copy_(tensor.detach())
        return location

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Reserve a contiguous tensor of that shape and dtype in the memory. `put` does not copy it again."""
        if not self.reserved:
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        return self.view(*self._reserve(tensor))

    def _reserve(self, tensor: Tensor) -> SharedTensor:
        location = SharedTensor(self.used, tensor.dtype, tuple(tensor.shape))
        self.used += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
        return location

    def view(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor at a location (`SharedTensor`): its offset, dtype and shape, without a copy."""
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
        self._located.clear()

    def close(self) -> None:
        """Give back the descriptor; the pages follow with the last view. The object cannot be used afterwards."""
        if not self.reserved:
            return
        self.reserved = False
        self.clear()
        self._close_handle()
        del self._memory  # not `mmap.close`: views do not count as users, and would point to unmapped memory


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("fedloom")
    else:
        handle, path = tempfile.mkstemp()
        # Without a name, the file disappears with its last descriptor, also after a crash.
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


def lasting(record: Record, memories: list[SharedMemory]) -> Record:
    """Return the record with copies of the tensors that are in one of the memories."""
    return map_tensors(record, lambda tensor: tensor.clone() if any(m.holds(tensor) for m in memories) else tensor)


# -- messages ----------------------------------------------------------------------------------------------------------
NO_MEMORY = SharedMemory(reserve=False)


def dumps(content: Any, memory: SharedMemory = NO_MEMORY) -> memoryview:
    """Pickle jobs, results or an error. Tensors go to the memory, and tasks stay here: every worker has them."""
    buffer = io.BytesIO()
    _Pickler(buffer, memory).dump(content)
    return buffer.getbuffer()


def loads(message: bytes | memoryview, memory: SharedMemory = NO_MEMORY, tasks: Sequence[Task] = ()) -> Any:
    """Return the content of a message, with views of the writer's memory as tensors; tasks: one for each group."""
    return _Unpickler(io.BytesIO(message), memory, tasks).load()


class _Pickler(pickle.Pickler):
    """torch's own reduction would take a file and a socket for each tensor; the socket's folder would stay on disk."""

    def __init__(self, file: io.BytesIO, memory: SharedMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if self._memory.reserved:
                return _view, tuple(self._memory.put(value))
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
            return _from_bytes, (flat.numpy().tobytes(), value.dtype, tuple(value.shape))
        return (_task, (value.group,)) if type(value) is Task else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: SharedMemory, tasks: Sequence[Task]) -> None:
        super().__init__(file)
        self._bound = {"_view": memory.view, "_task": tasks.__getitem__}

    def find_class(self, module: str, name: str) -> Any:
        """Bind the functions below to the reader's memory and tasks."""
        return self._bound[name] if module == __name__ and name in self._bound else super().find_class(module, name)


def _view(offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    raise NotImplementedError("only `loads` knows the memory")


def _task(group: int) -> Task:
    raise NotImplementedError("only `loads` knows the tasks")


def _from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # A copy, because torch warns about tensors over read-only bytes.
    writable = bytearray(data)
    flat = torch.frombuffer(writable, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.view(shape)
