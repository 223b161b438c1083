"""The speed of a config's method on its network on this machine, measured by a short trial.

No data are read: the trial trains on noise of the right shape. Speeds are CPU seconds, because those of a busy machine
are about those of an idle one, and they are kept in the cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, log2
from pathlib import Path
from typing import Any

import torch

from fedloom.core.errors import ConfigError
from fedloom.core.files import cache_dir, json_digest, parse_json, read_file, write_atomic
from fedloom.core.process_settings import reproducible_settings
from fedloom.data import Scenario
from fedloom.engine.choose import available_cores
from fedloom.engine.speedups import large_blocks_kept
from fedloom.methods import METHODS
from fedloom.methods.catalogue import abilities
from fedloom.papers.shapes import Shape, shape_of
from fedloom.papers.trial_federation import TrialFederation
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.data_record import describe_environment

_METHOD_SECONDS, _NETWORK_SECONDS = 1.0, 0.08  # that the timed round of a trial should take
_LONGEST = 4  # times those seconds, which no round of a trial should take
_SPEED_NAMES = ("train", "test")
_FIRST_SIZE = 16  # samples of a client in the first attempt
_COUNTED_BATCH = 4  # samples of a client whose operations are counted; 8 give the same within a thousandth
_PLAIN_METHOD = "local"  # trains as FedAvg does, also where clients have different nets
_PLAIN_METHODS = (_PLAIN_METHOD, "fedavg")
_ROUNDS = 3  # the last one is timed; before it, steps are recorded
_PLAIN_ROUNDS = 2  # the same of plain steps, which are not recorded
_REPLAY_MATTERS = 0.0025  # seconds of a plain step below which a replay saves more than a tenth of it
_MAX_STEPS = 128  # of a client
_MAX_CLIENTS = 16  # at least two, because a method may need another client, and one for each net
_MIN_TEST_SAMPLES, _MAX_TEST_SAMPLES = 16, 1024
_COLD_TEST_SECONDS = 0.1  # a shorter test is taken again, because the first one of a shape takes longer
_MAX_EPOCHS = 3  # more would hardly change a sample's share of what a method does once a round


@dataclass(frozen=True, slots=True)
class Speed:
    """CPU seconds: `train` for a client's sample in a local epoch, with the work of the method; `test` for a tested
    sample."""

    train: float
    test: float


def method_trial(config: RunConfig, train_size: float) -> Speed:
    """Measure the speed of the config's own method, once for each kind of config.

    Args:
        config: config of the run.
        train_size: samples of a client. Clients of about one size have one trial, because they share what a method does
            once a round.
    """
    facts, keys, size = _method_facts(config, train_size)
    return _kept_speed(facts, lambda: _speed(keys, config.batch_size, shape_of(config), size, _METHOD_SECONDS))


def kept_method_trial(config: RunConfig, train_size: float) -> Speed | None:
    """Return the speed that `method_trial` has measured on this machine before; None if it has not."""
    kept = _known(_key(_method_facts(config, train_size)[0]), _SPEED_NAMES)
    return None if kept is None else Speed(**kept)


def method_operations(config: RunConfig) -> float:
    """Count the operations of the config's method on its network, for each that plain local training takes.

    Matrix products and convolutions count, as in `fedloom.engine.flops`, on a small client of each architecture: in the
    second round, and of plain training in the first. Nothing is timed, so all cores work, and the counts are kept as
    trials are. Of many local epochs, the first two are counted: each further one has the operations of the second.
    """
    if config.method in _PLAIN_METHODS:
        return 1.0
    shape, epochs = shape_of(config), config.local_epochs
    method, plain = (
        _operations(json.dumps({**keys, "batch_size": _COUNTED_BATCH}, sort_keys=True), shape)
        for keys in ({**_method_keys(config), "local_epochs": epochs}, _network_keys(config))
    )
    return method / epochs / plain


def _operations(keys: str, shape: Shape) -> float:
    """Return the operations of a round for each sample, counted once for each kind of config."""
    facts = ["operations", keys, asdict(replace(shape, train=(), test=()))]
    return _kept(facts, ["operations"], lambda: {"operations": _counted_operations(keys, shape)})["operations"]


def _counted_operations(keys: str, shape: Shape) -> float:
    values = json.loads(keys)
    local_epochs, is_plain = values["local_epochs"], values["method"] in _PLAIN_METHODS
    keys = json.dumps(values | {"local_epochs": 1})  # in the round before the counted one
    clients = max(1 if is_plain else 2, len(_trial_config(keys, 1, 1).models()))
    scenario = _trial_scenario(keys, shape, _COUNTED_BATCH * clients, clients, clients)
    config = _trial_config(keys, 2, clients)
    with reproducible_settings(), large_blocks_kept(), TrialFederation(config, scenario, plain_steps=True) as trial:
        if threading.active_count() == 1:  # else another thread may have a run, whose bits depend on this setting
            torch.set_num_threads(available_cores())
        if not is_plain:  # whose first round has the operations of all others
            trial.round_seconds()
        return trial.operations(local_epochs)


def network_trial(config: RunConfig) -> Speed:
    """Measure the speed of plain steps, once for each kind of network.

    Samples of one shape in one network take equally long, so one trial holds for all classes, sizes, methods and
    learning rates of such configs. Steps are replayed only in a network that is so small that this changes its speed.
    """
    shape, keys = shape_of(config), json.dumps(_network_keys(config), sort_keys=True)
    size, batch = _MAX_STEPS * config.batch_size, config.batch_size

    def measure() -> Speed:
        speed = _speed(keys, batch, shape, size, _NETWORK_SECONDS, plain_steps=True)
        if not config.engine.fast or speed.train * batch >= _REPLAY_MATTERS:
            return speed
        return _speed(keys, batch, shape, size, _NETWORK_SECONDS)

    return _kept_speed([keys, shape.sample], measure)


def _kept_speed(facts: Sequence[Any], measure: Callable[[], Speed]) -> Speed:
    return Speed(**_kept(facts, _SPEED_NAMES, lambda: asdict(measure())))


_known_values: dict[str, dict[str, float]] = {}


def _kept(facts: Sequence[Any], names: Sequence[str], measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the values by name that this machine has measured before, with these versions, or measure them now."""
    key = _key(facts)
    if (known := _known(key, names)) is not None:
        return known
    values, file = measure(), _file(key)
    if file is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, json.dumps(values))
    _known_values[key] = values
    return values


def _known(key: str, names: Sequence[str]) -> dict[str, float] | None:
    """The values that were kept under a key, in this process or before; None if there are none."""
    if key not in _known_values:
        file = _file(key)
        values = None if file is None else _read(file, names)
        if values is None:
            return None
        _known_values[key] = values
    return _known_values[key]


def _key(facts: Sequence[Any]) -> str:
    return json_digest([_environment(), facts])


@functools.cache
def _environment() -> dict[str, Any]:
    return describe_environment()


def _method_facts(config: RunConfig, train_size: float) -> tuple[list[Any], str, int]:
    """Return the facts that name a trial of the config's method, the keys of the trial, and the samples of a client."""
    shape, keys = shape_of(config), json.dumps(_method_keys(config), sort_keys=True)
    size = int(2 ** round(log2(max(1.0, train_size))))
    return [keys, asdict(replace(shape, train=(), test=())), size], keys, size


def _file(key: str) -> Path | None:
    try:
        return cache_dir() / "trials" / f"{key}.json"
    except ConfigError:  # no home directory
        return None


def _read(file: Path, names: Sequence[str]) -> dict[str, float] | None:
    """Read kept values; None if there are none, or damaged ones."""
    try:
        stored = parse_json(read_file(file))
        values = {name: float(stored[name]) for name in names}
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return values if all(math.isfinite(value) and value > 0 for value in values.values()) else None


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
    protocol = _offered_protocol(config)
    return _selected_keys(config, ("model", "batch_size", "optimizer", "augment", "precision", config.method)) | {
        "method": config.method,
        "preset": config.preset,
        "local_epochs": min(config.local_epochs, _MAX_EPOCHS),
        "protocol": {"few-shot": "global/global", "personal/others": "personal/global"}.get(protocol, protocol),
    }


def _offered_protocol(config: RunConfig) -> str:
    """The first of several protocols that the method offers, which is its main one."""
    tested = config.evaluation.tested_protocols
    if len(tested) == 1:
        return tested[0]
    models = abilities(METHODS.get(config.method)).predicts
    return next((protocol for protocol in tested if protocol.partition("/")[0] in models), tested[0])


def _selected_keys(config: RunConfig, names: Sequence[str]) -> dict[str, Any]:
    resolved = config.resolved()
    engine = {
        "name": "serial",
        "kernels": config.engine.kernels,
        "device": config.engine.device,
        "fast": config.engine.fast,
    }
    return {key: resolved[key] for key in names if key in resolved} | {"engine": engine}


def _speed(keys: str, batch: int, shape: Shape, max_size: int, target: float, *, plain_steps: bool = False) -> Speed:
    """Try clients of growing number and size until a round takes about `target` seconds.

    A third of that is enough. Clients have no more than `max_size` samples. A method needs two of them; plain steps
    need one for each network, and if that does not take far too long two whole batches, because the step of large
    weights takes long whatever the batch.
    """
    min_clients = max(1 if plain_steps else 2, len(_trial_config(keys, 1, 1).models()))
    clients, size = min_clients, min(batch, max_size, _FIRST_SIZE)
    seconds, speed = _timed(keys, shape, clients, size, plain_steps)  # a slow network is tried no further
    max_size = min(max_size, _MAX_STEPS * batch)
    least_size = min(max_size, 2 * batch) if plain_steps else 0
    while (seconds < target / 3 or size < least_size) and (size < max_size or clients < _MAX_CLIENTS):
        factor = target / max(seconds, 1e-4)
        before = (size, clients)
        size = min(max_size, max(least_size, ceil(size * factor / batch) * batch))
        enough = min(_MAX_CLIENTS, int(before[0] * before[1] * factor / size))
        clients = max(clients, enough - enough % min_clients)
        expected = seconds * size * clients / (before[0] * before[1])
        if (size, clients) == before or expected > _LONGEST * target:  # one large batch would take too long
            break
        seconds, speed = _timed(keys, shape, clients, size, plain_steps)
    return speed


def _timed(keys: str, shape: Shape, clients: int, size: int, plain_steps: bool) -> tuple[float, Speed]:
    """CPU seconds of the last round of a trial, without its tests, and the speed in it."""
    rounds = _PLAIN_ROUNDS if plain_steps else _ROUNDS
    config = _trial_config(keys, rounds, clients)
    tests = max(_MIN_TEST_SAMPLES, min(size * clients, _MAX_TEST_SAMPLES))
    scenario = _trial_scenario(keys, shape, size * clients, tests, clients)
    with reproducible_settings(), TrialFederation(config, scenario, plain_steps=plain_steps) as trial:
        train_seconds = [trial.round_seconds() for _ in range(rounds)][-1]
        test_seconds = trial.test_seconds()
        if test_seconds < _COLD_TEST_SECONDS:
            test_seconds = trial.test_seconds()
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
