"""The stacked.batched: trains several clients of one architecture together with `torch.vmap`."""

from fedloom.engine.stacked.batched import Batched, obstacle

__all__ = ["Batched", "obstacle"]
