"""Checks of an exported app: its config, the space that its run needs, and the versions on both sides."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.flower.apps import CONFIG
from fedloom.flower.node_data import node_source
from fedloom.flower.preflight.finding import Finding, error, ok, warning
from fedloom.flower.preflight.machine import stored_bytes
from fedloom.flower.transport import require_flower
from fedloom.methods.contract.contexts import ClientContext, ServerContext
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.setup import Setup


def read_app(path: Path) -> RunConfig:
    """Read the config of an exported app, or a config file. Raises `ConfigError`."""
    return parse(load(path / CONFIG if (path / CONFIG).is_file() else path))


def fingerprint_findings(app: Path, config: RunConfig, other: str | None, origin: str) -> list[Finding]:
    """Compare the app's config with another fingerprint.

    other: the other fingerprint; None if there is none to compare with. origin: where the other one is from.
    """
    own = config.fingerprint()
    if other is not None and other != own:
        text = f"{app} has the config {own}, and {origin} {other}; export the app again, and give all the same one"
        return [error("config", text)]
    return [ok("config", f"{app}: {config.method}, {config.rounds} rounds, fingerprint {own}")]


def sizes_of(config: RunConfig) -> tuple[int, int]:
    """Return the bytes that a run stores on the server, and on the node of one client, from its first states.

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
    return stored_bytes(config, server), stored_bytes(config, state)


def read_app_or_explain(path: Path) -> RunConfig | Finding:
    """Read the config of an app; an error is a finding."""
    try:
        return read_app(path)
    except (ConfigError, OSError) as problem:
        text = str(problem)
        return error("config", text if str(path) in text else f"{path}: {text}")


def versions() -> dict[str, str]:
    """Return the versions that matter between a server and its nodes. Raises `ConfigError` for an untested Flower."""
    flower, python = require_flower(), platform.python_version()
    return {"fedloom": __version__, "flwr": flower, "torch": version("torch"), "python": python}


def version_findings(required: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the versions of the packages of this machine.

    required: the server's versions by package; None compares with none.
    """
    try:
        here = versions()
    except ConfigError as problem:
        return [error("versions", str(problem))]
    findings = []
    for name, wanted in (required or {}).items():
        if name not in here or here[name] == wanted:
            continue
        text = f"the server has {name} {wanted}, this machine {here[name]}"
        if name == "fedloom":
            advice = f"install the same one everywhere: pip install 'fedloom=={wanted}'"
            findings.append(error("versions", f"{text}; {advice}"))
        elif name == "python" and here[name].split(".")[:2] == wanted.split(".")[:2]:
            continue
        else:
            findings.append(warning("versions", f"{text}; it works, but the last bits of results may differ"))
    text = ", ".join(f"{name} {number}" for name, number in here.items())
    return [*findings, ok("versions", text if required else f"{text}; nodes need the same fedloom")]
