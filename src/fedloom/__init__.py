"""fedloom: federated learning on heterogeneous data.

    import fedloom as fl
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=10)
    result = fl.run(method="fedsc", scenario=scenario, rounds=30, seed=0)

Names are loaded when first used, which keeps `import fedloom` fast."""

import importlib
from typing import TYPE_CHECKING, Any

from fedloom._version import __version__

if TYPE_CHECKING:
    from fedloom.api import advise, compare, diagnose, inspect, read, run
    from fedloom.core.errors import FedloomError
    from fedloom.core.tables import ClassTable
    from fedloom.data.scenario import Scenario
    from fedloom.data.sources.source import SOURCES
    from fedloom.methods.contract.method import METHODS, Method, register
    from fedloom.methods.contract.spec import Spec
    from fedloom.nets.net import MODELS, Net
    from fedloom.nets.user_model import wrap
    from fedloom.results.comparison import Comparison
    from fedloom.results.result import Result
    from fedloom.runs.callbacks import Callback, EarlyStopping
    from fedloom.runs.config.keywords import scenario
    from fedloom.runs.config.table_keys import audit
    from fedloom.runs.export.evaluation import evaluate
    from fedloom.runs.export.trained import load
    from fedloom.study import Study

_HOMES = {
    "compare": "fedloom.api",
    "run": "fedloom.api",
    "scenario": "fedloom.runs.config.keywords",
    "advise": "fedloom.api",
    "audit": "fedloom.runs.config.table_keys",
    "diagnose": "fedloom.api",
    "inspect": "fedloom.api",
    "read": "fedloom.api",
    "Study": "fedloom.study",
    "FedloomError": "fedloom.core.errors",
    "ClassTable": "fedloom.core.tables",
    "Scenario": "fedloom.data.scenario",
    "SOURCES": "fedloom.data.sources.source",
    "METHODS": "fedloom.methods.contract.method",
    "Method": "fedloom.methods.contract.method",
    "Spec": "fedloom.methods.contract.spec",
    "register": "fedloom.methods.contract.method",
    "MODELS": "fedloom.nets.net",
    "Net": "fedloom.nets.net",
    "Callback": "fedloom.runs.callbacks",
    "Comparison": "fedloom.results.comparison",
    "EarlyStopping": "fedloom.runs.callbacks",
    "wrap": "fedloom.nets.user_model",
    "Result": "fedloom.results.result",
    "evaluate": "fedloom.runs.export.evaluation",
    "load": "fedloom.runs.export.trained",
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
    "Study",
    "__version__",
    "advise",
    "audit",
    "compare",
    "diagnose",
    "evaluate",
    "inspect",
    "load",
    "read",
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
