"""Compile a function of tensors to the sequence of operators that it calls.

`make_fx` traces the operators, and TorchScript's interpreter runs them without its optimisations, which would change
bits. The changes made here keep all bits: transposes that cancel out are removed, and constants are computed once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.jit import optimized_execution  # type: ignore[attr-defined]


class UnrecordableError(Exception):
    """A function cannot be replayed with the same bits."""


class RandomNumbersError(UnrecordableError):
    """A function draws random numbers, and a program would not draw them from the same stream."""


Program: TypeAlias = Callable[..., Sequence[Tensor]]
ATEN = torch.ops.aten
# Operators whose result depends on the shape, dtype and device of their input alone.
_FILLED = (ATEN.ones_like.default, ATEN.zeros_like.default, ATEN.new_zeros.default)
_RESHAPED = (ATEN.view.default, ATEN._unsafe_view.default, ATEN.expand.default)


def compiled(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Program:
    """Return `function` for inputs of these layouts as TorchScript, or as a Python function if that cannot be traced.

    The program writes into its inputs as `function` does; `inputs` are overwritten. Raises `RandomNumbersError` for
    functions that draw random numbers, and tracing errors, e.g. for functions that depend on values.
    """
    graph = _traced(function, inputs)
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise RandomNumbersError(f"the loss or the net draws random numbers ({node.target})")
    simplify(graph)
    _replace_masks(graph)
    graph.recompile()

    def replayed(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(graph.forward(*tensors))

    with warnings.catch_warnings(), torch.no_grad(), optimized_execution(False):
        warnings.simplefilter("ignore")  # warnings that TorchScript is deprecated
        try:
            script: Program = torch.jit.trace(replayed, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
        except RuntimeError:  # an argument of a type that its tracer does not support
            return replayed

    def run(*tensors: Tensor) -> Sequence[Tensor]:
        with optimized_execution(False):
            return script(*tensors)

    return run


def _traced(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> GraphModule:
    """Trace the operators of `function`. A shared fake-tensor mode spares each operator one of its own."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second, which most runs do not need

    with tracing(TracingContext(FakeTensorMode())):
        return make_fx(function)(*inputs)


def simplify(graph: GraphModule) -> None:
    """Remove detachments, transposes of transposes and views of the same shape from a graph, and fold constants."""
    nodes = graph.graph.nodes
    for node in list(nodes):
        if node.target is ATEN.detach.default:  # a program is never differentiated
            node.replace_all_uses_with(node.args[0])
        if node.target is ATEN.t.default and node.args[0].target is ATEN.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        if node.target in _RESHAPED and shape(node) is not None and shape(node) == shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
    _fold_constants(graph)
    for node in reversed(list(nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            graph.graph.erase_node(node)
    graph.recompile()


def shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of a node's tensor; None if its value is no tensor."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _replace_masks(graph: GraphModule) -> None:
    """Replace operators with an `output_mask`, a list of bools that `torch.jit.trace` does not support."""
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.arguments[-1].name == "output_mask":
            node.target = _with_mask(schema.name, node.args)


def _with_mask(name: str, arguments: Sequence[Any]) -> Callable[..., list[Tensor | None]]:
    """Return the operator as a function of its tensors, with its other arguments fixed. Masked results are None."""
    call = [f"t{index}" if isinstance(argument, Node) else repr(argument) for index, argument in enumerate(arguments)]
    tensor_indices = [index for index, argument in enumerate(arguments) if isinstance(argument, Node)]
    output_indices = [index for index, is_needed in enumerate(arguments[-1]) if is_needed]
    unit = torch.jit.CompilationUnit(f"""
def run({", ".join(f"t{index}: Tensor" for index in tensor_indices)}):
    results = torch.ops.{name.replace("::", ".")}({", ".join(call)})
    return {", ".join(f"results[{index}]" for index in output_indices)}
""")

    def run(*operands: Any) -> list[Tensor | None]:
        result = unit.run(*(operands[index] for index in tensor_indices))
        outputs = iter(result if len(output_indices) > 1 else [result])
        return [next(outputs) if is_needed else None for is_needed in operands[-1]]

    return run


def _fold_constants(graph: GraphModule) -> None:
    """Compute values that depend on no input once, unless an operator writes into them."""
    constants: dict[Node, Tensor] = {}
    for node in list(graph.graph.nodes):
        inputs = node.all_input_nodes
        if node.op != "call_function" or any(_writes_into(node, input_) for input_ in inputs):
            continue
        if node.target in _FILLED:
            template = inputs[0].meta["val"]
            empty = torch.empty_strided(template.shape, template.stride(), dtype=template.dtype, device=template.device)
            value = node.target(empty, *node.args[1:], **node.kwargs)
        elif inputs and all(input_ in constants for input_ in inputs):
            value = node.target(*map_arg(node.args, constants.__getitem__), **node.kwargs)
        else:
            continue
        if isinstance(value, Tensor) and not any(_writes_into(user, node) for user in node.users):
            constants[node] = value
            name = f"folded{len(constants)}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                constant = graph.graph.get_attr(name)
            node.replace_all_uses_with(constant)
            constants[constant] = value


def _writes_into(user: Node, node: Node) -> bool:
    """Whether the operator `user` writes into the value of `node`."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    operands = dict(zip((argument.name for argument in schema.arguments), user.args, strict=False)) | user.kwargs
    written = [operands.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return any(node is operand or (isinstance(operand, list) and node in operand) for operand in written)
