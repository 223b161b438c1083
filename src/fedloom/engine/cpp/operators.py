"""What torch's operators are in C++: each writes its lines and returns where the result lies.

Those that only look at numbers in another way write nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from fedloom.engine.cpp.arrays import LABEL, Array, UntranslatableError, indices, loops
from fedloom.engine.cpp.writer import Writer, literal
from fedloom.engine.programs import ATEN

Operator: TypeAlias = Callable[..., Any]  # of a writer, a node, and the operator's arguments
_PAST = 1 << 14  # numbers: results as large go past the cache if nothing reads them here


# -- products ----------------------------------------------------------------------------------------------------------
def _mm(writer: Writer, node: Node, a: Array, b: Array) -> Array:
    return _product(writer, node, None, a, b)


def _addmm(
    writer: Writer, node: Node, start: Array, a: Array, b: Array, *, beta: float = 1.0, alpha: float = 1.0
) -> Array:
    stretched = start.stretched((a.shape[0], b.shape[1]))
    return _product(writer, node, stretched, a, b, beta, alpha)


def _product(
    writer: Writer, node: Node, start: Array | None, a: Array, b: Array, beta: float = 1.0, alpha: float = 1.0
) -> Array:
    """beta start + alpha a b (`products.h`)."""
    (m, k), n = a.shape, b.shape[1]
    if 0 in (m, n, k):
        raise UntranslatableError("a product of nothing")
    out = writer.new(node, (m, n))
    row, step = start.strides if start else (0, 1)
    pointers = (a.pointer, b.pointer, start.pointer if start else "nullptr", out.pointer)
    given = ", ".join([*pointers, literal(beta), literal(alpha)])
    if a.strides[1] == b.strides[0] == 1:
        sizes = [m, n, k, a.strides[0], b.strides[1], row, step]
        line = f"products::by_columns<{', '.join(map(str, sizes))}>({given});"
    elif b.strides[1] == 1 and (step == 1 or n == 1):
        past = writer.only_result(node) and m * n >= _PAST
        sizes = [m, n, k, *a.strides, b.strides[0], row]
        line = f"products::by_rows<{', '.join(map(str, sizes))}>({given}, {str(past).lower()});"
    else:
        raise UntranslatableError(f"a product of {a}, {b} and {start}")
    writer.emit(line, out, a, b, *([start] if start else []))
    return out


# -- numbers at the same place -----------------------------------------------------------------------------------------
def _each(writer: Writer, node: Node, expression: str, *given: Array) -> Array:
    """`expression` of {0}, {1}, ..., stretched as torch broadcasts."""
    shape = torch.broadcast_shapes(*(array.shape for array in given))  # type: ignore[no-untyped-call]
    return writer.each(writer.new(node, shape), expression, *given)


def _elementwise(expression: str) -> Operator:
    return lambda writer, node, *given: _each(writer, node, expression, *given)


def _arithmetic(sign: str) -> Operator:
    """Of two arrays, or of one and a number; `alpha` scales the second."""

    def written(writer: Writer, node: Node, a: Array, b: Array | float, *, alpha: float = 1.0) -> Array:
        if not isinstance(b, Array):
            return _each(writer, node, f"{{0}} {sign} {literal(alpha * b)}", a)
        scale = "" if alpha == 1 else f"{literal(alpha)} * "
        return _each(writer, node, f"{{0}} {sign} {scale}{{1}}", a, b)

    return written


def _power(writer: Writer, node: Node, a: Array, exponent: float) -> Array:
    if exponent not in (1, 2):
        raise UntranslatableError(f"the power {exponent}")
    return _each(writer, node, " * ".join(["{0}"] * int(exponent)), a)


def _threshold_backward(writer: Writer, node: Node, g: Array, x: Array, least: float) -> Array:
    return _each(writer, node, f"{{1}} <= {literal(least)} ? 0.0f : {{0}}", g, x)


# -- sums --------------------------------------------------------------------------------------------------------------
def _reduced(
    writer: Writer, node: Node, array: Array, sides: Sequence[int] = (), keep: bool = False, *, mean: bool = False
) -> Array:
    """Sums or means over `sides`, or over all."""
    count = len(array.shape)
    over = sorted({side % count for side in sides} or range(count))
    kept = [side for side in range(count) if side not in over]
    ones = tuple(1 if side in over else size for side, size in enumerate(array.shape))
    out = writer.new(node, ones if keep else [array.shape[side] for side in kept])
    to, summed = out.reshaped(ones).stretched(array.shape), math.prod(array.shape[side] for side in over)
    if kept and array.strides[kept[-1]] == 1:  # rows onto each other
        writer.each(out, "0.0f")
        to, given = (one.turned([*over, *kept]) for one in (to, array))
        names = indices(given)
        writer.emit(loops(given.shape, f"{to.at(*names)} += {given.at(*names)};"), out, array)
        return writer.each(out, f"{{0}} / {summed}", out) if mean else out
    to, given = (one.turned([*kept, *over]) for one in (to, array))
    names, split = indices(given), len(kept)
    outer = loops(given.shape[split:-1], "", first=split)
    inner = loops(
        given.shape[-1:], f"sum += {given.at(*names)};", first=count - 1, pragma="omp simd reduction(+ : sum)"
    )
    result = f"sum / {summed}" if mean else "sum"
    body = f"{{ double sum = 0; {outer}{inner} {to.at(*names)} = float({result}); }}"
    writer.emit(loops(given.shape[:split], body, pragma=None), out, array)
    return out


# -- along one side ----------------------------------------------------------------------------------------------------
def _along(writer: Writer, node: Node, shape: Sequence[int], side: int, text: str, *given: Array) -> Array:
    """`text` with {out}, {0}, {1}, ... for numbers and {all} for the loop along the side."""
    out = writer.new(node, shape)
    side %= len(shape)
    order = [*(other for other in range(len(shape)) if other != side), side]
    to, *others = (array.stretched(shape).turned(order) for array in (out, *given))
    names = indices(to)
    along = f"for (int {names[-1]} = 0; {names[-1]} < {shape[side]}; {names[-1]}++)"
    body = text.format(*(array.at(*names) for array in others), out=to.at(*names), all=along)
    writer.emit(loops(to.shape[:-1], f"{{ {body} }}", pragma=None), out, *given)
    return out


_LARGEST = "float largest = -INFINITY; {all} largest = {0} > largest ? {0} : largest; "
_SOFTMAX = _LARGEST + "float sum = 0; {all} sum += {out} = std::exp({0} - largest); {all} {out} /= sum;"
_LOG_SOFTMAX = (
    _LARGEST + "float sum = 0; {all} sum += std::exp({0} - largest); "
    "const float log = std::log(sum); {all} {out} = {0} - largest - log;"
)
# Of gradients {0} and results {1}.
_SOFTMAX_BACKWARD = "float sum = 0; {all} sum += {0} * {1}; {all} {out} = {1} * ({0} - sum);"
_LOG_SOFTMAX_BACKWARD = "float sum = 0; {all} sum += {0}; {all} {out} = {0} - std::exp({1}) * sum;"


def _softmax(text: str) -> Operator:
    def written(writer: Writer, node: Node, x: Array, side: int, _half: bool) -> Array:
        return _along(writer, node, x.shape, side, text, x)

    return written


def _softmax_backward(text: str) -> Operator:
    def written(writer: Writer, node: Node, g: Array, y: Array, side: int, _dtype: torch.dtype) -> Array:
        return _along(writer, node, y.shape, side, text, g, y)

    return written


# -- labels ------------------------------------------------------------------------------------------------------------
def _nll(
    writer: Writer, _: Node, logs: Array, labels: Array, weight: None, reduction: int, ignored: int
) -> tuple[Array, None]:
    """Of each sample. What they weigh, the second result, is None: only means would need it."""
    out = writer.new(None, logs.shape[:1])
    body = f"{out.at('i0')} = counts ? -{logs.at('i0', 'label')} : 0.0f;"
    _labelled(writer, body, labels, logs.shape[1], ignored, out, logs)
    return _of_each(out, weight, reduction), None


def _nll_backward(
    writer: Writer,
    node: Node,
    g: Array,
    logs: Array,
    labels: Array,
    weight: None,
    reduction: int,
    ignored: int,
    _: None,
) -> Array:
    out = writer.each(writer.new(node, logs.shape), "0.0f")
    body = f"if (counts) {out.at('i0', 'label')} = -{g.at('i0')};"
    _labelled(writer, body, labels, logs.shape[1], ignored, out, g)
    return _of_each(out, weight, reduction)


def _labelled(writer: Writer, body: str, labels: Array, classes: int, ignored: int, *arrays: Array) -> None:
    """`body` for each sample i0, its `label`, and whether it `counts`."""
    if labels.kind != LABEL:
        raise UntranslatableError("labels that are no whole numbers")
    text = (
        f"{{ const auto label = {labels.at('i0')}; const bool counts = label >= 0 && label < {classes}; "
        f"failed |= !counts && label != {ignored}; {body} }}"
    )
    writer.emit(loops(labels.shape, text, pragma=None), labels, *arrays)


def _of_each(result: Array, weight: None, reduction: int) -> Array:
    if weight is not None or reduction:
        raise UntranslatableError("a cross-entropy that weighs or sums")
    return result


# -- parts and wholes --------------------------------------------------------------------------------------------------
def _cat(writer: Writer, node: Node, arrays: Sequence[Array], side: int = 0) -> Array:
    shape = list(arrays[0].shape)
    side %= len(shape)
    shape[side] = sum(array.shape[side] for array in arrays)
    out, start = writer.new(node, shape), 0
    for array in arrays:
        writer.each(out.part(side, start, start + array.shape[side]), "{0}", array)
        start += array.shape[side]
    return out


def _stack(writer: Writer, node: Node, arrays: Sequence[Array], side: int = 0) -> Array:
    side %= len(arrays[0].shape) + 1
    return _cat(writer, node, [array.widened(side) for array in arrays], side)


def _split(_: Writer, __: Node, array: Array, size: int, side: int = 0) -> list[Array]:
    side %= len(array.shape)
    starts = range(0, array.shape[side], size)
    return [array.part(side, start, min(start + size, array.shape[side])) for start in starts]


def _slice(
    _: Writer, __: Node, array: Array, side: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Array:
    if step != 1:
        raise UntranslatableError(f"every {step}th number")
    side %= len(array.shape)
    first, last, _one = slice(start, stop).indices(array.shape[side])
    return array.part(side, first, max(first, last))


def _view(writer: Writer, _: Node, array: Array, shape: Sequence[int]) -> Array:
    return writer.in_plain_order(array).reshaped(shape)


def _expand(_: Writer, __: Node, array: Array, shape: Sequence[int]) -> Array:
    own = [1] * (len(shape) - len(array.shape)) + list(array.shape)
    return array.stretched([had if size == -1 else size for size, had in zip(shape, own, strict=True)])


def _transpose(_: Writer, __: Node, array: Array, one: int, other: int) -> Array:
    order = list(range(len(array.shape)))
    order[one], order[other] = order[other], order[one]
    return array.turned(order)


OPERATORS: dict[Any, Operator] = {
    ATEN.mm.default: _mm,
    ATEN.addmm.default: _addmm,
    ATEN.add.Tensor: _arithmetic("+"),
    ATEN.sub.Tensor: _arithmetic("-"),
    ATEN.mul.Tensor: _arithmetic("*"),
    ATEN.mul.Scalar: _arithmetic("*"),
    ATEN.div.Tensor: _arithmetic("/"),
    ATEN.pow.Tensor_Scalar: _power,
    ATEN.neg.default: _elementwise("-{0}"),
    ATEN.exp.default: _elementwise("std::exp({0})"),
    ATEN.relu.default: _elementwise("{0} < 0 ? 0.0f : {0}"),
    ATEN.threshold_backward.default: _threshold_backward,
    ATEN.sum.default: _reduced,
    ATEN.sum.dim_IntList: _reduced,
    ATEN.mean.default: partial(_reduced, mean=True),
    ATEN.mean.dim: partial(_reduced, mean=True),
    ATEN._softmax.default: _softmax(_SOFTMAX),
    ATEN._log_softmax.default: _softmax(_LOG_SOFTMAX),
    ATEN._softmax_backward_data.default: _softmax_backward(_SOFTMAX_BACKWARD),
    ATEN._log_softmax_backward_data.default: _softmax_backward(_LOG_SOFTMAX_BACKWARD),
    ATEN.nll_loss_forward.default: _nll,
    ATEN.nll_loss_backward.default: _nll_backward,
    ATEN.cat.default: _cat,
    ATEN.stack.default: _stack,
    operator.getitem: lambda writer, node, values, place: values[place],
    ATEN.split.Tensor: _split,
    ATEN.slice.Tensor: _slice,
    ATEN.view.default: _view,
    ATEN._unsafe_view.default: _view,
    ATEN.expand.default: _expand,
    ATEN.t.default: lambda writer, node, array: array.turned([1, 0]),
    ATEN.transpose.int: _transpose,
    ATEN.permute.default: lambda writer, node, array, order: array.turned(order),
    ATEN.alias.default: lambda writer, node, array: array,
    ATEN.clone.default: lambda writer, node, array, **_: array,  # nobody writes into it
}
