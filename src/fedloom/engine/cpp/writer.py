"""The text of a function that computes a graph, and the memory for what is left in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fedloom.engine.cpp.arrays import LABEL, NUMBER, Array, UntranslatableError, indices, loops, merged

_LINE = 16  # numbers: a line of the cache
_MOST_CONSTANTS = 4096
_KINDS = {torch.float32: NUMBER, torch.int64: LABEL}
_TEXT = """#include <cmath>

#include "products.h"

namespace {{

{constants}

bool one(int client, float *scratch, const void *const *in, void *const *out) {{
bool failed = false;
{body}
return failed;
}}

}}  // namespace

extern "C" int block(int clients, float *scratch, const void *const *in, void *const *out) {{
  bool failed = false;
  for (int client = 0; client < clients; client++) failed |= one(client, scratch, in, out);
  products::written();
  return failed;
}}
"""


class Writer:
    """Writes `int block(int clients, float *scratch, const void *const *in, void *const *out)` line by line. It returns
    whether a label named no class.

    inputs: tensors like those of one client; common: which all clients share, the others lie one client after another.
    """

    def __init__(self, graph: GraphModule, inputs: Sequence[Tensor], common: Sequence[bool]) -> None:
        self.scratch = 0  # numbers that it needs
        self._steps = [0 if shared else tensor.numel() for tensor, shared in zip(inputs, common, strict=True)]
        self._output = graph.graph.output_node()
        self._wanted: list[Node] = list(cast(Any, self._output.args[0]))
        self._inputs = [Array.plain(f"in{n}", tensor.shape, _kind(tensor)) for n, tensor in enumerate(inputs)]
        self._lines: list[tuple[str, set[str]]] = []  # and the memory that each reads or writes
        self._sizes: dict[str, int] = {}  # of memory in between
        self._constants: list[str] = []

    # -- what there is -----------------------------------------------------------------------------------------
    def input(self, number: int) -> Array:
        """One client's part of an input."""
        return self._inputs[number]

    def constant(self, tensor: Tensor) -> Array:
        """Numbers that no input decides."""
        flat = tensor.detach().cpu().flatten()
        if tensor.dtype != torch.float32 or not flat.numel() or not flat.isfinite().all():
            raise UntranslatableError(f"a constant of {tensor.dtype} and shape {tuple(tensor.shape)}")
        alike = bool((flat == flat[0]).all())
        if not alike and flat.numel() > _MOST_CONSTANTS:
            raise UntranslatableError(f"{flat.numel()} constants")
        plain = Array.plain(f"constant{len(self._constants)}", tensor.shape)
        numbers = ", ".join(map(literal, (flat[:1] if alike else flat).tolist()))
        self._constants.append(f"const float {plain.base}[] = {{{numbers}}};")
        return Array(plain.base, plain.shape, (0,) * len(plain.shape)) if alike else plain

    def new(self, node: Node | None, shape: Sequence[int]) -> Array:
        """Memory for what `node` stands for: the caller's own if it is a result, else in between."""
        if node in self._wanted:
            return Array.plain(f"out{self._wanted.index(node)}", shape)
        name = f"t{len(self._sizes)}"
        self._sizes[name] = -(-max(1, math.prod(shape)) // _LINE) * _LINE
        return Array.plain(name, shape)

    def only_result(self, node: Node) -> bool:
        """Whether nothing here reads what `node` stands for."""
        return set(node.users) == {self._output}

    # -- what is done ------------------------------------------------------------------------------------------
    def emit(self, line: str, *arrays: Array) -> None:
        """A line, and all that it reads or writes."""
        self._lines.append((line, {array.base for array in arrays}))

    def each(self, out: Array, expression: str, *given: Array) -> Array:
        """`out` from numbers at the same place of others, stretched to its shape: {0}, {1}, ..."""
        if any(array.kind != NUMBER for array in given):
            raise UntranslatableError("arithmetic with whole numbers")
        to, *others = merged(out, *(array.stretched(out.shape) for array in given))
        names = indices(to)
        value = expression.format(*(array.at(*names) for array in others))
        self.emit(loops(to.shape, f"{to.at(*names)} = {value};"), out, *given)
        return out

    def in_plain_order(self, array: Array) -> Array:
        """The array, or a copy of it."""
        return array if array.is_plain else self.each(self.new(None, array.shape), "{0}", array)

    # -- the text ----------------------------------------------------------------------------------------------
    def text(self, results: Sequence[Array]) -> str:
        """The whole, once all is written; `results` in the order of the graph's."""
        for number, array in enumerate(results):
            if array.base != f"out{number}":
                self.each(Array.plain(f"out{number}", array.shape), "{0}", array)
        heads = [
            *(f"float *const {name} = scratch + {place};" for name, place in self._placed().items()),
            *(_head("in", number, array, step, "const ") for number, (array, step) in self._given()),
            *(_head("out", number, array, math.prod(array.shape)) for number, array in enumerate(results)),
        ]
        body = "\n".join([*heads, *(line for line, _ in self._lines)])
        return _TEXT.format(constants="\n".join(self._constants), body=body)

    def _given(self) -> list[tuple[int, tuple[Array, int]]]:
        """Inputs that are read."""
        read = {name for _, used in self._lines for name in used}
        pairs = zip(self._inputs, self._steps, strict=True)
        return [(number, pair) for number, pair in enumerate(pairs) if pair[0].base in read]

    def _placed(self) -> dict[str, int]:
        """Where each memory in between begins: what is not read any more makes room for others."""
        last = {name: number for number, (_, used) in enumerate(self._lines) for name in used}
        free: list[tuple[int, int]] = []  # sizes and places
        places: dict[str, int] = {}
        for number, (_, used) in enumerate(self._lines):
            own = sorted(used & self._sizes.keys())
            for name in own:
                if name not in places:
                    places[name] = self._place(self._sizes[name], free)
            free += [(self._sizes[name], places[name]) for name in own if last[name] == number]
        return places

    def _place(self, size: int, free: list[tuple[int, int]]) -> int:
        """Room for `size` numbers: the smallest of the free ones that suffices, or new."""
        fits = [gap for gap in free if gap[0] >= size]
        if not fits:
            self.scratch += size
            return self.scratch - size
        had, place = gap = min(fits)
        free.remove(gap)
        if had > size:
            free.append((had - size, place + size))
        return place


def literal(number: float) -> str:
    """A number as C++ of type float."""
    if not math.isfinite(number):
        raise UntranslatableError(f"a constant {number}")
    return f"{float(number).hex()}f"


def _kind(tensor: Tensor) -> str:
    if tensor.dtype not in _KINDS:
        raise UntranslatableError(f"numbers of {tensor.dtype}")
    return _KINDS[tensor.dtype]


def _head(side: str, number: int, array: Array, step: int, const: str = "") -> str:
    """The pointer to one client's part of an input or a result."""
    kind, moved = f"{const}{array.kind} *", f" + client * {step}L" if step else ""
    return f"{kind}const {side}{number} = static_cast<{kind}>({side}[{number}]){moved};"
