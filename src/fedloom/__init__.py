"""fedloom: federated learning on heterogeneous data.

    import fedloom as fl
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=10)
    result = fl.run(method="fedsc", scenario=scenario, rounds=30, seed=0)

Names are loaded when first used, which keeps `import fedloom` fast."""

import ast
import importlib
from pathlib import Path
from typing import Any

_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_HOMES = {name.name: str(of.module) for of in _IMPORTS if isinstance(of, ast.ImportFrom) for name in of.names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    errors = importlib.import_module("fedloom.core.errors")
    raise errors.attribute_error("fedloom", name, __all__)


def __dir__() -> list[str]:
    return __all__
