"""Hardware and versions, without which a measured time or number means little."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fedloom._version import __version__

_PACKAGES = ("torch", "numpy", "scikit-learn", "safetensors", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Versions of the packages that decide numbers, the system, the processor and the number of its cores."""
    versions = {"fedloom": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "versions": versions,
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def environment_line(machine: Mapping[str, Any]) -> str:
    """Return an environment in one line: processor, cores and the versions that decide numbers."""
    versions = machine["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, Python {versions['python']}, torch {versions['torch']}, "
        f"fedloom {versions['fedloom']}"
    )


def fedloom_version_in(text: str) -> str | None:
    """Return the version of fedloom in a line of `environment_line`; None for any other text."""
    _, separator, version = text.rpartition(", fedloom ")
    return version if separator else None


def peak_memory_mb() -> float:
    """Largest resident size of this process so far, in MiB.

    From /proc where there is one: what `getrusage` reports starts from the size of the process that started this one.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 if platform.system() == "Linux" else 1024**2), 1)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
