"""fedloom: federated learning on heterogeneous data.

    import fedloom as fl
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=10)
    result = fl.run(method="fedsc", scenario=scenario, rounds=30, seed=0)

Names are loaded when first used, so that importing fedloom costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedloom._version import __version__

if TYPE_CHECKING:
    from fedloom.api import compare, run, scenario
    from fedloom.core.errors import FedloomError
    from fedloom.core.tables import ClassTable
    from fedloom.data.scenario import Scenario
    from fedloom.data.sources.source import SOURCES
    from fedloom.methods.method import METHODS, Method, register
    from fedloom.methods.spec import Spec
    from fedloom.nets.net import MODELS, Net
    from fedloom.nets.wrap import wrap
    from fedloom.study.callbacks import Callback
    from fedloom.study.comparison import Comparison
    from fedloom.study.early_stopping import EarlyStopping
    from fedloom.study.results import Result
    from fedloom.study.trained import load

_HOMES = {
    "compare": "fedloom.api",
    "run": "fedloom.api",
    "scenario": "fedloom.api",
    "FedloomError": "fedloom.core.errors",
    "ClassTable": "fedloom.core.tables",
    "Scenario": "fedloom.data.scenario",
    "SOURCES": "fedloom.data.sources.source",
    "METHODS": "fedloom.methods.method",
    "Method": "fedloom.methods.method",
    "Spec": "fedloom.methods.spec",
    "register": "fedloom.methods.method",
    "MODELS": "fedloom.nets.net",
    "Net": "fedloom.nets.net",
    "Callback": "fedloom.study.callbacks",
    "Comparison": "fedloom.study.comparison",
    "EarlyStopping": "fedloom.study.early_stopping",
    "wrap": "fedloom.nets.wrap",
    "Result": "fedloom.study.results",
    "load": "fedloom.study.trained",
}

__all__ = [
    "METHODS",
    "MODELS",
    "SOURCES",
    "Callback",
    "ClassTable",
    "Comparison",
    "EarlyStopping",
    "FedloomError",
    "Method",
    "Net",
    "Result",
    "Scenario",
    "Spec",
    "__version__",
    "compare",
    "load",
    "register",
    "run",
    "scenario",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedloom' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
