"""The measure by which a round or a trial is selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Criterion(NamedTuple):
    """The measure that selects a round. sign: 1 if the highest value is the best, -1 if the lowest is."""

    name: str = "accuracy"
    sign: int = 1

    def best(self, rounds: Sequence[int], values: Sequence[float]) -> int | None:
        """Return the round of the best value, the earliest of equal ones; None without a value that is no NaN."""
        scored = [(self.sign * value, -round_) for round_, value in zip(rounds, values, strict=True) if value == value]
        return -max(scored)[1] if scored else None


ACCURACY = Criterion()
