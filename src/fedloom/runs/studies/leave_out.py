"""A study that leaves out each domain of a source in turn: one setting for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedloom.core.errors import ConfigError, DataError, short_repr
from fedloom.data import SOURCES
from fedloom.data.left_out_domain import domain_names
from fedloom.data.sources.source import Splits, configure_source


def without_each_domain(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each setting once for each domain of its source, which its runs hold out.

    Raises `ConfigError` for a setting that holds out something else, and for sources without two domains.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for setting, keys in settings.items():
        scenario = keys.get("scenario", {})
        scenario = {"source": scenario} if isinstance(scenario, str) else dict(scenario)
        if scenario.get("held_out") is not None:
            raise ConfigError(
                f"leave_out = 'domain': scenario.held_out = {short_repr(scenario['held_out'])} holds out something "
                "else; leave it out"
            )
        for domain in _domains(scenario):
            name = ", ".join(filter(None, (setting, f"without {domain}")))
            by_name[name] = {**keys, "scenario": {**scenario, "held_out": {"domain": domain}}}
    return by_name


def _in_both_sets(source: str, splits: Splits) -> list[str]:
    """The domains of a source's data. Raises `ConfigError` for one without training or without test samples."""
    train, test = domain_names(splits.train), domain_names(splits.test)
    for missing, kind in ((set(test) - set(train), "training"), (set(train) - set(test), "test")):
        if missing:
            raise ConfigError(
                f"leave_out = 'domain': {source} has no {kind} samples of {', '.join(sorted(missing))}, so it cannot "
                "be left out; take it out of the data"
            )
    return train


def _domains(scenario: Mapping[str, Any]) -> list[str]:
    """The domains of the source that a scenario names; data are read only where its keys do not name them."""
    name = scenario.get("source", "digits")
    if not isinstance(name, str):
        raise ConfigError(f"leave_out = 'domain': scenario.source = {short_repr(name)}; need one source")
    kind = SOURCES.get(name)
    keys = {key: value for key, value in scenario.items() if key in kind.model_fields}
    try:
        source = configure_source(kind, **keys)
        domains = list(source.named_domains()) or _in_both_sets(name, source.load())
    except DataError as error:
        raise ConfigError(f"leave_out = 'domain': {error}") from None
    if not domains:
        raise ConfigError(f"leave_out = 'domain': {name} has no domains; take a source that has, or leave it out")
    if len(domains) == 1:
        raise ConfigError(f"leave_out = 'domain': {domains[0]} is the only domain of {name}; nothing would train")
    return domains
