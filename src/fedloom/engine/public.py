"""Check that the server has the public data that a method needs."""

from __future__ import annotations

from fedloom.core.errors import ConfigError
from fedloom.data.scenario import Scenario
from fedloom.methods.contract.method import Method


def require_public(method: Method, scenario: Scenario) -> None:
    """Raise `ConfigError` if the server's data are missing, or if a method that uses labels gets other classes."""
    needed, public = method.spec.public, scenario.public
    if needed is None:
        return
    if public is None or not len(public):
        raise ConfigError(
            f"{method.name()} needs data at the server, and it has none: set scenario.public to a share of the "
            "training samples, e.g. 0.05, or to {source: name, its keys}"
        )
    if needed == "labels" and public.classes != scenario.class_names:
        server_classes, client_classes = (
            ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            for names in (public.classes, scenario.class_names)
        )
        raise ConfigError(
            f"scenario.public: {method.name()} uses the labels of the server's data, whose classes are "
            f"{server_classes}; the clients' are {client_classes}; take a source with the same classes"
        )
