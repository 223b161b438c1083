"""Estimate the cost of a run or a study on this machine: samples from the setting, speed from a short trial.

No data are read: the trial trains on noise of the right shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedloom._renamed import missing_attribute
from fedloom.config.run_config import RunConfig, parse
from fedloom.core.errors import FedloomError
from fedloom.data import Scenario
from fedloom.papers.shapes import Shape, shape_of, stand_in
from fedloom.runs.run import run
from fedloom.storage.curves import total_over_rounds
from fedloom.studies.plan import Cell

_TRIAL_SECONDS = 1.0
_PLAIN_METHOD = "local"  # trains as FedAvg does, also where clients have different nets
_ROUNDS = 3  # the last one is timed
_MAX_STEPS = 128  # of a client
_MAX_CLIENTS = 16  # at least two, because a method may need another client, and one for each net
_MAX_TEST_SAMPLES = 1024
_MAX_EPOCHS = 3  # more would hardly change a sample's share of what a method does once a round


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run: samples that train and that are tested, and seconds on one core of this machine."""

    trained: float
    tested: float
    seconds: float


def run_cost(config: RunConfig, by_method: bool = True) -> Cost:
    """Estimate the cost of a run.

    by_method: try the method itself; else it counts as FedAvg.

    Runs a trial of about a second for every method on every network, or for every network, that this process has not
    tried yet.
    """
    workload = _workload(config)
    trained = config.rounds * workload.participants * workload.train_size * config.local_epochs
    tests = ceil(config.rounds / config.evaluation.every)
    tested = tests * workload.tested
    speed = speed_of(config, by_method)
    return Cost(trained, tested, speed.train * trained + speed.test * tested)


def study_cost(
    cells: Sequence[Cell], by_method: bool = True, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Cost]:
    """Estimate the cost of every cell, by its name; cells that differ in the seed alone cost the same.

    A cell whose trial fails is left out, and progress is called with the reason.
    """
    by_cell: dict[str, Cost] = {}
    by_group: dict[str, Cost | None] = {}
    for cell in cells:
        if cell.group not in by_group:
            try:
                by_group[cell.group] = run_cost(cell.config, by_method)
            except FedloomError as error:
                progress(f"{cell.group}: no estimate ({error})")
                by_group[cell.group] = None
        cost = by_group[cell.group]
        if cost is not None:
            by_cell[cell.name] = cost
    return by_cell


@dataclass(frozen=True, slots=True)
class _Workload:
    """participants: of a round. train_size: samples of a client, on average. tested: test and validation samples of one
    evaluation."""

    participants: int
    train_size: float
    tested: float


def _workload(config: RunConfig) -> _Workload:
    key = config.scenario.model_copy(update={"seed": config.seed})
    clients, train, test, val = _sizes(key.model_dump_json(), config)
    by_client = config.evaluation.protocol.endswith("local")
    personal = config.evaluation.protocol.startswith("personal")
    whole = float(shape_of(config).splits().test.y.shape[0])
    episodes = config.evaluation.episode_shape()
    if config.evaluation.protocol == "few-shot":
        tested = float(episodes.episodes * episodes.ways * (episodes.shots + episodes.queries))
    else:
        tested = val + (test if by_client else whole * (clients if personal else 1))
    return _Workload(max(1, int(config.participation * clients)), train / clients, tested)


_known_sizes: dict[str, tuple[int, float, float, float]] = {}


def _sizes(key: str, config: RunConfig) -> tuple[int, float, float, float]:
    """Clients, and their training, test and validation samples, of a partition of stand-ins."""
    if key not in _known_sizes:
        scenario = stand_in(config)
        train, test, val = (float(np.sum(view.sizes)) for view in (scenario.train, scenario.test, scenario.val))
        _known_sizes[key] = (scenario.clients, train, test, val)
    return _known_sizes[key]


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one core: `train` for a client's sample in a local epoch, with the work of the method; `test` for a
    tested sample."""

    train: float
    test: float


def speed_of(config: RunConfig, by_method: bool = True) -> Speed:
    """Measure the speed by a trial of about a second, once for each kind of config.

    Without by_method the trial trains as FedAvg does. Samples of one shape in one network take equally long, so one
    trial holds for all classes, sizes, methods and learning rates of such configs.
    """
    shape = shape_of(config)
    keys = json.dumps(_method_keys(config) if by_method else _network_keys(config), sort_keys=True)
    size = _power_of_two(_workload(config).train_size) if by_method else None
    trial = keys, replace(shape, train=(), test=()) if by_method else shape.sample, size
    if trial not in _known_speeds:
        _known_speeds[trial] = _speed(keys, config.batch_size, shape, size or _MAX_STEPS * config.batch_size)
    return _known_speeds[trial]


_known_speeds: dict[tuple[str, Any, int | None], Speed] = {}


def _power_of_two(size: float) -> int:
    """Round to the nearest power of two, so that clients of about one size have one trial."""
    return int(2 ** round(log2(max(1.0, size))))


def _network_keys(config: RunConfig) -> dict[str, Any]:
    """Config keys of a trial: what a plain step of the config's network costs."""
    return _selected_keys(config, ("model", "batch_size", "augment", "precision")) | {
        "optimizer": {"name": config.optimizer.name, "momentum": config.optimizer.momentum},
        "method": _PLAIN_METHOD,
        "local_epochs": 1,
        "protocol": "personal/global",
    }


def _method_keys(config: RunConfig) -> dict[str, Any]:
    """Config keys of a trial: what the config's method costs on its network."""
    protocol = config.evaluation.protocol
    return _selected_keys(config, ("model", "batch_size", "optimizer", "augment", "precision", config.method)) | {
        "method": config.method,
        "preset": config.preset,
        "local_epochs": min(config.local_epochs, _MAX_EPOCHS),
        "protocol": "global/global" if protocol == "few-shot" else protocol,
    }


def _selected_keys(config: RunConfig, names: Sequence[str]) -> dict[str, Any]:
    resolved = config.resolved()
    engine = {
        "name": "serial",
        "kernels": config.engine.kernels,
        "device": config.engine.device,
        "fast": config.engine.fast,
    }
    return {key: resolved[key] for key in names if key in resolved} | {"engine": engine}


def _speed(keys: str, batch: int, shape: Shape, max_size: int) -> Speed:
    """Try clients of growing number and size until a round takes long enough.

    Clients have no more than `max_size` samples, because these share what a method does once a round.
    """
    min_clients = max(2, len(_trial_config(keys, 1, 1).models()))
    clients, size = min_clients, min(batch, max_size, 16)
    seconds, speed = _timed(keys, shape, clients, size)  # a network that takes a second for these is tried no further
    max_size = min(max_size, _MAX_STEPS * batch)
    while seconds < _TRIAL_SECONDS / 2 and (size < max_size or clients < _MAX_CLIENTS):
        factor = _TRIAL_SECONDS / max(seconds, 1e-4)
        before = (size, clients)
        size = min(max_size, ceil(size * factor / batch) * batch)
        enough = min(_MAX_CLIENTS, int(before[0] * before[1] * factor / size))
        clients = max(clients, enough - enough % min_clients)
        if (size, clients) == before:
            break
        seconds, speed = _timed(keys, shape, clients, size)
    return speed


def _timed(keys: str, shape: Shape, clients: int, size: int) -> tuple[float, Speed]:
    """Seconds of training in the last of three rounds, and the speed in it; before it, steps are recorded."""
    config = _trial_config(keys, _ROUNDS, clients)
    tests = max(len(shape.classes), 2, min(size * clients, _MAX_TEST_SAMPLES))
    result = run(config, scenario=_trial_scenario(keys, shape, size * clients, tests, clients))
    last_round = [row for row in result.rows if row["round"] == _ROUNDS]
    train_seconds, test_seconds = (
        total_over_rounds(last_round, "seconds_train"),
        total_over_rounds(last_round, "seconds_evaluate"),
    )
    tested = tests * (clients if config.evaluation.protocol == "personal/global" else 1)
    return train_seconds, Speed(train_seconds / (size * clients * config.local_epochs), test_seconds / tested)


def _trial_config(keys: str, rounds: int, clients: int) -> RunConfig:
    values = json.loads(keys)
    evaluation = {"protocol": values.pop("protocol"), "every": rounds}
    scenario = {"source": "given", "digest": "", "partition": "iid", "clients": clients, "val": 0}
    return parse(values | {"evaluation": evaluation, "scenario": scenario, "rounds": rounds})


def _trial_scenario(keys: str, shape: Shape, samples: int, tests: int, clients: int) -> Scenario:
    splits = replace(shape, train=(samples,), test=(tests,), test_classes=None).splits()
    if not shape.words:  # black images take less time than others
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(256, (samples, *shape.sample), dtype=torch.uint8, generator=generator)
        splits = replace(splits, train=replace(splits.train, x=x))
    return _trial_config(keys, 1, clients).scenario.build(0, splits)


if not TYPE_CHECKING:  # a type checker shall know that other names do not exist

    def __getattr__(name: str) -> object:
        raise missing_attribute(__name__, name)
