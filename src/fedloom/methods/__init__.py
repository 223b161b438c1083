"""Floor 3: one file per method. `METHODS` lists them; `method.py` is the contract."""

from fedloom.methods import fedavg, fedprox, fedsc, local
from fedloom.methods.method import METHODS, Method, Spec, register

__all__ = ["METHODS", "Method", "Spec", "fedavg", "fedprox", "fedsc", "local", "register"]
