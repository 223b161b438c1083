"""The examples in docstrings run, and give what they print."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch

from fedloom.data.partitions import labels_only

# Packages and modules whose examples run. Examples may use np, torch, rng (a NumPy generator) and labels_only.
PACKAGES = [
    "fedloom.data.labels",
    "fedloom.data.partitions",
    "fedloom.data.skews",
    "fedloom.evaluation.metrics",
    "fedloom.methods.contract.phases",
    "fedloom.methods.parts",
    "fedloom.methods.wrappers",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_examples_run(name: str) -> None:
    package = importlib.import_module(name)
    submodules = pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}.")
    attempted = 0
    for module in [package, *(importlib.import_module(submodule.name) for submodule in submodules)]:
        names = {"np": np, "torch": torch, "rng": np.random.default_rng(0), "labels_only": labels_only}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outcome = doctest.testmod(module, extraglobs=names)
        assert not outcome.failed, f"{module.__name__}: see the captured output"
        attempted += outcome.attempted
    assert attempted, f"{name} has no examples"
