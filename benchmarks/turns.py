"""Contestants take turns, in this process or as separate commands; the numbers are medians with their range."""

import contextlib
import functools
import io
import json
import math
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from benchmarks.workloads import SMOKE

ROOT = Path(__file__).parents[1]
Figures = dict[str, Any]
TurnCost = tuple[float, int]  # seconds, samples
T = TypeVar("T")


def in_turns(contestants: Mapping[str, Callable[[], T]], turns: int, seconds: float = math.inf) -> dict[str, list[T]]:
    """Return the results of every contestant in every turn; who begins differs from turn to turn.

    seconds: no turn but the first two begins later.
    """
    names, results = list(contestants), {name: list[T]() for name in contestants}
    until = time.perf_counter() + seconds
    for turn in range(turns):
        if turn > 1 and time.perf_counter() > until:
            break
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(contestants[name]())
    return results


def rates(turns: list[TurnCost]) -> list[float]:
    return [samples / seconds for seconds, samples in turns]


def summary(values: list[float], digits: int = 4) -> Figures:
    """Return the median, least and largest of some values, and their number."""
    figures = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()} | {"n": len(values)}


def ratios(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figures:
    """Return by name the ratio of the first to the second, turn by turn: medians (`figures`) and ranges (`ranges`)."""
    by_turn = {name: [a / b for a, b in zip(*pair, strict=True)] for name, pair in pairs.items()}
    return {
        "figures": {name: round(median(values), 3) for name, values in by_turn.items()},
        "ranges": {name: [round(min(values), 3), round(max(values), 3)] for name, values in by_turn.items()},
    }


def timed_rounds(work: Callable[[], int], rounds: int) -> Callable[[], TurnCost]:
    """Return a function that does some rounds of work in this process and times them."""

    def turn() -> TurnCost:
        began = time.perf_counter()
        samples = sum(work() for _ in range(rounds))
        return time.perf_counter() - began, samples

    return turn


def command(python: str, contestant: str, *arguments: str) -> Figures:
    """Run a module of `contestants`; return its JSON, and the seconds of the whole command."""
    began, module = time.perf_counter(), f"benchmarks.contestants.{contestant}"
    if SMOKE and python == sys.executable:
        output = _in_this_process(module, arguments)
    else:
        output = _in_a_process([python, "-m", module, *arguments])
    figures: Figures = json.loads(output.strip().splitlines()[-1])
    return figures | {"command_s": time.perf_counter() - began}


@contextlib.contextmanager
def round_by_round(python: str, contestant: str, *arguments: str) -> Iterator[Callable[[], float]]:
    """Start a module of `contestants` that runs a round for each line that it reads, and prints its seconds.

    Yields a function that asks for a round. Raises `ValueError` with the process's last words if it has ended.
    """
    words, pipe = [python, "-m", f"benchmarks.contestants.{contestant}", *arguments], subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=_environment())

        def one_round() -> float:
            with contextlib.suppress(BrokenPipeError):
                print(file=process.stdin, flush=True)
            if answer := process.stdout.readline() if process.stdout else "":
                return float(answer)
            process.wait()
            errors.seek(0)
            raise ValueError((errors.read().strip().splitlines() or [f"{contestant} has ended"])[-1])

        try:
            yield one_round
        finally:
            process.kill()
            process.communicate()


def fedloom_run(config: Path, folder: Path) -> float:
    """Return the seconds of a whole command `fedloom run`, from its start to its end."""
    began, words = time.perf_counter(), ["run", str(config), "--out", str(folder), "--json"]
    if SMOKE:
        from fedloom.cli.app import app

        with contextlib.redirect_stdout(io.StringIO()):
            app(words, standalone_mode=False)
    else:
        _in_a_process([sys.executable, "-m", "fedloom", *words])
    return time.perf_counter() - began


def _in_a_process(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=_environment())
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def _in_this_process(module: str, arguments: Sequence[str]) -> str:
    """Return the output of a module, without the start of a process: a smoke test has many."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = [module, *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_module(module, run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


@functools.cache
def obstacle(python: str, package: str) -> str | None:
    """Return why a peer cannot be run; None if it can."""
    path = shutil.which(python) if python else None
    if path is None:
        return "not run this time"
    done = subprocess.run([path, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"cannot be imported: {done.stderr.strip().splitlines()[-1]}"
