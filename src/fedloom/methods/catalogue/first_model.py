"""The part of a client's model that no other client has trained, when the client comes for the first time."""

from __future__ import annotations

from typing import Literal

from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.method import Method
from fedloom.nets.roles import BN_ROLES, Role

InitialPart = Literal["model", "head", "body"]


def initial_part(method: Method, task: Task) -> InitialPart | None:
    """Return the part of a newcomer's own model that still has its initial weights; None if all of it was trained.

    Batch norm does not count, because its statistics are taken from the newcomer's samples.
    """
    private = method.private_names(task) - task.names(BN_ROLES)
    if method.spec.private_nets or (private and private >= set(task.init) - task.names(BN_ROLES)):
        return "model"
    roles = {task.roles[name] for name in private}
    if Role.HEAD in roles:
        return "head"
    return "body" if Role.BODY in roles else None
