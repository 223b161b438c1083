"""The arguments of hooks: the run, the round, the client, and the result of the hook before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree, clone
from fedloom.data.dataset import Dataset
from fedloom.methods.contract.phases import Consts, OptimizerSpec
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.loaded_net import frozen_parameters
from fedloom.nets.net import FunctionalNet, Net, Role, tree_of


@dataclass(frozen=True, slots=True)
class Task:
    """The constant facts of a run. With several architectures each has its own task: a hook gets that of its client,
    the server that of group 0.

    Attributes:
        clients, num_classes, rounds, local_epochs: N, C, T and E.
        init, roles: the common first weights, and the roles of their entries.
        feature_dim: d, the head's input width; 0 where it has none.
        streams: the root of the run's random streams.
        optimizer, batch_size: of local training.
        classifier: the net's classifier block, () of a net without a head.
        group: number of the architecture.
        blueprint: builds further nets of this architecture; None for a net that was given as it is.
        frozen: the parameters that nothing trains.
    """

    clients: int
    num_classes: int
    rounds: int
    local_epochs: int
    init: Tree
    roles: Mapping[str, Role]
    feature_dim: int
    streams: Streams
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    batch_size: int = 32
    classifier: tuple[str, ...] = ("head",)
    group: int = 0
    blueprint: Blueprint | None = None
    frozen: frozenset[str] = frozenset()

    @staticmethod
    def of(net: Net, **facts: Any) -> "Task":
        """The task of a run that starts from the weights of `net`; the other facts by name."""
        return Task(
            # A copy, because clients train in the net's own tensors.
            init=clone(tree_of(net)),
            roles=net.roles(),
            feature_dim=getattr(getattr(net, "head", None), "in_features", 0),
            classifier=net.classifier_block,
            frozen=frozenset(frozen_parameters(net)),
            **facts,
        )

    def names(self, roles: frozenset[Role]) -> set[str]:
        """Names of the entries that have one of `roles`."""
        return {name for name, role in self.roles.items() if role in roles}

    def fresh(self, client: int) -> Tree:
        """First weights that a client draws for itself, instead of the common `init`."""
        if self.blueprint is None:
            raise ConfigError("weights of a client's own need a registered model: this run was given a net as it is")
        return self.blueprint.initial_weights(self.streams, client)


Tasks: TypeAlias = Sequence[Task]  # one for each group of clients with the same net


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The facts that the server knows in a round. Tests and plug-ins may give `task` and `round` alone.

    Attributes:
        task: the constant facts of the run.
        round: the round, which counts from 1; 0 is before the first.
        net: the net as a function of its weights, in evaluation mode.
        public: data that the server holds itself (`scenario.public`), None without any.
        nets: the nets of all architectures, by group; client k has number k mod their count.
        participants: how many clients the run draws for a round.
        drawn: ids of the clients that were drawn for the round, in order, for methods that pair or group them; in the
            `down` of a newcomer its own id. Empty in `select` and outside of rounds.
        client: id of the client to which a payload, an upload or a predictor belongs, N and above for newcomers; -1
            for the server's own.
        staleness: in `aggregate`, how often the server has updated since each client got its payload, by client id;
            empty where all uploads are of this round.
    """

    task: Task
    round: int
    net: FunctionalNet | None = None
    public: Dataset | None = None
    nets: Sequence[FunctionalNet] = ()
    participants: int = 0
    client: int = -1
    drawn: tuple[int, ...] = ()
    staleness: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClientContext:
    """One client in a round (from 1): its id `client`, the number of its training samples, their class counts [C],
    int64, and the constant facts of the run as `task`, for the client's architecture."""

    task: Task
    round: int
    client: int
    samples: int
    class_counts: Tensor

    @property
    def lr(self) -> float:
        """The run's learning rate in this round."""
        return self.task.optimizer.lr_in(self.round)


@dataclass(frozen=True, slots=True)
class Received:
    """Samples that came from the server, for phases with `on="received"`: inputs x [n, ...], as `Dataset.gather`
    returns them at the server, and labels y [n], int64. None numbers the samples, so that `consts["targets"][batch.y]`
    finds their rows."""

    x: Tensor
    y: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """The result of `begin`: the net's full weights as `tree`, the constants of this round, and samples for phases with
    `on="received"`."""

    tree: Tree
    consts: Consts
    received: Received | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """The result of the phases, which `end` reads: the weights after training as `tree` (a copy), statistics by name as
    `collected`, the number of optimiser steps, the result of `begin` as `start`, and the loss's terms, each a mean over
    the last epoch."""

    tree: Tree
    collected: Mapping[str, Any]
    steps: int
    start: Start = field(default_factory=lambda: Start({}, {}))
    terms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A sign that a method does not work as meant in this run: a stable `code`, one line of text, and the value."""

    code: str
    message: str
    figure: float
