"""What a study costs on this machine, before it runs: samples from the setting, speed from a trial of a second.

Nothing is read: noise of the right shape stands in for the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import FedloomError
from fedloom.data import Scenario
from fedloom.papers.shapes import Shape, shape_of, stand_in
from fedloom.study.config import RunConfig, parse
from fedloom.study.results import total
from fedloom.study.run import run
from fedloom.study.studies.plan import Cell

_TRIAL = 1.0  # seconds
_PLAIN = "local"  # trains as FedAvg does, also where clients have different nets
_ROUNDS = 3  # of a trial; the last one is timed
_MOST_STEPS = 128  # of a client in one
_MOST_CLIENTS = 16  # in one; at least two, for a method may need another, and one for each net
_MOST_TESTS = 1024  # samples in one
_MOST_EPOCHS = 3  # in one; more would hardly change a sample's share of what a method does once a round


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: samples that train and that are tested, and seconds on one core of this machine."""

    trained: float
    tested: float
    seconds: float


def cost(config: RunConfig, by_method: bool = True) -> Cost:
    """What a run will cost. by_method: the method itself is tried; else it counts as FedAvg.

    Runs a trial of about a second for every method on every network, or for every network, that it has not met in this
    process.
    """
    world = _world(config)
    trained = config.rounds * world.participants * world.train_size * config.local_epochs
    tests = ceil(config.rounds / config.evaluation.every)
    tested = tests * world.tested
    speed = speed_of(config, by_method)
    return Cost(trained, tested, speed.train * trained + speed.test * tested)


def study_cost(
    cells: Sequence[Cell], by_method: bool = True, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Cost]:
    """The cost of every cell by its name; cells that differ in the seed alone cost the same. tell: hears what is tried.

    A cell of which no trial can be made is left out, and told.
    """
    found: dict[str, Cost] = {}
    groups: dict[str, Cost | None] = {}
    for cell in cells:
        if cell.group not in groups:
            try:
                groups[cell.group] = cost(cell.config, by_method)
            except FedloomError as error:
                tell(f"{cell.group}: no estimate ({error})")
                groups[cell.group] = None
        known = groups[cell.group]
        if known is not None:
            found[cell.name] = known
    return found


@dataclass(frozen=True, slots=True)
class _World:
    participants: int
    train_size: float  # samples of a client, on average
    tested: float  # samples per test, of the test data and of validation data


def _world(config: RunConfig) -> _World:
    key = config.scenario.model_copy(update={"seed": config.seed})
    sizes = _sizes(key.model_dump_json(), config)
    clients, train, test, val = sizes
    by_client = config.evaluation.protocol.endswith("local")
    personal = config.evaluation.protocol.startswith("personal")
    whole = float(shape_of(config).splits().test.y.shape[0])
    shape = config.evaluation.episode_shape()
    if config.evaluation.protocol == "few-shot":
        tested = float(shape.episodes * shape.ways * (shape.shots + shape.queries))
    else:
        tested = val + (test if by_client else whole * (clients if personal else 1))
    return _World(max(1, int(config.participation * clients)), train / clients, tested)


_known: dict[str, tuple[int, float, float, float]] = {}


def _sizes(key: str, config: RunConfig) -> tuple[int, float, float, float]:
    """Clients, their training, test and validation samples, of a partition of stand-ins."""
    if key not in _known:
        scenario = stand_in(config)
        train, test, val = (float(np.sum(view.sizes)) for view in (scenario.train, scenario.test, scenario.val))
        _known[key] = (scenario.clients, train, test, val)
    return _known[key]


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one core: for a client's sample in a local epoch, with the method's own work, and for a tested one."""

    train: float
    test: float


def speed_of(config: RunConfig, by_method: bool = True) -> Speed:
    """From a trial of about a second. Without by_method the trial trains as FedAvg does: samples of one shape in one
    network take equally long, so one trial does for all the classes, sizes, methods and rates of such configs."""
    shape = shape_of(config)
    keys = json.dumps(_of_method(config) if by_method else _of_network(config), sort_keys=True)
    size = _rounded(_world(config).train_size) if by_method else None
    about = keys, replace(shape, train=(), test=()) if by_method else shape.sample, size
    if about not in _speeds:
        _speeds[about] = _speed(keys, config.batch_size, shape, size or _MOST_STEPS * config.batch_size)
    return _speeds[about]


_speeds: dict[tuple[str, Any, int | None], Speed] = {}


def _rounded(size: float) -> int:
    """To the nearest power of two, so that clients of about one size have one trial."""
    return int(2 ** round(log2(max(1.0, size))))


def _of_network(config: RunConfig) -> dict[str, Any]:
    """What a plain step of a config's network costs: the keys of a trial."""
    return _kept(config, ("model", "batch_size", "augment", "precision")) | {
        "optimizer": {"name": config.optimizer.name, "momentum": config.optimizer.momentum},
        "method": _PLAIN,
        "local_epochs": 1,
        "protocol": "personal/global",
    }


def _of_method(config: RunConfig) -> dict[str, Any]:
    """What a config's method costs on its network: the keys of a trial."""
    protocol = config.evaluation.protocol
    return _kept(config, ("model", "batch_size", "optimizer", "augment", "precision", config.method)) | {
        "method": config.method,
        "preset": config.preset,
        "local_epochs": min(config.local_epochs, _MOST_EPOCHS),
        "protocol": "global/global" if protocol == "few-shot" else protocol,
    }


def _kept(config: RunConfig, names: Sequence[str]) -> dict[str, Any]:
    resolved = config.resolved()
    choice = config.engine
    engine = {"name": "serial", "kernels": choice.kernels, "device": choice.device, "fast": choice.fast}
    return {key: resolved[key] for key in names if key in resolved} | {"engine": engine}


def _speed(keys: str, batch: int, shape: Shape, most: int) -> Speed:
    """Of clients with no more than `most` samples, for what a method does once a round is shared by these."""
    fewest = max(2, len(_trial(keys, 1, 1).models()))
    clients, size = fewest, min(batch, most, 16)
    seconds, speed = _timed(keys, shape, clients, size)  # a network that takes a second for these is tried no further
    most = min(most, _MOST_STEPS * batch)
    while seconds < _TRIAL / 2 and (size < most or clients < _MOST_CLIENTS):
        more = _TRIAL / max(seconds, 1e-4)
        size, before = min(most, ceil(size * more / batch) * batch), (size, clients)
        wanted = min(_MOST_CLIENTS, int(before[0] * before[1] * more / size))
        clients = max(clients, wanted - wanted % fewest)
        if (size, clients) == before:
            break
        seconds, speed = _timed(keys, shape, clients, size)
    return speed


def _timed(keys: str, shape: Shape, clients: int, size: int) -> tuple[float, Speed]:
    """Seconds of training in the last of three rounds, before which steps are recorded, and what they tell."""
    config = _trial(keys, _ROUNDS, clients)
    tests = max(len(shape.classes), 2, min(size * clients, _MOST_TESTS))
    result = run(config, scenario=_small(keys, shape, size * clients, tests, clients))
    last = [row for row in result.rows if row["round"] == _ROUNDS]
    seconds, spent = total(last, "seconds_train"), total(last, "seconds_evaluate")
    tested = tests * (clients if config.evaluation.protocol == "personal/global" else 1)
    return seconds, Speed(seconds / (size * clients * config.local_epochs), spent / tested)


def _trial(keys: str, rounds: int, clients: int) -> RunConfig:
    given = json.loads(keys)
    protocol = {"evaluation": {"protocol": given.pop("protocol"), "every": rounds}}
    scenario = {"source": "given", "digest": "", "partition": "iid", "clients": clients, "val": 0}
    return parse(given | protocol | {"scenario": scenario, "rounds": rounds})


def _small(keys: str, shape: Shape, samples: int, tests: int, clients: int) -> Scenario:
    small = replace(shape, train=(samples,), test=(tests,), test_classes=None)
    splits = small.splits()
    if not shape.words:  # black images take less time than others
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(256, (samples, *shape.sample), dtype=torch.uint8, generator=generator)
        splits = replace(splits, train=replace(splits.train, x=x))
    return _trial(keys, 1, clients).scenario.build(0, splits)
