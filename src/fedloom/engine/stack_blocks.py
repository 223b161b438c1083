"""A block of steps of several clients as one graph of operators.

Short steps cost by the call, and those of large weights by reading and writing them. One client's steps are traced,
updates that can wait are deferred (`engine/deferred.py`), and what is left is done to all clients at once by
`torch.vmap`. Every client's numbers are those of its own steps but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from fedloom.engine.deferred import deferred, fused
from fedloom.engine.members import is_linear
from fedloom.engine.programs import ATEN, functional, simplified
from fedloom.engine.recorded import MOST, Taken
from fedloom.engine.steps import Pure
from fedloom.methods.phases import Objective
from fedloom.nets.net import Net

# Of the largest number in a tensor: what the deferred steps may be off the plain ones, in the trial on one client.
_TOLERANCE = 1e-5
LEAST = 5_000  # steps of single clients in a run; to trace a block takes a second or two
_LARGE = 1 << 14  # numbers of one client's weight


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
            except Exception:  # whatever stands in the way, the steps themselves still run and tell their own errors
                self._made[key] = None
        return self._made.get(key)


class StackedBlock:
    """`pure` for K clients, traced with `inputs`: tensors in and out are [K, ...], but for `common` inputs, which all
    clients share. Inputs stay as they are; after them it is given `rooms`, memory in which some of its results lie.

    What it leaves (`Taken.tensors`): the entries at `changed`, then the optimiser's state. Raises whatever tracing
    raises, and `ValueError` if deferring changes more than rounding.
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
        self._pure, self._common = pure, list(common)
        first = len(pure.entries)
        self._written = [*changed, *range(first, first + states)]
        self._names: list[tuple[list[str], list[str]]] = []
        self._graph = self._traced(inputs)
        self.rooms = _given_room(self._graph, len(self._written), native=native)

    def __call__(self, *tensors: Tensor) -> Taken:
        with torch.no_grad():
            given = iter(self._graph(*tensors))
        objectives = [
            Objective(next(given), {name: next(given) for name in terms}, {name: next(given) for name in taps})
            for terms, taps in self._names
        ]
        began, left = list(given), len(self._written)
        return Taken(objectives, [*began[len(began) - left :], *began[: len(began) - left]])

    def _traced(self, tensors: Sequence[Tensor]) -> GraphModule:
        from torch.fx.experimental.proxy_tensor import make_fx

        one = [t.clone() if common else t[0].clone() for t, common in zip(tensors, self._common, strict=True)]
        graph = functional(self._flat, one, self._written)
        with torch.no_grad():
            plain = graph(*one)
            deferred(graph)
            simplified(graph)
            for got, wanted in zip(graph(*one), plain, strict=True):
                if not _near(got, wanted):
                    raise ValueError("deferred updates change more than rounding")
            dims = tuple(None if common else 0 for common in self._common)
            stacked = make_fx(torch.vmap(graph, in_dims=dims))(*tensors)
        simplified(stacked)
        fused(stacked)
        simplified(stacked)
        return stacked

    def _flat(self, *tensors: Tensor) -> list[Tensor]:
        taken = self._pure(*tensors)
        self._names = [(list(out.terms), list(out.taps)) for out in taken.objectives]
        named = [[out.total, *out.terms.values(), *out.taps.values()] for out in taken.objectives]
        return [tensor for group in [*named, taken.tensors] for tensor in group]


def has_large_updates(net: Net) -> bool:
    """Whether stacks of this net may end in large updates of weights, for which there is a native kernel."""
    from fedloom.nets.kernels.operators import LEAST_SIDE

    weights = [p for p in net.parameters() if p.dim() == 2 and min(p.shape) >= LEAST_SIDE]
    return is_linear(net) and any(weight.numel() >= _LARGE for weight in weights)


def _given_room(graph: GraphModule, results: int, *, native: bool) -> list[Tensor]:
    """Have large updates of stacks among the last results written into memory that is handed in: tensors like these."""
    if native:
        from fedloom.nets.kernels.operators import LEAST_SIDE, update  # few runs ask for them
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
        like = node.meta["val"]
        if native and like.dtype == torch.float32 and min(like.shape[1:]) >= LEAST_SIDE:
            factors = [float(node.kwargs.get(name, 1.0)) for name in ("beta", "alpha")]
            node.target, node.args, node.kwargs = update(), (*node.args, last, *factors), {}
        else:
            node.target, node.kwargs = ATEN.baddbmm.out, {**node.kwargs, "out": last}
        rooms.append(torch.empty(like.shape, dtype=like.dtype, device="meta"))
    graph.recompile()
    return rooms


def _near(got: Tensor, wanted: Tensor) -> bool:
    if not wanted.is_floating_point() or not wanted.numel():
        return torch.equal(got, wanted)
    return bool((got - wanted).abs().max() <= _TOLERANCE * max(1.0, float(wanted.abs().max())))
