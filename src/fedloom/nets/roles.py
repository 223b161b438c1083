"""The role of every tensor of a net, derived from module types and never from name patterns."""

from __future__ import annotations

from enum import StrEnum

from torch import nn

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Role(StrEnum):
    """The purpose of a tensor. Methods say in roles which tensors are shared, private or frozen."""

    BODY = "body"
    HEAD = "head"
    BN_AFFINE = "bn_affine"
    BN_STAT = "bn_stat"
    COUNTER = "counter"
    BUFFER = "buffer"  # of any other module: running statistics of instance norm, say
    EXTRA = "extra"  # of the module that a method adds (`Method.extra`)


EXTRA = "extra"  # name of the child that holds a method's added module
ALL_ROLES = frozenset(Role)
BN_ROLES = frozenset({Role.BN_AFFINE, Role.BN_STAT, Role.COUNTER})


def tag_roles(module: nn.Module, head: str) -> dict[str, Role]:
    """Return the role of every state-dict entry of `module`, in its order. `head` is the name of the head submodule.

    Batch-norm entries keep their batch-norm role inside the head too.
    """
    roles: dict[str, Role] = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        inside_head = prefix == head or prefix.startswith(f"{head}.")
        entries = {**child._parameters, **child._buffers}
        for name, tensor in entries.items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, BATCH_NORM):
                role = Role.BN_AFFINE if isinstance(tensor, nn.Parameter) else Role.BN_STAT  # frozen ones are buffers
                role = Role.COUNTER if name == "num_batches_tracked" else role
            elif prefix == EXTRA or prefix.startswith(f"{EXTRA}."):
                role = Role.EXTRA
            elif name in child._buffers and not isinstance(tensor, nn.Parameter):  # as above
                role = Role.BUFFER
            else:
                role = Role.HEAD if inside_head else Role.BODY
            roles[path] = role
    return {name: roles[name] for name in module.state_dict()}


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether batch statistics enter the forward pass in training; engines then skip batches of one."""
    return any(isinstance(child, BATCH_NORM) for child in module.modules())
