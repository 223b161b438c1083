"""A function of tensors as the operators that it calls, without the Python and the graph that lead to them.

Operators are traced by `make_fx` and run by TorchScript's interpreter, without its optimisations, which would change
bits. What is done to them here changes none: transposes that cancel out are gone, and what no input decides is computed
once.
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
    """What a function does cannot be replayed."""


class RandomNumbersError(UnrecordableError):
    """A function draws random numbers: a program would not draw them from the same stream."""


Program: TypeAlias = Callable[..., Sequence[Tensor]]
ATEN = torch.ops.aten
# Operators that ask nothing of their input but its shape, dtype and device.
_SHAPED = (ATEN.ones_like.default, ATEN.zeros_like.default, ATEN.new_zeros.default)
_RESHAPED = (ATEN.view.default, ATEN._unsafe_view.default, ATEN.expand.default)


def compiled(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Program:
    """`function` for tensors of these layouts: as TorchScript if its operators can be, else replayed from Python.

    What `function` writes into its inputs, the program does too. `inputs` may be written into. Raises
    `RandomNumbersError` for functions that draw random numbers, and whatever tracing raises, for those that look at
    values.
    """
    graph = _traced(function, inputs)
    for node in graph.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise RandomNumbersError(f"the loss or the net draws random numbers ({node.target})")
    simplified(graph)
    _masks_scripted(graph)
    graph.recompile()

    def replayed(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(graph.forward(*tensors))

    with warnings.catch_warnings(), torch.no_grad(), optimized_execution(False):
        warnings.simplefilter("ignore")  # TorchScript is no longer developed, and says so
        try:
            script: Program = torch.jit.trace(replayed, tuple(inputs), check_trace=False)  # type: ignore[no-untyped-call]
        except RuntimeError:  # an argument of a kind that its tracer does not know
            return replayed

    def run(*tensors: Tensor) -> Sequence[Tensor]:
        with optimized_execution(False):
            return script(*tensors)

    return run


def _traced(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> GraphModule:
    """The operators of `function`. One mode serves all shapes: else every operator makes one, and its traceback."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second: most runs never come here

    with tracing(TracingContext(FakeTensorMode())):
        return make_fx(function)(*inputs)


def simplified(graph: GraphModule) -> None:
    """Leave out what changes nothing: detachments, transposes of transposes, views of the same shape, constants."""
    nodes = graph.graph.nodes
    for node in list(nodes):
        if node.target is ATEN.detach.default:  # nothing of this is differentiated again
            node.replace_all_uses_with(node.args[0])
        if node.target is ATEN.t.default and node.args[0].target is ATEN.t.default:
            node.replace_all_uses_with(node.args[0].args[0])
        if node.target in _RESHAPED and shape(node) is not None and shape(node) == shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
    _folded(graph)
    for node in reversed(list(nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not node.is_impure():
            graph.graph.erase_node(node)
    graph.recompile()


def shape(node: Any) -> tuple[int, ...] | None:
    """Of the tensor that a node stands for; None if it stands for something else."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _masks_scripted(graph: GraphModule) -> None:
    """Operators with a list of truth values, which `torch.jit.trace` does not know, as functions that hold theirs."""
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.arguments[-1].name == "output_mask":
            node.target = _with_mask(schema.name, node.args)


def _with_mask(name: str, arguments: Sequence[Any]) -> Callable[..., list[Tensor | None]]:
    """The operator for other tensors, all else being what it is here. Results that are not asked for are None."""
    given = [f"t{place}" if isinstance(value, Node) else repr(value) for place, value in enumerate(arguments)]
    tensors = [place for place, value in enumerate(arguments) if isinstance(value, Node)]
    asked = [place for place, wanted in enumerate(arguments[-1]) if wanted]
    unit = torch.jit.CompilationUnit(f"""
def run({", ".join(f"t{place}: Tensor" for place in tensors)}):
    results = torch.ops.{name.replace("::", ".")}({", ".join(given)})
    return {", ".join(f"results[{place}]" for place in asked)}
""")

    def run(*values: Any) -> list[Tensor | None]:
        found = unit.run(*(values[place] for place in tensors))
        several = iter(found if len(asked) > 1 else [found])
        return [next(several) if wanted else None for wanted in values[-1]]

    return run


def _folded(graph: GraphModule) -> None:
    """Values that no input decides, computed once, unless something is written into them."""
    known: dict[Node, Tensor] = {}
    for node in list(graph.graph.nodes):
        inputs = node.all_input_nodes
        if node.op != "call_function" or any(_written(given, node) for given in inputs):
            continue
        if node.target in _SHAPED:
            like = inputs[0].meta["val"]
            shaped = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            value = node.target(shaped, *node.args[1:], **node.kwargs)
        elif inputs and all(given in known for given in inputs):
            value = node.target(*map_arg(node.args, known.__getitem__), **node.kwargs)
        else:
            continue
        if isinstance(value, Tensor) and not any(_written(node, user) for user in node.users):
            known[node] = value
            name = f"folded{len(known)}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                constant = graph.graph.get_attr(name)
            node.replace_all_uses_with(constant)
            known[constant] = value


def _written(value: Node, user: Node) -> bool:
    """Whether `user` writes into `value`."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    given = dict(zip((argument.name for argument in schema.arguments), user.args, strict=False)) | user.kwargs
    written = [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return any(value is one or (isinstance(one, list) and value in one) for one in written)
