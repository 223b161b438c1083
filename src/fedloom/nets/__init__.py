"""Floor 2: the model zoo and the role of every tensor. Knows nothing of data or methods."""

from fedloom.nets.net import MODELS, Net, build
from fedloom.nets.user_model import wrap

__all__ = ["MODELS", "Net", "build", "wrap"]
