"""News of runs, which a runner passes to one listener, whichever process trains them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedloom.core.text import counted
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.curves import curve
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row


@dataclass(frozen=True, slots=True)
class Event:
    """News of one run: its position in the list, the round that it finished, its accuracy if tested, a note."""

    position: int
    round: int
    accuracy: float | None = None
    note: str | None = None


Listener = Callable[[Event], None]


class Forward(Callback):
    """Turn a run's callbacks into events."""

    def __init__(self, position: int, send: Listener) -> None:
        self._position, self._send = position, send

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self._send(Event(self._position, first_round - 1))

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        _, tested = curve(rows, "accuracy", "test")
        self._send(Event(self._position, round_, tested[-1] if tested else None))

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._send(Event(self._position, config.rounds))

    def on_note(self, config: RunConfig, note: str) -> None:
        self._send(Event(self._position, 0, note=note))


def first_wait(listener: Listener) -> Callable[[int], None]:
    """Return a function of the number of jobs that other calls work on, which reports only the first wait for them."""
    reported = False

    def report(remaining: int) -> None:
        nonlocal reported
        if not reported:
            listener(Event(0, 0, note=f"{counted(remaining, 'run')} left, with other processes; waiting for them"))
        reported = True

    return report
