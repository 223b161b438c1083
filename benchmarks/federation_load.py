"""Many nodes and large payloads in one process: seconds and peak memory of a round.

    python -m benchmarks federation-load --clients 200 --megabytes 1
    python -m benchmarks federation-load --clients 200 --participants 10 --megabytes 100

Messages are written, read and checked as over a network, but not sent. FedAvg on digits, one local epoch, an MLP with
two equal layers. Peak memory is that of the process, less what it held before the run.
"""

import argparse
import json
import math
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fedloom.flower.in_process import run_in_process
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig, parse


def config_of(clients: int, participants: int, megabytes: float, rounds: int) -> RunConfig:
    """Return a config whose payload has so many megabytes."""
    width = round(-37 + math.sqrt(37**2 + megabytes * 1e6 / 4))  # of a net with width^2 + 74 width weights and more
    return parse(
        {
            "method": "fedavg",
            "model": {"name": "mlp", "hidden": [width, width]},
            "rounds": rounds,
            "local_epochs": 1,
            "participation": participants / clients,
            "scenario": {"source": "digits", "partition": "iid", "clients": clients, "val": 0.0},
            "evaluation": {"every": rounds},
            "engine": "serial",
        }
    )


def resident_megabytes() -> float:
    """Return the megabytes that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Clock(Callback):
    """Notes when each round ends."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.ends = [time.perf_counter()]

    def on_round(self, config: RunConfig, round_: int, rows: object) -> None:
        self.ends.append(time.perf_counter())


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks federation-load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--participants", type=int, help="of a round; all unless given")
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args(words)
    participants = arguments.participants or arguments.clients
    config = config_of(arguments.clients, participants, arguments.megabytes, arguments.rounds)
    torch.set_num_threads(1)
    before, clock = resident_megabytes(), Clock()
    numbers = run_in_process(config, callbacks=[clock]).numbers
    payload = numbers["bytes_up"] / arguments.rounds / participants
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 - before
    seconds = [later - earlier for earlier, later in zip(clock.ends, clock.ends[1:], strict=False)]
    print(
        json.dumps(
            {
                "clients": arguments.clients,
                "participants": participants,
                "payload_mb": round(payload / 1e6, 2),
                "seconds_per_round": [round(value, 2) for value in seconds],
                "seconds_per_client": round(sum(seconds) / arguments.rounds / participants, 3),
                "peak_mb": round(peak),
                "peak_payloads": round(peak * 1e6 / payload, 1),
            }
        )
    )
