"""Check what `make bench` needs, before it installs anything: Python, data, compiler, disk, cores.

This needs nothing but Python's own library, and ends with 1 if something is missing without which nothing runs.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
MIN_PYTHON = (3, 11)
FEDJAX_PYTHON = (3, 11)  # the last one for which its jaxlib has packages
DISK_GB, CORES = 8, 2


class Need(NamedTuple):
    """A requirement. problem: None if it is met; required: whether nothing runs without it."""

    title: str
    problem: str | None
    required: bool = True


def needs(*, smoke: bool) -> Iterator[Need]:
    """Yield all requirements."""
    version = ".".join(map(str, sys.version_info[:2]))
    old = sys.version_info < MIN_PYTHON
    yield Need(f"Python {version}", "fedloom needs 3.11 or newer: make bench PYTHON=python3.11" if old else None)
    venv = importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")
    yield Need("Python's venv with pip", None if venv else "install Debian's package python3-venv")
    has_jaxlib = sys.version_info[:2] == FEDJAX_PYTHON
    yield Need(
        "a Python for FedJAX", None if has_jaxlib else "its JAX has packages for 3.11: make bench PYTHON=python3.11"
    )
    missing = not FASHION_MNIST.is_dir()
    install = "install Debian's package dataset-fashion-mnist"
    yield Need("the data set Fashion-MNIST", install if missing else None, required=not smoke)
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    yield Need("a C++ compiler", None if compiler else "rows of own kernels and threads are left out", required=False)
    free_gb = shutil.disk_usage(Path(__file__).parent).free / 1e9
    yield Need(f"{DISK_GB} GB of disk", f"{free_gb:.0f} GB are free" if free_gb < DISK_GB else None, required=not smoke)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Need(f"{CORES} cores", f"{cores} may be used: two processes gain nothing" if cores < CORES else None, False)


def main(arguments: Sequence[str]) -> int:
    """Print every requirement; return 1 if something necessary is missing."""
    checked = list(needs(smoke="--smoke" in arguments))
    for need in checked:
        mark = "ok" if need.problem is None else "MISSING" if need.required else "without"
        print(f"{mark:8s}{need.title}" + ("" if need.problem is None else f": {need.problem}"))
    return int(any(need.required and need.problem for need in checked))
