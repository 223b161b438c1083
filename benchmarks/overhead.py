"""Overhead of the round loop: a no-op client at 10 and at 500 k parameters, per client-round.

The client does nothing (no phases): what is measured is sampling, payloads, loading the weights, taking them back,
counting bytes and aggregating. The floor is the copy and the float64 sum alone. With flwr installed, Flower's FedAvg
over an in-process grid is measured in turn with it (A B A B), doing the same: weights out, weights back, average.

    python benchmarks/overhead.py [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from contestants import with_fedloom
from contestants.workloads import NO_OP, SMOKE
from fedloom.runs.storage.environment import describe_environment

CLIENTS = 20
ROUNDS = 2 if SMOKE else 10
REPEATS = 1 if SMOKE else 5


def fedloom_rounds(size: int) -> Callable[[], None]:
    """A function that runs ROUNDS rounds of CLIENTS no-op clients."""
    one_round = with_fedloom.rounds(with_fedloom.federation(NO_OP[f"no-op {size}"], name="serial"))

    def rounds() -> None:
        for _ in range(ROUNDS):
            one_round()

    return rounds


def floor_rounds(size: int) -> Callable[[], None]:
    """The least that any implementation does: copy the weights in and out, and sum them in float64."""
    received, live = torch.randn(size), torch.empty(size)

    def rounds() -> None:
        for _ in range(ROUNDS):
            total = torch.zeros(size, dtype=torch.float64)
            for _ in range(CLIENTS):
                live.copy_(received)
                total.add_(live.clone(), alpha=1 / CLIENTS)

    return rounds


def flower_rounds(size: int) -> Callable[[], None] | None:
    """The same in Flower: its FedAvg over an in-process grid that calls a ClientApp; None without flwr."""
    if importlib.util.find_spec("flwr") is None:
        return None
    import flower_inprocess

    logging.getLogger("flwr").setLevel(logging.ERROR)
    return flower_inprocess.flower_rounds(size, CLIENTS, ROUNDS)


def milliseconds(work: Callable[[], None]) -> float:
    """Per client-round."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) / (ROUNDS * CLIENTS) * 1e3


def measure(size: int) -> dict[str, Any]:
    """Medians over REPEATS turns, all contestants in each turn."""
    contestants = {"fedloom": fedloom_rounds(size), "floor": floor_rounds(size), "flower": flower_rounds(size)}
    runs: dict[str, list[float]] = {name: [] for name, work in contestants.items() if work is not None}
    for turn in range(REPEATS + 1):
        for name, times in runs.items():
            work = contestants[name]
            assert work is not None
            spent = milliseconds(work)
            if turn:  # the first turn warms up
                times.append(spent)
    return {name: {"median_ms": statistics.median(t), "min_ms": min(t), "max_ms": max(t)} for name, t in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--smoke", action="store_true", help="a few rounds, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "clients": CLIENTS,
        "rounds": ROUNDS,
        "turns": REPEATS,
        "environment": describe_environment(),
    }
    print(f"overhead per client-round, no-op client, {CLIENTS} clients, median of {REPEATS} turns (min .. max)")
    for size, limit in ((10, 0.3), (500_000, 1.5)):
        figures = result[str(size)] = measure(size)
        for name, f in figures.items():
            spread = f"({f['min_ms']:.3f} .. {f['max_ms']:.3f})"
            bound = f"   (bound {limit} ms)" if name == "fedloom" else ""
            print(f"{size:>9,} parameters  {name:<8} {f['median_ms']:8.3f} ms {spread}{bound}")
    if "flower" not in result["10"]:
        print("flwr is not installed: install the extra 'flower' to have it measured beside")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
