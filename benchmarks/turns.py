"""Contestants take turns in one run, here or as commands of their own; figures are medians with their range."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from contestants.workloads import SMOKE

CONTESTANTS = Path(__file__).parent / "contestants"
Figures = dict[str, Any]
TurnCost = tuple[float, int]  # seconds, samples


def in_turns(contestants: Mapping[str, Callable[[], TurnCost]], turns: int) -> dict[str, list[TurnCost]]:
    """What every contestant takes in every turn; who begins differs from turn to turn."""
    names, turns_by_name = list(contestants), {name: list[TurnCost]() for name in contestants}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            turns_by_name[name].append(contestants[name]())
    return turns_by_name


def rates(turns: list[TurnCost]) -> list[float]:
    return [samples / seconds for seconds, samples in turns]


def summary(values: list[float], digits: int = 4) -> Figures:
    """Of what was measured: median, least, most and number."""
    figures = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()} | {"n": len(values)}


def ratios(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figures:
    """By name, how many times the first is the second, turn by turn: medians (`figures`) and ranges (`ranges`)."""
    by_turn = {name: [a / b for a, b in zip(*pair, strict=True)] for name, pair in pairs.items()}
    return {
        "figures": {name: round(median(values), 3) for name, values in by_turn.items()},
        "ranges": {name: [round(min(values), 3), round(max(values), 3)] for name, values in by_turn.items()},
    }


def timed_rounds(work: Callable[[], int], rounds: int) -> Callable[[], TurnCost]:
    """Some rounds of work in this process."""

    def turn() -> TurnCost:
        began = time.perf_counter()
        samples = sum(work() for _ in range(rounds))
        return time.perf_counter() - began, samples

    return turn


def command(python: str, script: str, *arguments: str) -> Figures:
    """One command of a contestant; its own JSON, and the seconds of the whole command."""
    began = time.perf_counter()
    script, *style = script.split()
    words = [str(CONTESTANTS / script), *arguments, *style]
    output = _in_this_process(words) if SMOKE and python == sys.executable else _in_a_process([python, *words])
    figures: Figures = json.loads(output.strip().splitlines()[-1])
    return figures | {"command_s": time.perf_counter() - began}


def fedloom_run(config: Path, folder: Path) -> float:
    """Seconds of a whole command `fedloom run`, from its start to its end."""
    began, words = time.perf_counter(), ["run", str(config), "--out", str(folder), "--json"]
    if SMOKE:
        from fedloom.cli.app import app

        with contextlib.redirect_stdout(io.StringIO()):
            app(words, standalone_mode=False)
    else:
        _in_a_process([sys.executable, "-m", "fedloom", *words])
    return time.perf_counter() - began


def _in_a_process(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def _in_this_process(words: list[str]) -> str:
    """What a script prints: a smoke spares the start of a process."""
    before, printed = sys.argv, io.StringIO()
    sys.argv = words
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


@functools.cache
def obstacle(python: str, package: str, min_python: tuple[int, int] = (3, 11)) -> str | None:
    """Why a peer cannot be run; None if it can."""
    path = shutil.which(python) if python else None
    if path is None:
        newest = shutil.which(f"python{min_python[0]}.{min_python[1]}")
        if sys.version_info < min_python and newest is None:
            return f"cannot be installed: needs Python >= {min_python[0]}.{min_python[1]}"
        return "not run this time"
    done = subprocess.run([path, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"cannot be imported: {done.stderr.strip().splitlines()[-1]}"
