"""Requirements of methods that treat the body and the classification layer of a net apart."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import ConfigError
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.phases import TRAINABLE
from fedloom.nets.net import Role


def require_trained_head(task: Task, method: str) -> None:
    """Raise `ConfigError` unless the net has a head, and it is not frozen.

    Args:
        task: a group's task.
        method: name of the method, for the message.
    """
    if not task.names(frozenset({Role.HEAD})) - task.frozen:
        raise ConfigError(
            f"{method} treats the head apart from the rest; this model has none at its end, or a frozen one"
        )


def require_trained_body(task: Task, method: str) -> None:
    """Raise `ConfigError` unless the net has parameters beside its head that train.

    Args:
        task: a group's task.
        method: name of the method, for the message.
    """
    if not task.names(TRAINABLE - {Role.HEAD}) - task.frozen:
        raise ConfigError(
            f"{method} trains the body apart from the head; this model is a head alone, or all of its body is frozen"
        )


def require_linear_head(task: Task, method: str, *, bias: bool = True) -> None:
    """Raise `ConfigError` unless the head is one linear layer "head.weight" [C, d] that trains.

    Args:
        task: a group's task; its `init` and `frozen` are examined.
        method: name of the method, for the message.
        bias: whether the head may have "head.bias".
    """
    head = {name: tuple(task.init[name].shape) for name in task.names(frozenset({Role.HEAD}))}
    bias_shape = head.pop("head.bias", None)
    if head != {"head.weight": (task.num_classes, task.feature_dim)}:
        has = f"this net's has {sorted(head)}" if head else "this net has none, or it is frozen"
        raise ConfigError(f"{method} needs a head of one linear layer that trains, {has}")
    if "head.weight" in task.frozen:
        raise ConfigError(f"{method} needs a head of one linear layer that trains, this net's is frozen")
    if bias_shape is not None and not bias:
        raise ConfigError(f"{method} needs a head without bias; set net.head.bias = None, or head_bias to true")


def require_same_heads(tasks: Sequence[Task], method: str) -> None:
    """Raise `ConfigError` unless the heads of all groups have entries of the same shapes.

    Args:
        tasks: one for each group.
        method: name of the method, for the message.
    """
    shapes_by_group = [
        [tuple(task.init[name].shape) for name in task.init if task.roles[name] is Role.HEAD] for task in tasks
    ]
    for group, shapes in enumerate(shapes_by_group):
        if shapes != shapes_by_group[0]:
            raise ConfigError(
                f"{method} shares the head: that of group {group} has the shapes {shapes}, that of group 0 "
                f"{shapes_by_group[0]}; choose models with the same feature width"
            )


def require_same_width(tasks: Sequence[Task], method: str) -> None:
    """Raise `ConfigError` unless the features of all groups have one width.

    Args:
        tasks: one for each group.
        method: name of the method, for the message.
    """
    for group, task in enumerate(tasks):
        if task.feature_dim != tasks[0].feature_dim:
            raise ConfigError(
                f"{method} compares features: those of group {group} have {task.feature_dim} entries, those of group 0 "
                f"{tasks[0].feature_dim}; choose models with the same feature width"
            )
