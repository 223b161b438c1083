"""The stacked engine: clients of one architecture side by side, under `torch.vmap`."""

from fedloom.engine.stacked.engine import Batched
from fedloom.engine.stacked.stacks import obstacle

__all__ = ["Batched", "obstacle"]
