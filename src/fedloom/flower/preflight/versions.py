"""Checks of the versions that server and nodes have."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.flower.preflight.finding import Finding, error, ok, warning
from fedloom.flower.transport import require_flower


def versions() -> dict[str, str]:
    """Return the versions that matter between a server and its nodes. Raises `ConfigError` for an untested Flower."""
    return {
        "fedloom": __version__,
        "flwr": require_flower(),
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def version_findings(required: Mapping[str, str] | None = None) -> list[Finding]:
    """Check the versions of the packages of this machine.

    Args:
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
            findings.append(
                error("versions", f"{text}; install the same one everywhere: pip install 'fedloom=={wanted}'")
            )
        elif name == "python" and here[name].split(".")[:2] == wanted.split(".")[:2]:
            continue
        else:
            findings.append(warning("versions", f"{text}; it works, but the last bits of results may differ"))
    text = ", ".join(f"{name} {number}" for name, number in here.items())
    return [*findings, ok("versions", text if required else f"{text}; nodes need the same fedloom")]
