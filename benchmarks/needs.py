"""What `make bench` needs, one line each, before anything is installed: `python3 benchmarks/needs.py [--smoke]`.

It imports nothing but Python's own library. It ends with 1 where something is missing without which nothing runs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
MIN_PYTHON, BLAZEFL_PYTHON = (3, 11), "python3.14"
FEDJAX_PYTHON = (3, 11)  # its jaxlib has packages up to this one, and fedloom needs no less
DISK_GB, CORES = 8, 2


class Need(NamedTuple):
    """Something to be there. problem: None if it is; required: whether nothing runs without it."""

    title: str
    problem: str | None
    required: bool = True


def needs(*, smoke: bool) -> Iterator[Need]:
    """Everything that is checked, in order."""
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
    blazefl_python = shutil.which(os.environ.get("BLAZEFL_PYTHON", BLAZEFL_PYTHON))
    yield Need("Python 3.14 for BlazeFL", None if blazefl_python else "not there: BlazeFL is left out", required=False)


def main() -> int:
    """Print every need; return 1 if a required one is missing."""
    checked = list(needs(smoke="--smoke" in sys.argv))
    for need in checked:
        mark = "ok" if need.problem is None else "MISSING" if need.required else "without"
        print(f"{mark:8s}{need.title}" + ("" if need.problem is None else f": {need.problem}"))
    return int(any(need.required and need.problem for need in checked))


if __name__ == "__main__":
    sys.exit(main())
