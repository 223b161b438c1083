"""Weights that a block of steps only multiplies with: their updates are kept as factors and made once.

A linear layer's gradient of a batch of m rows is a product D'X of rank m. After some steps of plain SGD its weight is
W - lr (D1'X1 + D2'X2 + ...), and what it is multiplied with next becomes
X W' - lr (X [X1; X2; ...]') [D1; D2; ...]: small products in place of reading and writing W in every step. The numbers
are the same but for rounding, so this is for engines that need not have the serial one's bits.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch.fx import GraphModule, Node

from fedloom.engine.programs import ATEN, shape

_PRODUCTS = {ATEN.mm.default: 0, ATEN.addmm.default: 1}  # where the left operand stands


@dataclass(frozen=True, slots=True)
class _Update:
    """`node` = weight + alpha * `product`; the product is one of [out, rank] and [rank, into]."""

    node: Node
    weight: Node
    product: Node
    alpha: float
    rank: int


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows `start` and on of `whole`, in the shape `[rows, *rest]`."""

    whole: Node
    start: int
    rows: int
    rest: tuple[int, ...]


def deferred(graph: GraphModule) -> None:
    """Defer what can be deferred in a graph of operators that writes into nothing (`programs.functional`)."""
    for chain in _chains(graph):
        _Deferral(graph, chain).run()


def fused(graph: GraphModule) -> None:
    """Sums of something and a product of stacks as one operator each, in a graph that writes into nothing."""
    for node in graph.graph.nodes:
        if node.target is ATEN.mul.Scalar and node.args[1] == 1:  # of `addmm`, taken apart by `torch.vmap`
            node.replace_all_uses_with(node.args[0])
        if node.target is not ATEN.add.Tensor:
            continue
        summand, product = node.args
        if not isinstance(product, Node) or product.target is not ATEN.bmm.default or len(product.users) > 1:
            continue
        if _sized(node) == _sized(product) and isinstance(summand, Node):
            with graph.graph.inserting_before(node):
                one = graph.graph.call_function(ATEN.baddbmm.default, (summand, *product.args), dict(node.kwargs))
            _in_place_of(node, one)


def _chains(graph: GraphModule) -> list[list[_Update]]:
    """Updates one after another of the same weight."""
    updates = {found.weight: found for node in graph.graph.nodes if (found := _update(node)) is not None}
    later = {found.node for found in updates.values()}
    chains = []
    for weight, found in updates.items():
        if weight in later:
            continue
        chain = [found]
        while (after := updates.get(chain[-1].node)) is not None and after.alpha == found.alpha:
            chain.append(after)
        chains.append(chain)
    return chains


def _update(node: Node) -> _Update | None:
    if node.target is not ATEN.add.Tensor or len(node.args) != 2:
        return None
    weight, gradient = node.args
    if not isinstance(weight, Node) or not isinstance(gradient, Node):
        return None
    if gradient.target is not ATEN.mm.default or len(gradient.users) > 1:
        return None
    return _Update(node, weight, gradient, float(node.kwargs.get("alpha", 1)), _sized(gradient.args[1])[0])  # type: ignore[arg-type]


class _Deferral:
    """The updates of one weight. `base` is the last one made, `kept` are those since."""

    def __init__(self, graph: GraphModule, chain: Sequence[_Update]) -> None:
        self._graph, self._chain = graph.graph, chain
        self._base, self._kept = chain[0].weight, list[_Update]()
        out, into = _sized(chain[0].node)
        # Up to this rank, products with factors cost at most a quarter of what those with the weight cost.
        self._most = out * into // (out + into)

    def run(self) -> None:
        for place, update in enumerate(self._chain):
            self._kept.append(update)
            after = self._chain[place + 1].node if place + 1 < len(self._chain) else None
            products = _products(update.node, after)
            if after is None or products is None or sum(kept.rank for kept in self._kept) > self._most:
                self._make(update.node)
            else:
                for product, transposed in products:
                    self._replace(product, transposed=transposed)

    def _make(self, node: Node) -> None:
        """The weight itself."""
        with self._graph.inserting_before(node):
            lefts, rights = self._factors()
            made = self._call(ATEN.addmm.default, self._base, self._t(lefts), rights, alpha=self._kept[0].alpha)
        _in_place_of(node, made)
        self._base, self._kept = made, []

    def _replace(self, product: Node, *, transposed: bool) -> None:
        """A product with today's weight, or its transpose, by products with the last one made and the factors since."""
        place = _place(product) or 0
        given = product.args[place]
        with self._graph.inserting_before(product):
            lefts, rights = self._factors()
            base = self._t(self._base) if transposed else self._base
            first = self._call(product.target, *product.args[:place], given, base, **product.kwargs)
            inner, outer = (rights, lefts) if transposed else (lefts, rights)
            small = self._call(ATEN.mm.default, given, self._t(inner))
            alpha = self._kept[0].alpha * float(product.kwargs.get("alpha", 1))  # type: ignore[arg-type]
            whole = self._call(ATEN.addmm.default, first, small, outer, alpha=alpha)
        _in_place_of(product, whole)

    def _factors(self) -> tuple[Node, Node]:
        """Left factors, transposed, and right ones, each one under the other: [r, out] and [r, into]."""
        lefts, rights = zip(*(kept.product.args for kept in self._kept), strict=True)
        return self._rows([self._t(left) for left in lefts]), self._rows(list(rights))

    def _rows(self, nodes: list[Node]) -> Node:
        """All rows of some nodes: where they are the first parts of one tensor, a part of it."""
        parts = [_part(node) for node in nodes]
        first = parts[0]
        if first is not None and first.start == 0 and all(_follows(a, b) for a, b in itertools.pairwise(parts)):
            rows = sum(part.rows for part in parts if part is not None)
            flat = self._call(ATEN.view.default, first.whole, [_sized(first.whole)[0], *first.rest])
            return self._call(ATEN.slice.Tensor, flat, 0, 0, rows)
        return self._call(ATEN.cat.default, nodes) if len(nodes) > 1 else nodes[0]

    def _t(self, node: Node) -> Node:
        return node.args[0] if node.target is ATEN.t.default else self._call(ATEN.t.default, node)  # type: ignore[return-value]

    def _call(self, target: Any, *arguments: Any, **named: Any) -> Node:
        return self._graph.call_function(target, arguments, named)


def _place(node: Node) -> int | None:
    """Where the left operand of a product stands; None for other nodes."""
    return _PRODUCTS.get(cast(Any, node.target))


def _products(weight: Node, after: Node | None) -> list[tuple[Node, bool]] | None:
    """Products of something with `weight`, and whether with its transpose; None if it has another use."""
    found: list[tuple[Node, bool]] = []
    for user in weight.users:
        if user is after:
            continue
        transposed = user.target is ATEN.t.default
        for product in list(user.users) if transposed else [user]:
            place = _place(product)
            operand = user if transposed else weight
            if place is None or product.args[place + 1] is not operand:
                return None
            found.append((product, transposed))
    return found


def products_merged(graph: GraphModule) -> None:
    """Products of parts of an input with the same matrix, or with first rows of that input, as one product each: fewer
    calls, for some numbers that nobody asks for.
    """
    groups: dict[tuple[Node, Node | None, bool], list[_Product]] = {}
    for node in graph.graph.nodes:
        place = _place(node)
        if place is None or node.kwargs:
            continue
        part, right = _part(node.args[place]), node.args[place + 1]
        if part is None or part.whole.op != "placeholder" or len(part.rest) != 1:
            continue
        transposed = right.target is ATEN.t.default
        matrix = right.args[0] if transposed else right
        first = _first_rows(matrix, part.whole) if transposed else None
        key = (part.whole, matrix if first is None else None, transposed)
        groups.setdefault(key, []).append(_Product(node, part, matrix, first))
    for (_, _, transposed), products in groups.items():
        if len(products) > 1:
            _merge(graph, products, transposed=transposed)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of a part of an input with `matrix`, which is the `first` rows of that input if that is a number."""

    node: Node
    part: _Part
    matrix: Node
    first: int | None


def _first_rows(matrix: Node, whole: Node) -> int | None:
    """How many first rows of `whole`, flattened, a node is; None if it is something else."""
    if matrix.target is not ATEN.slice.Tensor or matrix.args[1:3] != (0, 0):
        return None
    flat = cast(Node, matrix.args[0])
    return cast(int, matrix.args[3]) if flat.target is ATEN.view.default and flat.args[0] is whole else None


def _merge(graph: GraphModule, products: list[_Product], *, transposed: bool) -> None:
    call, whole, rest = graph.graph.call_function, products[0].part.whole, products[0].part.rest
    start = min(product.part.start for product in products)
    end = max(product.part.start + product.part.rows for product in products)
    with graph.graph.inserting_before(products[0].node):
        flat = call(ATEN.view.default, (whole, [_sized(whole)[0], *rest]))
        matrix = products[0].matrix
        if products[0].first is not None:
            matrix = call(ATEN.slice.Tensor, (flat, 0, 0, max(product.first or 0 for product in products)))
        right = call(ATEN.t.default, (matrix,)) if transposed else matrix
        joint = call(ATEN.mm.default, (call(ATEN.slice.Tensor, (flat, 0, start, end)), right))
    for product in products:
        node, own = product.node, product.part.start - start
        with graph.graph.inserting_before(node):
            rows = call(ATEN.slice.Tensor, (joint, 0, own, own + product.part.rows))
            if product.first is not None:
                rows = call(ATEN.slice.Tensor, (rows, 1, 0, product.first))
            if node.target is ATEN.addmm.default:
                rows = call(ATEN.add.Tensor, (rows, node.args[0]))
        _in_place_of(node, rows)


def _part(node: Any) -> _Part | None:
    """What a node is a part of, if it is one of a tensor's `split` along its rows, perhaps with its rows flattened."""
    taken = node.args[0] if node.target is ATEN.view.default else node
    if taken.target is not operator.getitem or taken.args[0].target is not ATEN.split.Tensor:
        return None
    whole, size, *dim = taken.args[0].args
    rows, *rest = _sized(node)
    if dim not in ([], [0]) or rows != _sized(taken)[0]:
        return None
    return _Part(whole, taken.args[1] * size, rows, tuple(rest))


def _follows(one: _Part | None, other: _Part | None) -> bool:
    """Whether the second part begins where the first ends."""
    if one is None or other is None:
        return False
    return one.whole is other.whole and one.rest == other.rest and one.start + one.rows == other.start


def _in_place_of(old: Node, new: Node) -> None:
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)


def _sized(node: Any) -> tuple[int, ...]:
    found = shape(node)
    assert found is not None, f"{node} is no tensor"
    return found
