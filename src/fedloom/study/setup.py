"""What a config and the shape of its data make before any training: the method, its nets, and the facts for hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fedloom.core.streams import Streams
from fedloom.methods import Method
from fedloom.methods.facts import Task
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net
from fedloom.study.config import RunConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """A method, and for each of its architectures a blueprint, a net with the first weights, and a task."""

    method: Method
    streams: Streams
    blueprints: list[Blueprint]
    nets: list[Net]
    tasks: list[Task]

    @staticmethod
    def of(config: RunConfig, input_shape: tuple[int, ...], num_classes: int, clients: int) -> Setup:
        """What `config` makes for samples [n, *input_shape] of `num_classes` classes. Raises `ConfigError` for a model
        that does not fit."""
        streams, method = Streams(config.seed), config.build_method()
        blueprints = config.blueprints(input_shape, num_classes, method)
        nets = [blueprint.build(streams) for blueprint in blueprints]
        tasks = [
            Task.of(
                net,
                clients=clients,
                num_classes=num_classes,
                rounds=config.rounds,
                local_epochs=config.local_epochs,
                streams=streams,
                optimizer=config.optimizer,
                batch_size=config.batch_size,
                group=group,
                blueprint=blueprint,
            )
            for group, (blueprint, net) in enumerate(zip(blueprints, nets, strict=True))
        ]
        return Setup(method, streams, blueprints, nets, tasks)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One intra-operation thread: more would change the order of sums, and so the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
