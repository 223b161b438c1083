"""A graph compiled, and called."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.node import map_arg

from fedloom.core.native import library_of
from fedloom.engine.cpp.arrays import UntranslatableError
from fedloom.engine.cpp.operators import OPERATORS
from fedloom.engine.cpp.writer import Writer


class Program:
    """A functional graph (`programs.functional`) of one client, for many: CPU, float32, labels int64.

    inputs: tensors like those of one client; common: which all clients share. shapes: of one client's results.
    Raises `UntranslatableError` for a graph with more in it than is known here, `KernelError` if it cannot be compiled.
    """

    def __init__(self, graph: GraphModule, inputs: Sequence[Tensor], common: Sequence[bool]) -> None:
        writer = Writer(graph, inputs, common)
        results = _written(writer, graph)
        self.shapes = [array.shape for array in results]
        self._function = library_of(writer.text(results), Path(__file__).parent).block
        self._function.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3]
        self._scratch = torch.empty(writer.scratch)

    def __call__(self, clients: int, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """inputs: [clients, ...], but for those in common; results: [clients, ...] each, in plain order, are written.

        Raises `IndexError` for a label that names no class.
        """
        given = [tensor.contiguous() for tensor in inputs]
        pointers = (_pointers(given), _pointers(results))
        if self._function(clients, self._scratch.data_ptr(), *pointers):
            raise IndexError("a label names no class")


def _written(writer: Writer, graph: GraphModule) -> list[Any]:
    """The graph's results, after all lines that compute them."""
    values: dict[Any, Any] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = writer.input(len(values))
        elif node.op == "get_attr":
            values[node] = writer.constant(getattr(graph, str(node.target)))
        elif node.op == "call_function":
            if (written := OPERATORS.get(node.target)) is None:
                raise UntranslatableError(f"the operator {node.target}")
            values[node] = written(writer, node, *cast(Any, map_arg(node.args, values.__getitem__)), **node.kwargs)
    return [values[node] for node in cast(Any, graph.graph.output_node().args[0])]


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
