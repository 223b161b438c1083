"""Configs of several runs: methods, seeds, every key given as a list, and the references that a gain must beat."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.files import copied
from fedloom.runs.config.keys import refuse_many
from fedloom.runs.config.kinds import KIND_KEYS, at, fitted_to_kinds
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.storage.schemas import leaves

_SEEDS = 3


@dataclass(frozen=True, slots=True)
class GridPoint:
    """One run of a grid: the listed values that it takes, by key with dots; its plain values; its config."""

    chosen: dict[str, Any]
    values: dict[str, Any]
    config: RunConfig


def variants(
    values: Mapping[str, Any], methods: Sequence[str] | None = None, seeds: int | Sequence[int] | None = None
) -> list[RunConfig]:
    """Return the configs of `grid_points`.

    Args:
        values: a config in which any key may be a list to compare.
        methods: names of methods; None takes the config's.
        seeds: the seeds, or how many from the config's on; None takes the config's.
    """
    return [point.config for point in grid_points(values, methods, seeds)]


def grid_points(
    values: Mapping[str, Any], methods: Sequence[str] | None = None, seeds: int | Sequence[int] | None = None
) -> list[GridPoint]:
    """Return one run for each combination of listed values, method and seed, the seed changing fastest. A list is one
    value where its key takes it (e.g. `scenario.skews`, or `model` for groups of clients), otherwise its elements are
    compared; so a list of such lists compares them. Where kinds are compared (`scenario.partition=[iid, dirichlet]`),
    each gets the keys that it knows. A run that would come twice, because its method does not know an option that is
    compared, comes once. values, methods, seeds: as for `variants`. Without methods: those of the key `method`, if it
    is a list; else fedavg, and the one that `method` names, or fedsc. Without seeds: those of the key `seed`, if it is
    a list, else three. Raises `ConfigError` for what `parse` refuses, for empty lists, and for a value twice in one."""
    plain = copied(values)
    for key, argument in (("method", methods), ("seed", seeds)):
        if argument is not None and isinstance(plain.get(key), list):
            raise ConfigError(f"{key} is a list, and {key}s are named too: give one of them")
    if not isinstance(plain.get("method"), list):
        method = plain.get("method", "fedavg")
        plain["method"] = ["fedavg", "fedsc" if method == "fedavg" else method] if methods is None else list(methods)
    if not isinstance(plain.get("seed"), list):
        plain["seed"] = _seeds(plain.get("seed", 0), _SEEDS if seeds is None else seeds)
    axes = _axes(plain)
    order = [key for key in axes if key not in ("method", "seed")] + ["method", "seed"]
    refuse_many("the listed values, methods and seeds", map(len, axes.values()))
    points_by_fingerprint: dict[str, GridPoint] = {}
    for chosen in product(*(axes[key] for key in order)):
        for key, value in zip(order, chosen, strict=True):
            _set_value(plain, key, value)
        fitted = fitted_to_kinds(plain, axes)
        config = parse(fitted)
        listed = zip(order[:-2], chosen[:-2], strict=True)  # without method and seed
        chosen_values = {key: value for key, value in listed if _has_key(fitted, key)}
        points_by_fingerprint.setdefault(config.fingerprint(), GridPoint(chosen_values, fitted, config))
    return list(points_by_fingerprint.values())


def _has_key(values: Mapping[str, Any], key: str) -> bool:
    *sections, last = key.split(".")
    section = at(values, sections)
    return isinstance(section, Mapping) and last in section


def _seeds(first: Any, seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, str):
        raise ConfigError(f"seeds = {seeds!r}: need seeds, as [0, 1, 2], or how many, as 3")
    if not isinstance(seeds, int):
        return list(seeds)
    if not isinstance(first, int):
        raise ConfigError(f"seed = {first!r}: need a whole number")
    refuse_many(f"seeds = {seeds}", [seeds])
    return [first + n for n in range(seeds)]


def _axes(values: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the lists to compare element by element, by dotted key; `values` keep the first element of each."""
    lists = {key: value for key, value in leaves(values) if isinstance(value, list)}
    axes: dict[str, list[Any]] = {}
    for key in ("method", "seed"):
        _add_axis(values, axes, key, lists.pop(key))
    while True:
        try:
            kind_keys = [key for key in KIND_KEYS if key in axes]
            for names in product(*(axes[key] for key in kind_keys)):
                for key, name in zip(kind_keys, names, strict=True):
                    _set_value(values, key, name)
                parse(fitted_to_kinds(values, axes))
            return axes
        except ConfigError as error:
            # A list is an axis of the grid if `parse` refuses it as the key's value: "rounds = [...": not a number.
            refused = next((key for key in lists if re.match(rf"{re.escape(key)}(\.\w+)? = \[", str(error))), None)
            if refused is None:
                raise
            _add_axis(values, axes, refused, lists.pop(refused))


def _add_axis(values: dict[str, Any], axes: dict[str, list[Any]], key: str, elements: list[Any]) -> None:
    if not elements:
        raise ConfigError(f"{key} = []: need at least one value to compare")
    repeated = next((element for index, element in enumerate(elements) if element in elements[:index]), None)
    if repeated is not None:
        raise ConfigError(f"{key} = {repeated!r} stands twice in its list; name each value once")
    axes[key] = elements
    _set_value(values, key, elements[0])


def _set_value(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    at(values, sections)[last] = value


# By the model that a protocol tests. A gain of a global model is one over FedAvg, and the pooled data are the most that
# it could use; a gain of personal models is one over training alone and over a tuned copy of the global model.
REFERENCES: dict[str, tuple[str, ...]] = {
    "global": ("fedavg", "central"),
    "personal": ("local", "fedavg+finetune", "fedavg+lpft"),
}


def variants_with_references(
    values: Mapping[str, Any], methods: Sequence[str] | None = None, seeds: int | Sequence[int] | None = None
) -> list[RunConfig]:
    """Return the configs of `variants(values, methods, seeds)`, followed by the reference methods that they lack, each
    in the tested protocols that list it. Raises `ConfigError` as `variants`, and where no protocol has references."""
    # FedAvg with tuning is no reference of the global protocol: its global model is FedAvg's, so it would only make the
    # correction for many comparisons stricter
    configs = variants(values, methods, seeds)
    protocols = {protocol for config in configs for protocol in config.evaluation.tested_protocols}
    if not any(_references(protocol) for protocol in protocols):
        raise ConfigError(f"references: there are none for the protocol {', '.join(sorted(protocols))}; leave them out")
    names = dict.fromkeys(name for protocol in sorted(protocols) for name in _references(protocol))
    known = {config.fingerprint() for config in configs}
    for config in variants(values, list(names), seeds):
        tested = tuple(name for name in config.evaluation.tested_protocols if config.method in _references(name))
        if tested and config.fingerprint() not in known:
            known.add(config.fingerprint())
            protocols_of_it = {"protocol": tested[0], "protocols": tested if len(tested) > 1 else ()}
            evaluation = config.evaluation.model_copy(update=protocols_of_it)
            configs.append(config.model_copy(update={"evaluation": evaluation}))
    return configs


def _references(protocol: str) -> tuple[str, ...]:
    return REFERENCES.get(protocol.partition("/")[0], ())
