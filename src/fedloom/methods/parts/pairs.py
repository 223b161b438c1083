"""A private net and a shared one in one bundle: what FML and FedKD have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.methods.contract.contexts import ServerContext, Task
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.bundle import Bundle


def require_same_net(tasks: Sequence[Task], net: str, option: str) -> None:
    """Raise `ConfigError` unless one net of the groups' bundles has the same names and shapes in all groups.

    Args:
        tasks: one for each group of clients with the same bundle.
        net: name of the net in the bundles.
        option: the option that names the nets, for the message.
    """
    entries_by_group = [
        [(n, tuple(v.shape)) for n, v in task.init.items() if n.startswith(f"{net}.")] for task in tasks
    ]
    for group, entries in enumerate(entries_by_group):
        if entries != entries_by_group[0]:
            raise ConfigError(
                f"{option}: the {net} of group {group} is not that of group 0, and it is averaged; name one for all"
            )


def pair_predictors(
    method: Method, server: Record, state: Record | None, ctx: ServerContext, shared: str
) -> dict[str, Predictor]:
    """Return "personal", the bundle's first net, and the net `shared`, which is "global" where no client is given.

    Args:
        method: whose private entries complete the server's tree.
        server: the server's state, with the tree "model".
        state: the client's state, or None for the server's own model.
        ctx: the task, whose first weights stand for a missing state.
        shared: name of the bundle's net that all clients share.
    """
    private_record: Record = {"model": method._private(ctx.task.init, ctx.task)} if state is None else state
    tree = method._joined(server, private_record, ctx.task)
    shared_predictor = Predictor(tree, lambda net, x: cast(Bundle, net)[shared](x))
    return {"global": shared_predictor} if state is None else {"personal": Predictor(tree), shared: shared_predictor}
