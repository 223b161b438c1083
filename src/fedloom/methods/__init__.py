"""Floor 3: one file per method. `METHODS` lists them; `method.py` is the contract."""

from fedloom.methods import fedavg, feddw, fedprox, fedsc, fedskc, local
from fedloom.methods.method import METHODS, WRAPPERS, Method, Spec, register

__all__ = [
    "METHODS",
    "WRAPPERS",
    "Method",
    "Spec",
    "fedavg",
    "feddw",
    "fedprox",
    "fedsc",
    "fedskc",
    "local",
    "register",
]
