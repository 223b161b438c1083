"""A block of steps of several clients as one graph of operators.

Short steps cost by the call, and those of large weights by reading and writing them. One client's steps are traced,
updates that can wait are deferred (`engine/deferred.py`), and what is left is done to all clients at once by
`torch.vmap`, or with native kernels to one after another by a C++ function (`engine/cpp`). Every client's numbers are
those of its own steps but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedloom.core.errors import FedloomError
from fedloom.engine.deferred import deferred, fused, products_merged
from fedloom.engine.programs import ATEN, functional, simplified
from fedloom.engine.recorded import MOST, Taken
from fedloom.engine.steps import Pure
from fedloom.methods.phases import Objective

# Of the largest number in a tensor: what a block's steps may be off the plain ones, in the trial on one client.
_TOLERANCE = 1e-5
# Steps of single clients in a run. To trace a block takes a second or two, to compile it a few more.
LEAST, LEAST_NATIVE = 5_000, 10_000
_LARGE = 1 << 14  # numbers of one client's result that lies in memory handed in


class Blocks:
    """The graphs of one worker's stacks, for runs of so many steps, client by client, that they pay.

    Each is made when it is first asked for: its numbers differ from those of single steps by rounding, and must depend
    neither on time nor on where a run was resumed.
    """

    def __init__(self, least: int = LEAST) -> None:
        self.least = least
        self._made: dict[Hashable, StackedBlock | None] = {}

    def get(self, key: Hashable, make: Callable[[], StackedBlock]) -> StackedBlock | None:
        """The block known as `key`, or what `make` makes; None if that fails, or if there are too many."""
        if key not in self._made and len(self._made) < MOST:
            try:
                self._made[key] = make()
            except FedloomError:  # it was asked for, and says what is missing
                raise
            except Exception:  # whatever stands in the way, the steps themselves still run and tell their own errors
                self._made[key] = None
        return self._made.get(key)


class StackedBlock:
    """`pure` for K clients, traced with `inputs`: tensors in and out are [K, ...], but for `common` inputs, which all
    clients share. Inputs stay as they are; after them it is given tensors like `rooms`, in which some results will lie.

    What it leaves (`Taken.tensors`): the entries at `changed`, then the optimiser's state. native: as a C++ function,
    where there is one for each operator; then it is `compiled`, and to record it would save nothing. Raises whatever
    tracing raises, `KernelError` where nothing can be compiled, `ValueError` if more than rounding changes.
    """

    def __init__(
        self,
        pure: Pure,
        changed: Sequence[int],
        states: int,
        common: Sequence[bool],
        inputs: Sequence[Tensor],
        *,
        native: bool = False,
    ) -> None:
        self._pure, first = pure, len(pure.entries)
        self._written = [*changed, *range(first, first + states)]
        self._names: list[tuple[list[str], list[str]]] = []
        one = _first(inputs, common)
        graph = functional(self._flat, [tensor.clone() for tensor in one], self._written)
        with torch.no_grad():
            wanted = graph(*one)
            deferred(graph)
            simplified(graph)
            _check(graph(*one), wanted)
            compiled = _compiled(graph, common, inputs, len(self._written)) if native else None
            self._run = compiled or _Stacked(graph, common, inputs, len(self._written))
            self.compiled, self.rooms = compiled is not None, self._run.rooms
            if self.compiled:
                made = self._run(*inputs, *(torch.empty_like(room, device="cpu") for room in self.rooms))
                _check([tensor[0] for tensor in made], wanted)

    def __call__(self, *tensors: Tensor) -> Taken:
        with torch.no_grad():
            given = iter(self._run(*tensors))
        objectives = [
            Objective(next(given), {name: next(given) for name in terms}, {name: next(given) for name in taps})
            for terms, taps in self._names
        ]
        began, left = list(given), len(self._written)
        return Taken(objectives, [*began[len(began) - left :], *began[: len(began) - left]])

    def _flat(self, *tensors: Tensor) -> list[Tensor]:
        taken = self._pure(*tensors)
        self._names = [(list(out.terms), list(out.taps)) for out in taken.objectives]
        named = [[out.total, *out.terms.values(), *out.taps.values()] for out in taken.objectives]
        return [tensor for group in [*named, taken.tensors] for tensor in group]


def _first(inputs: Sequence[Tensor], common: Sequence[bool]) -> list[Tensor]:
    """The first client's part of each input."""
    return [tensor if shared else tensor[0] for tensor, shared in zip(inputs, common, strict=True)]


def _check(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(got, wanted, strict=True):
        if not one.is_floating_point() or not one.numel():
            near = torch.equal(one, other)
        else:
            near = bool((one - other).abs().max() <= _TOLERANCE * max(1.0, float(other.abs().max())))
        if not near:
            raise ValueError("a block's steps differ from the plain ones by more than rounding")


class _Compiled:
    """A graph of one client as a C++ function. Of its last `results`, the large ones lie in `rooms`."""

    def __init__(self, graph: GraphModule, common: Sequence[bool], inputs: Sequence[Tensor], results: int) -> None:
        from fedloom.engine.cpp import Program  # few runs ask for it

        self._program, self._inputs = Program(graph, _first(inputs, common), common), len(inputs)
        self._shapes = [(len(inputs[-1]), *shape) for shape in self._program.shapes]
        last = range(len(self._shapes) - results, len(self._shapes))
        self._large = [place for place in last if math.prod(self._program.shapes[place]) >= _LARGE]
        self.rooms = [torch.empty(self._shapes[place], device="meta") for place in self._large]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        given, rooms = tensors[: self._inputs], dict(zip(self._large, tensors[self._inputs :], strict=True))
        results = [rooms[n] if n in rooms else torch.empty(shape) for n, shape in enumerate(self._shapes)]
        self._program(len(given[-1]), given, results)
        return results


def _compiled(graph: GraphModule, common: Sequence[bool], inputs: Sequence[Tensor], results: int) -> _Compiled | None:
    """None where there is an operator, or a kind of number, for which there is no C++."""
    from fedloom.engine.cpp import UntranslatableError

    try:
        return _Compiled(graph, common, inputs, results)
    except UntranslatableError:
        return None


class _Stacked:
    """A graph of one client for all at once. Of its last `results`, large updates lie in `rooms`."""

    def __init__(self, graph: GraphModule, common: Sequence[bool], inputs: Sequence[Tensor], results: int) -> None:
        from torch.fx.experimental.proxy_tensor import make_fx

        products_merged(graph)
        simplified(graph)
        dims = tuple(None if shared else 0 for shared in common)
        self._graph = make_fx(torch.vmap(graph, in_dims=dims))(*inputs)
        simplified(self._graph)
        fused(self._graph)
        simplified(self._graph)
        self.rooms = _given_room(self._graph, results)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        results: list[Tensor] = self._graph(*tensors)
        return results


def _given_room(graph: GraphModule, results: int) -> list[Tensor]:
    """Have large updates of stacks among the last results written into memory that is handed in: tensors like these."""
    rooms: list[Tensor] = []
    *_, last = (node for node in graph.graph.nodes if node.op == "placeholder")
    outputs: Any = graph.graph.output_node().args[0]
    for node in dict.fromkeys(outputs[len(outputs) - results :]):
        if node.target is not ATEN.baddbmm.default or node.meta["val"][0].numel() < _LARGE:
            continue
        if node.meta["val"].device.type != "cpu":  # a CUDA graph has memory of its own
            continue
        with graph.graph.inserting_after(last):
            last = graph.graph.placeholder(f"room{len(rooms)}")
        node.target, node.kwargs = ATEN.baddbmm.out, {**node.kwargs, "out": last}
        like = node.meta["val"]
        rooms.append(torch.empty(like.shape, dtype=like.dtype, device="meta"))
    graph.recompile()
    return rooms
