"""The role of every tensor of a net, tagged from module types, never from name patterns."""

from __future__ import annotations

from enum import StrEnum

from torch import nn

BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Role(StrEnum):
    """What a tensor is for. Methods say what is shared, private or frozen in these words alone."""

    BODY = "body"
    HEAD = "head"
    BN_AFFINE = "bn_affine"
    BN_STAT = "bn_stat"
    COUNTER = "counter"
    EXTRA = "extra"  # beside the net: what a method adds (`Method.extra`)


EXTRA = "extra"  # the child of a net that a method adds
ALL_ROLES = frozenset(Role)
BN_ROLES = frozenset({Role.BN_AFFINE, Role.BN_STAT, Role.COUNTER})


def tag_roles(module: nn.Module, head: str) -> dict[str, Role]:
    """Role of every state-dict entry of `module`, in state-dict order. `head` is the name of the head submodule.

    Batch-norm entries keep their batch-norm role even inside the head.
    """
    roles: dict[str, Role] = {}
    kept = module.state_dict()
    for prefix, child in module.named_modules(remove_duplicate=False):
        inside_head = prefix == head or prefix.startswith(f"{head}.")
        entries = {**child._parameters, **child._buffers}
        for name, value in entries.items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(child, BATCH_NORM):
                role = Role.BN_AFFINE if isinstance(value, nn.Parameter) else Role.BN_STAT  # frozen ones are buffers
                role = Role.COUNTER if name == "num_batches_tracked" else role
            elif prefix == EXTRA or prefix.startswith(f"{EXTRA}."):
                role = Role.EXTRA
            else:
                role = Role.HEAD if inside_head else Role.BODY
            roles[path] = role
    return {name: roles[name] for name in kept}


def has_batch_norm(module: nn.Module) -> bool:
    """Whether batch statistics enter the forward pass in training mode (batches of one are then skipped)."""
    return any(isinstance(child, BATCH_NORM) for child in module.modules())
