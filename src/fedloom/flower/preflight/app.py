"""Checks of an exported app: its config, and how much space its run needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedloom.core.errors import ConfigError
from fedloom.flower.apps import CONFIG
from fedloom.flower.node_data import node_source
from fedloom.flower.preflight.finding import Finding, error, ok
from fedloom.flower.preflight.machine import stored_bytes
from fedloom.methods.contract.contexts import ClientContext, ServerContext
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.setup import Setup


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that a run stores: on the server, and on the node of one client."""

    server: int
    node: int


def read_app(path: Path) -> RunConfig:
    """Read the config of an exported app, or a config file. Raises `ConfigError`."""
    return parse(load(path / CONFIG if (path / CONFIG).is_file() else path))


def fingerprint_findings(app: Path, config: RunConfig, other: str | None, origin: str) -> list[Finding]:
    """Compare the app's config with another fingerprint.

    Args:
        app: folder of the app.
        config: its config.
        other: the other fingerprint; None if there is none to compare with.
        origin: where the other one is from.
    """
    own = config.fingerprint()
    if other is not None and other != own:
        text = f"{app} has the config {own}, and {origin} {other}; export the app again, and give all the same one"
        return [error("config", text)]
    return [ok("config", f"{app}: {config.method}, {config.rounds} rounds, fingerprint {own}")]


def sizes_of(config: RunConfig) -> Sizes:
    """Return what a run stores, from the first states of its method.

    Reads the data if the config describes them. Raises `ConfigError` for a model that does not fit, and `DataError`.
    """
    nodes = node_source(config)
    if nodes is None:
        scenario = config.scenario.build(config.seed)
        shape, classes, clients = scenario.train_set.input_shape, scenario.num_classes, scenario.clients
    else:
        shape, classes = nodes.input_shape, len(nodes.classes)
        clients = config.scenario.clients - config.scenario.last_newcomers()
    setup = Setup.from_config(config, shape, classes, clients)
    task = setup.tasks[0]
    server = setup.method.server_init(ServerContext(task, 0))
    state = setup.method.client_init(ClientContext(task, 0, 0, 1, torch.ones(classes, dtype=torch.int64)))
    return Sizes(stored_bytes(config, server), stored_bytes(config, state))


def read_app_or_explain(path: Path) -> RunConfig | Finding:
    """Read the config of an app; an error is a finding."""
    try:
        return read_app(path)
    except (ConfigError, OSError) as problem:
        text = str(problem)
        return error("config", text if str(path) in text else f"{path}: {text}")
