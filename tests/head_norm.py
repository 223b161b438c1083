"""A callback with a measure, which processes of their own can import."""

import math
from typing import Any

from fedloom.runs.callbacks import Callback


class HeadNorm(Callback):
    """Measures the norm of the server's head."""

    def on_measure(self, config: Any, round_: int, rows: Any, weights: Any) -> dict[str, float]:
        for row in rows:
            row["value"] = math.nan  # changes nothing
        return {"head_norm": float(weights()["head.weight"].norm())}
