"""What a study costs on this machine, before it runs: FLOPs from the counter, speed from a trial of a second.

Nothing is read: samples of the right shape stand in for the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

import numpy as np

from fedloom.core.errors import FedloomError
from fedloom.data import Scenario
from fedloom.papers.shapes import Shape, shape_of, stand_in
from fedloom.study.config import RunConfig, parse
from fedloom.study.results import total
from fedloom.study.run import run
from fedloom.study.studies.plan import Cell

_TRIAL = 1.0  # seconds
_FORWARD = 1 / 3  # of what training costs
_PLAIN = "local"  # trains as FedAvg does, also where clients have different nets
_ROUNDS = 3  # of a trial; the last one is timed
_MOST_STEPS = 128  # of a client in one
_SAMPLES = 4  # a client's, where FLOPs are counted


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run: samples that train and that are tested, and seconds on one core of this machine."""

    trained: float
    tested: float
    seconds: float


def cost(config: RunConfig, by_method: bool = True) -> Cost:
    """What a run will cost. by_method: count the method's FLOPs beside FedAvg's; else it counts as FedAvg.

    Runs trials of about a second for every network that it has not met in this process.
    """
    world = _world(config)
    trained = config.rounds * world.participants * world.train_size * config.local_epochs
    tests = ceil(config.rounds / config.evaluation.every)
    tested = tests * world.tested
    ratio = relative_flops(config) if by_method else 1.0
    each = seconds_per_sample(config)
    return Cost(trained, tested, each * (trained * ratio + _FORWARD * tested))


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
    tested: float  # samples per test


def _world(config: RunConfig) -> _World:
    key = config.scenario.model_copy(update={"seed": config.seed})
    sizes = _sizes(key.model_dump_json(), config)
    clients, train, test = sizes
    by_client = config.evaluation.protocol.endswith("local")
    personal = config.evaluation.protocol.startswith("personal")
    whole = float(shape_of(config).splits().test.y.shape[0])
    shape = config.evaluation.episode_shape()
    if config.evaluation.protocol == "few-shot":
        tested = float(shape.episodes * shape.ways * (shape.shots + shape.queries))
    else:
        tested = test if by_client else whole * (clients if personal else 1)
    return _World(max(1, int(config.participation * clients)), train / clients, tested)


_known: dict[str, tuple[int, float, float]] = {}


def _sizes(key: str, config: RunConfig) -> tuple[int, float, float]:
    """Clients, their training samples and their test samples, of a partition of stand-ins."""
    if key not in _known:
        scenario = stand_in(config)
        views = scenario.train.sizes, scenario.test.sizes
        _known[key] = (scenario.clients, float(np.sum(views[0])), float(np.sum(views[1])))
    return _known[key]


def seconds_per_sample(config: RunConfig) -> float:
    """Seconds of a sample's plain training step, as in FedAvg, on one core, from a trial of about a second. Samples of
    one shape in one network take equally long: a trial does for all the classes, sizes and rates of its configs."""
    shape = shape_of(config)
    resolved = config.resolved()
    costs: dict[str, Any] = {
        key: resolved[key] for key in ("model", "batch_size", "augment", "precision") if key in resolved
    }
    optimizer = {"name": config.optimizer.name, "momentum": config.optimizer.momentum}
    costs |= {"optimizer": optimizer, "method": _PLAIN, "local_epochs": 1}
    plain = json.dumps(costs | {"protocol": "personal/global"}, sort_keys=True)
    key = plain, shape.sample
    if key not in _speeds:
        _speeds[key] = _speed(plain, config.batch_size, shape)
    return _speeds[key]


_speeds: dict[tuple[str, tuple[int, ...]], float] = {}


def relative_flops(config: RunConfig) -> float:
    """FLOPs of the method's round over FedAvg's, on the same network and data, in the second round."""
    mine = _flops(_plain(config, config.method), shape_of(config))
    return mine / _flops(_plain(config, _PLAIN), shape_of(config))


def _plain(config: RunConfig, method: str) -> str:
    """A config reduced to what a step costs: net, method and options, batch, optimiser. As text, for it is a key."""
    resolved = config.resolved()
    own = {method: resolved[method]} if method == config.method and method in resolved else {}
    kept = {
        key: resolved[key] for key in ("model", "batch_size", "optimizer", "augment", "precision") if key in resolved
    }
    protocol = config.evaluation.protocol if method == config.method else "personal/global"
    protocol = "global/global" if protocol == "few-shot" else protocol
    preset = config.preset if method == config.method else "sound"
    about: dict[str, Any] = {
        "method": method,
        "preset": preset,
        "local_epochs": config.local_epochs,
        "protocol": protocol,
    }
    return json.dumps(kept | own | about, sort_keys=True)


def _speed(plain: str, batch: int, shape: Shape) -> float:
    size = min(batch, 16)  # a network that takes a second for these is not tried further
    seconds, samples = _timed(plain, shape, size)
    while seconds < _TRIAL / 2 and size < _MOST_STEPS * batch:
        steps = ceil(size * _TRIAL / max(seconds, 1e-4) / batch)
        size = max(1, min(_MOST_STEPS, steps)) * batch
        seconds, samples = _timed(plain, shape, size)
        if steps <= 1:
            break
    return seconds / samples


def _timed(plain: str, shape: Shape, samples: int) -> tuple[float, float]:
    """Seconds and samples of the last of three rounds, one client for each net; before it, steps are recorded."""
    nets = len(_trial(plain, 1, 1).models())
    result = run(_trial(plain, _ROUNDS, nets), scenario=_small(plain, shape, samples * nets, nets))
    last = [row for row in result.rows if row["round"] == _ROUNDS]
    return total(last, "seconds_train"), total(last, "samples")


@cache
def _flops(plain: str, shape: Shape) -> float:
    """Of the second round of a few samples, all clients together."""
    clients = max(2, len(_trial(plain, 2, 1).models()))
    return float(
        run(_trial(plain, 2, clients), scenario=_small(plain, shape, clients * _SAMPLES, clients)).numbers["flops"]
    )


def _trial(plain: str, rounds: int, clients: int) -> RunConfig:
    keys = json.loads(plain)
    protocol = {"evaluation": {"protocol": keys.pop("protocol"), "every": rounds}}
    scenario = {"source": "given", "digest": "", "partition": "iid", "clients": clients, "val": 0}
    return parse(keys | protocol | {"scenario": scenario, "rounds": rounds, "engine": "serial"})


def _small(plain: str, shape: Shape, samples: int, clients: int) -> Scenario:
    classes = len(shape.classes)
    small = replace(shape, train=(samples,), test=(max(classes, 2),), test_classes=None)
    splits = small.splits()
    return _trial(plain, 1, clients).scenario.build(0, splits)
