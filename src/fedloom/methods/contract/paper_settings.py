"""The settings that the five papers state for every method that they run: local optimiser, epochs and batch size.

From their sections on experiments; FedDW's epochs are those of "Baseline1" in its Table II. A paper that gives SGD and
no momentum has none here. Missing is what a paper does not state, or searches: Fed-CO2 states no epochs, and has other
batches for each kind of skew; FedSSA searches both. Options of single methods stand in the methods' own presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLAIN_SGD = {"name": "sgd", "lr": 0.01, "momentum": 0.0}

PAPERS: Mapping[str, Mapping[str, Any]] = {
    "fedskc": {"optimizer": _PLAIN_SGD, "local_epochs": 10, "batch_size": 64},
    "fedsc": {
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
        "local_epochs": 10,
        "batch_size": 64,
    },
    "feddw": {"optimizer": {"name": "adam", "lr": 0.001}, "local_epochs": 5, "batch_size": 128},
    "fedco2": {"optimizer": _PLAIN_SGD},
    "fedssa": {"optimizer": _PLAIN_SGD},
}
