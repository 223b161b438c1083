"""Export a config as a Flower app: a project file, two short modules, and the config itself."""

from __future__ import annotations

from pathlib import Path

import yaml

from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.runs.config.run_config import RunConfig

PACKAGE = "fedloom_app"
CONFIG = f"{PACKAGE}/config.yaml"  # within the app's folder
_PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{title}, as a federation over Flower"
license = "Apache-2.0"
dependencies = ["fedloom[flower]=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedloom"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
out = ""  # the run's folder on the server; empty: runs/flower
keys = ""  # a folder on the server with the clients' public keys; none: the SuperLink checks no keys of nodes
test = ""  # where nodes have data of their own: a file on the server that names its test data
"""
_MODULE = '''\
"""The {side}: fedloom's, as config.yaml describes it."""

from pathlib import Path

from fedloom.flower.apps import {side}_app

app = {side}_app(Path(__file__).with_name("config.yaml"))
'''


def export(config: RunConfig, folder: Path) -> list[Path]:
    """Write the app to `folder` and return its files. Raises `ConfigError` for a folder with other files."""
    if folder.exists() and any(folder.iterdir()) and not (folder / PACKAGE).is_dir():
        raise ConfigError(f"{folder}: it holds other files; name an empty folder, or one that was exported before")
    resolved = config.resolved()
    if resolved["scenario"]["source"] == "given":
        raise ConfigError("data given in Python cannot be exported; describe them in the config, e.g. source: npz")
    name = f"fedloom-{config.method}".replace("+", "-")
    project = _PROJECT.format(name=name, title=config.method, version=__version__, package=PACKAGE)
    texts = {
        "pyproject.toml": project,
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/server.py": _MODULE.format(side="server"),
        f"{PACKAGE}/client.py": _MODULE.format(side="client"),
        CONFIG: yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True),
    }
    for path, text in texts.items():
        write_atomic(folder / path, text)
    return [folder / path for path in texts]
