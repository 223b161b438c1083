"""Where the weights of a client are while it trains: in a net, or in memory of its own beside other clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from fedloom.core.streams import GlobalGenerators
from fedloom.core.trees import Tree
from fedloom.nets.loaded_net import LoadedNet


class ClientMemory(Protocol):
    """The weights and the random numbers of one client in its round."""

    @property
    def tensors(self) -> list[Tensor]:
        """The weights in the order of the net's tree, and in its memory layout."""
        ...

    @property
    def generator(self) -> torch.Generator:
        """The generator from which the client draws on the CPU."""
        ...

    def borrowed(self) -> list[Tensor] | None:
        """Return the first weights in the order of the net's tree, if C++ may copy them; None if that has been done."""
        ...

    def own(self, tensors: list[Tensor]) -> None:
        """Keep the weights that were trained on a copy of those that `borrowed` returned."""
        ...

    def in_net(self, *, reads: bool = False) -> contextlib.AbstractContextManager[None]:
        """Let code in the block find the weights in the net, and the random numbers in the global generators.

        Args:
            reads: the block is expected to read the weights alone. If it writes, torch's counts of writes must show
                it, which they do not within a dispatch mode.
        """
        ...

    def weights(self, allocate: Callable[[Tensor], Tensor] | None) -> Tree:
        """Return the trained weights on the CPU, in the plain memory order."""
        ...


class NetMemory:
    """Weights in the net itself. One client at a time can use it.

    Args:
        start: the client's first weights.
        generators: states from which the global generators continue within `active`.
    """

    def __init__(self, loaded_net: LoadedNet, start: Tree, generators: GlobalGenerators) -> None:
        self._loaded_net, self._generators = loaded_net, generators
        self.generator = torch.default_generator
        loaded_net.load(start)

    @property
    def tensors(self) -> list[Tensor]:
        self._loaded_net.restore_buffers()  # a net may have replaced tensors of its tree
        return list(self._loaded_net.tree.values())

    def borrowed(self) -> list[Tensor] | None:
        return None

    def own(self, tensors: list[Tensor]) -> None:
        raise RuntimeError("the weights are in the net, and were not borrowed")

    def in_net(self, *, reads: bool = False) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def active(self) -> contextlib.AbstractContextManager[None]:
        """A context for the whole round of the client."""
        return self._generators.active(once=True)

    def weights(self, allocate: Callable[[Tensor], Tensor] | None) -> Tree:
        return self._loaded_net.weights(allocate)


class SeparateMemory:
    """Weights in tensors of the client's own, so that clients can train side by side.

    Args:
        start: the client's first weights.
        generators: states from which the client's random numbers continue.
    """

    def __init__(self, loaded_net: LoadedNet, start: Tree, generators: GlobalGenerators) -> None:
        self._loaded_net, self._start, self._generators = loaded_net, start, generators
        self._tensors: list[Tensor] | None = None

    @property
    def tensors(self) -> list[Tensor]:
        if self._tensors is None:
            self._tensors = self._copied()
        return self._tensors

    def borrowed(self) -> list[Tensor] | None:
        if self._tensors is not None or not self._loaded_net.is_laid_out_as(self._start):
            return None
        return [self._start[name] for name in self._loaded_net.tree]

    def own(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    @torch.no_grad()
    def _copied(self) -> list[Tensor]:
        if self._loaded_net.is_laid_out_as(self._start):
            return [self._start[name].clone() for name in self._loaded_net.tree]
        separate: dict[tuple[int, torch.Size], Tensor] = {}  # entries that share memory in the net share it here
        for tensor in self._loaded_net.tree.values():
            separate.setdefault((tensor.data_ptr(), tensor.shape), torch.empty_like(tensor))
        tensors = [separate[tensor.data_ptr(), tensor.shape] for tensor in self._loaded_net.tree.values()]
        torch._foreach_copy_(tensors, [self._start[name] for name in self._loaded_net.tree])
        return tensors

    @property
    def generator(self) -> torch.Generator:
        return self._generators.separate

    @contextlib.contextmanager
    def in_net(self, *, reads: bool = False) -> Iterator[None]:
        self._loaded_net.load(dict(zip(self._loaded_net.tree, self.tensors, strict=True)))
        versions = self._versions()
        with self._generators.active():
            yield
        self._loaded_net.restore_buffers()
        if reads and self._versions() == versions:  # nothing was written
            return
        with torch.no_grad():
            torch._foreach_copy_(self.tensors, [tensor.detach() for tensor in self._loaded_net.tree.values()])

    def _versions(self) -> list[int]:
        """How often the net's tensors were written."""
        return [tensor._version for tensor in self._loaded_net.tree.values()]

    def weights(self, allocate: Callable[[Tensor], Tensor] | None) -> Tree:
        plain = torch.contiguous_format
        names = self._loaded_net.tree
        return {name: tensor.contiguous(memory_format=plain) for name, tensor in zip(names, self.tensors, strict=True)}
