"""Floor 3: one file per method. `METHODS` lists them; `method.py` is the contract."""

from fedloom.methods import fedavg, fedbn, fedco2, feddw, fedprox, fedsc, fedskc, fedssa, local
from fedloom.methods.method import METHODS, WRAPPERS, Method, Spec, register

__all__ = [
    "METHODS",
    "WRAPPERS",
    "Method",
    "Spec",
    "fedavg",
    "fedbn",
    "fedco2",
    "feddw",
    "fedprox",
    "fedsc",
    "fedskc",
    "fedssa",
    "local",
    "register",
]
