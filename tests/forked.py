"""The command line in a process forked from this one: it starts at once, because fedloom and torch are imported."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedloom.cli.app import main


def start_command(words: Sequence[str], errors: Path) -> BaseProcess:
    """Start the command in a process group of its own, which has the process's id; stderr is written to `errors`."""
    process = multiprocessing.get_context("fork").Process(target=_lead_group, args=(words, errors))
    process.start()
    return process


def _lead_group(words: Sequence[str], errors: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests that outlive their terminal ignore
    with errors.open("w") as stream:
        os.dup2(stream.fileno(), sys.__stderr__.fileno() if sys.__stderr__ else 2)
        sys.stderr = stream
        try:
            main(list(words))
        finally:
            stream.flush()
