"""A million registered clients: seconds and memory of a partition, and the time of one client's view.

    python benchmarks/partition.py [--clients 1000000] [--samples 1200000] [--classes 10]

Labels are synthetic, samples have no pixels. Memory is the peak of the process beyond what importing took.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import numpy as np

CASES = {
    "iid": {},
    "dirichlet": {"alpha": 0.3, "min_samples": 0},
    "quantity": {"alpha": 1.0, "min_samples": 0},
}


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, clients: int, samples: int, classes: int) -> None:
    """One partition in this process: prints a row."""
    from fedloom.core.streams import Streams
    from fedloom.data import PARTITIONS, make_scenario
    from fedloom.data.partitions import labels_only
    from fedloom.data.sources import Splits
    from fedloom.data.statistics import label_skew

    labels = np.random.default_rng(0).integers(0, classes, samples)
    data = labels_only(labels, [str(c) for c in range(classes)])
    partition = PARTITIONS.get(name)(**CASES[name])
    before, start = peak(), time.perf_counter()
    scenario = make_scenario(
        "synthetic", Splits(data, data.head(samples // 6)), partition, clients=clients, val=0.1, streams=Streams(0)
    )
    dealt = time.perf_counter() - start
    start = time.perf_counter()
    label_skew(scenario.train, labels, classes)
    figures = time.perf_counter() - start
    clients_looked_up = np.random.default_rng(1).integers(0, clients, 1000)
    start = time.perf_counter()
    for client in clients_looked_up:
        scenario.train.tensor(int(client))
    view = (time.perf_counter() - start) / len(clients_looked_up)
    print(f"{name:<12}{dealt:>10.2f}{figures:>12.2f}{peak() - before:>10.0f}{view * 1e6:>12.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=1_200_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--only", choices=sorted(CASES), help="one partition, in this process")
    arguments = parser.parse_args()
    if arguments.only:
        measure(arguments.only, arguments.clients, arguments.samples, arguments.classes)
        return
    print(f"{arguments.clients} clients, {arguments.samples} samples, {arguments.classes} classes")
    print(f"{'partition':<12}{'seconds':>10}{'figures, s':>12}{'MiB':>10}{'view, us':>12}", flush=True)
    for name in CASES:  # each in a process of its own: a peak is never taken back
        subprocess.run([sys.executable, *sys.argv, "--only", name], check=True)


if __name__ == "__main__":
    main()
