"""The pace of several runs: rounds done, and the time until all have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


class ProgressEstimate:
    """Estimate of the remaining time of several runs, from the rounds finished since the first news.

    Rounds that were done before (a run that is resumed or reused) count as done, and say nothing of the pace.
    """

    def __init__(self, rounds: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds, self._clock = list(rounds), clock
        self._first: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._began = self._last = clock()

    def record(self, run: int, round_: int) -> None:
        """Run number `run` has finished this round; the first news of a run is where it begins."""
        self._last = self._clock()
        if not self._first:
            self._began = self._last
        self._first.setdefault(run, round_)
        self._done[run] = round_

    @property
    def done(self) -> int:
        """Rounds done, of all runs."""
        return sum(self._done.values())

    @property
    def total(self) -> int:
        """Rounds of all runs."""
        return sum(self._rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the first news."""
        return self._clock() - self._began

    def remaining(self) -> float | None:
        """Seconds until the end; None before the first round is done."""
        if self._first and self.done == self.total:
            return 0.0
        finished = self.done - sum(self._first.values())
        if not finished:
            return None
        remaining = (self._last - self._began) / finished * (self.total - self.done)
        return max(0.0, remaining - (self._clock() - self._last))
