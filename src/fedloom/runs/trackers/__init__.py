"""Floor 7: callbacks that send a run's measures to experiment trackers. Each needs the extra of its name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.runs.trackers.mlflow import MLflow
    from fedloom.runs.trackers.tensorboard import TensorBoard
    from fedloom.runs.trackers.wandb import WandB

_MODULES = {"MLflow": "mlflow", "TensorBoard": "tensorboard", "WandB": "wandb"}

__all__ = ["MLflow", "TensorBoard", "WandB"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"fedloom.runs.trackers.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fedloom.runs.trackers' has no attribute '{name}'")
