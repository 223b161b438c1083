"""Estimate the cost of a run or a study on this machine: samples from the setting, speed from a short trial."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from fedloom.core.errors import FedloomError
from fedloom.papers.shapes import shape_of, stand_in
from fedloom.papers.speed_trial import kept_method_trial, method_operations, method_trial, network_trial
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.studies.plan import Cell

Basis = Literal["trial", "operations", "network"]  # of an estimate, from the slowest to the fastest


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run: samples that train and that are tested, and seconds on one core of this machine."""

    trained: float
    tested: float
    seconds: float


def run_cost(config: RunConfig, by: Basis = "trial", operations: float = 1.0) -> Cost:
    """Estimate the cost of a run.

    Args:
        config: config of the run.
        by: "trial" tries the method itself, for about a second. "network" has a shorter trial for each network, on
            which every method counts as FedAvg. "operations" takes a trial of the method if this machine has kept one,
            else that of its network times `operations`.
        operations: operations of the method for each one of plain training (`method_operations`).

    Trials are kept in the cache folder: a machine tries a network once for each version of fedloom and of torch.
    """
    workload = _workload(config)
    trained = config.rounds * workload.participants * workload.train_size * config.local_epochs
    tests = ceil(config.rounds / config.evaluation.every)
    tested = tests * workload.tested
    if by == "trial":
        speed = method_trial(config, workload.train_size)
    else:
        kept = kept_method_trial(config, workload.train_size) if by == "operations" else None
        plain = network_trial(config) if kept is None else kept
        speed = plain if kept is not None or by == "network" else replace(plain, train=operations * plain.train)
    return Cost(trained, tested, speed.train * trained + speed.test * tested)


def study_cost(
    cells: Sequence[Cell], by: Basis = "trial", progress: Callable[[str], None] = lambda line: None
) -> dict[str, Cost]:
    """Estimate the cost of every cell, by its name; cells that differ in the seed alone cost the same.

    A cell whose trial fails is left out, and progress is called with the reason.

    Args:
        cells: the cells.
        by: as for `run_cost`; the operations of a method are counted on the fastest of its networks.
        progress: is called with a line for each cell that is left out.
    """
    by_cell: dict[str, Cost] = {}
    by_group: dict[str, Cost | None] = {}
    counted = _CountedOperations(cells) if by == "operations" else None
    for cell in cells:
        if cell.group not in by_group:
            try:
                operations = 1.0 if counted is None else counted.of(cell.config)
                by_group[cell.group] = run_cost(cell.config, by, operations)
            except FedloomError as error:
                progress(f"{cell.group}: no estimate ({error})")
                by_group[cell.group] = None
        cost = by_group[cell.group]
        if cost is not None:
            by_cell[cell.name] = cost
    return by_cell


class _CountedOperations:
    """Operations of the methods of a study, each counted on the network that plain training is fastest on."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._configs: dict[str, list[RunConfig]] = {}
        for cell in cells:
            self._configs.setdefault(_work_of_method(cell.config), []).append(cell.config)
        self._counted: dict[str, float] = {}

    def of(self, config: RunConfig) -> float:
        """Return the operations of a config's method for each one of plain training; 1 if its own trial is kept."""
        if kept_method_trial(config, _workload(config).train_size) is not None:
            return 1.0
        work = _work_of_method(config)
        if work not in self._counted:
            fastest = min(self._configs[work], key=lambda one: network_trial(one).train)
            self._counted[work] = method_operations(fastest)
        return self._counted[work]


def _work_of_method(config: RunConfig) -> str:
    """The keys that decide how many operations a method adds to those of plain training: no strength but zero does."""
    options = {
        key: bool(value) if isinstance(value, float) else value
        for key, value in config.resolved()[config.method].items()
    }
    return json.dumps([config.method, config.preset, options, config.local_epochs], sort_keys=True)


@dataclass(frozen=True, slots=True)
class _Workload:
    """participants: of a round. train_size: samples of a client, on average. tested: test and validation samples of one
    evaluation."""

    participants: int
    train_size: float
    tested: float


def _workload(config: RunConfig) -> _Workload:
    scenario = config.scenario
    key = scenario if scenario.seed is not None else scenario.model_copy(update={"seed": config.seed})
    clients, train, test, val = _sizes(key.model_dump_json(), config)
    whole = float(sum(shape_of(config).test))
    episodes = config.evaluation.episode_shape()
    if config.evaluation.protocol == "few-shot":
        tested = float(episodes.episodes * episodes.ways * (episodes.shots + episodes.queries))
    else:
        sizes = {
            "global/global": whole,
            "global/local": test,
            "personal/global": whole * clients,
            "personal/local": test,
            "personal/others": test * max(0, clients - 1),
        }
        tested = sum(val + sizes[protocol] for protocol in config.evaluation.tested_protocols)
    return _Workload(max(1, int(config.participation * clients)), train / clients, tested)


_known_sizes: dict[str, tuple[int, float, float, float]] = {}


def _sizes(key: str, config: RunConfig) -> tuple[int, float, float, float]:
    """Clients, and their training, test and validation samples, of a partition of stand-ins."""
    if key not in _known_sizes:
        scenario = stand_in(config)
        train, test, val = (float(np.sum(view.sizes)) for view in (scenario.train, scenario.test, scenario.val))
        _known_sizes[key] = (scenario.clients, train, test, val)
    return _known_sizes[key]
