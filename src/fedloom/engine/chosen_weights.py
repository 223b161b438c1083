"""The weights that a client's rule sets before it trains (`Choose`)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.methods.contract.phases import Choose, Consts


@torch.no_grad()
def chosen_weights(phase: Choose, tree: Tree, consts: Consts) -> Tree:
    """Return a client's weights with the entries that the rule of a phase sets.

    Args:
        phase: has the rule.
        tree: all weights of the client, which are not written.
        consts: constants and statistics that the rule reads.

    Raises `ConfigError` for an entry that the net lacks, or that has another shape or kind of numbers.
    """
    entries = phase.rule(tree, consts)
    for name, value in entries.items():
        if name not in tree:
            raise ConfigError(f"Choose: the rule sets {name!r}, which the net lacks; it has {', '.join(tree)}")
        expected = tree[name]
        if value.shape != expected.shape or value.is_floating_point() != expected.is_floating_point():
            raise ConfigError(
                f"Choose: the rule sets {name} to {_described(value)}; the net needs {_described(expected)}"
            )
    return {name: entries[name].to(tree[name]) if name in entries else tree[name] for name in tree}


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
