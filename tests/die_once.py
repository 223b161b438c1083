"""Callbacks that processes of their own can import."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

from fedloom.runs.callbacks import Callback


class DieOnce(Callback):
    """The first process that trains a round ends as if the system had killed it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(Callback):
    """Every round meets a full disk."""

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


class Odd(Exception):
    """Can be sent, and not be read."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


class FailsOddly(Callback):
    """Fails in the second round of seed 1."""

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        if config.seed == 1 and round_ == 2:
            raise Odd(1, 2)
