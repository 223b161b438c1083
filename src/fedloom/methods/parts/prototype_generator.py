"""A generator of class prototypes that a server trains: embedding of the classes -> linear -> ReLU -> linear.

FedTGP and FedORGP have it, each with a loss of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract.contexts import Task
from fedloom.nets.net import tree_of


def first_generator(task: Task) -> Tree:
    """Weights of the generator, drawn from a stream of their own."""
    with task.streams.isolated("generator"):
        width = task.feature_dim
        net = nn.ModuleDict({"middle": nn.Linear(width, width), "out": nn.Linear(width, width)})
        return {"embedding": torch.randn(task.num_classes, width), **tree_of(net)}


def generated(tree: Tree) -> Tensor:
    """The prototypes [C, d] of a generator."""
    hidden = functional.linear(tree["embedding"], tree["middle.weight"], tree["middle.bias"]).relu()
    return functional.linear(hidden, tree["out.weight"], tree["out.bias"])


def generated_table(tree: Tree) -> ClassTable:
    """The prototypes [C, d] of a generator as a table, float32, in which every class is held."""
    prototypes = generated(tree).to(torch.float32)
    return ClassTable(prototypes, torch.ones(len(prototypes), dtype=torch.bool))


def labelled_rows(tables: ClassTable, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the rows [R, d] of tables [m, C, d], one for each client and class it holds, and their classes [R]."""
    return tables.values[tables.held].to(dtype), tables.held.nonzero()[:, 1]
