"""Whether the server has the data that a method needs of it."""

from __future__ import annotations

from fedloom.core.errors import ConfigError
from fedloom.data.scenario import Scenario
from fedloom.methods.contract.method import Method


def require_public(method: Method, scenario: Scenario) -> None:
    """Raises `ConfigError` if the server's data are missing, or have other classes where the method uses labels."""
    needed, held = method.spec.public, scenario.public
    if needed is None:
        return
    if held is None or not len(held):
        raise ConfigError(
            f"{method.name()} needs data at the server, and it has none: set scenario.public to a share of the "
            "training samples, e.g. 0.05, or to {source: name, its keys}"
        )
    if needed == "labels" and held.classes != scenario.class_names:
        theirs, own = (
            ", ".join(names[:6]) + (", ..." if len(names) > 6 else "") for names in (held.classes, scenario.class_names)
        )
        raise ConfigError(
            f"scenario.public: {method.name()} uses the labels of the server's data, whose classes are {theirs}; the "
            f"clients' are {own}; take a source with the same classes"
        )
