"""Where the time of a round goes, by cProfile: `python benchmarks/where.py [cnn fashion mlp] [--engine JSON]`.

Seconds of four rounds by kind of work, for fedloom's serial engine in its first rounds and in a long run, the plain
loop, and a loop with DataLoaders. Forward, backward and update of recorded steps are one call. --engine: another
choice, as in a config, e.g. '{"name": "serial", "kernels": "own"}'.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from contestants import with_fedloom, with_torch
from contestants.workloads import WORKLOADS, Workload

ROUNDS, WARM_UP_SECONDS = 4, 8.0
KINDS = {
    "backward": ("run_backward",),
    "forward": ("conv2d", "linear", "batch_norm", "max_pool2d", "relu", "cross_entropy_loss", "flatten", "__call__"),
    "update": ("_foreach", "add_", "sgd"),
    "batches": ("index_select", "'to' of", "sub_", "div_", "collate", "fetch", "__getitem__", "stack", "permutation"),
    "weights in, out, averaged": ("copy_", "clone", "weighted", "load_state", "state_dict", "reshape"),
}


def with_loaders(workload: Workload) -> Callable[[], int]:
    """One round of FedAvg as tutorials write it."""
    train, scenario = with_torch.with_loaders(workload), workload.scenario()
    weights = workload.net(scenario).state_dict()

    def one_round() -> int:
        done = [train(client, weights) for client in range(workload.sampled)]
        total = sum(samples for _, samples in done)
        for name in weights:
            weights[name] = sum(trained[name] * (samples / total) for trained, samples in done)
        return total

    return one_round


def kind_of(file: str, name: str) -> str:
    if file.endswith("programs.py"):
        return "recorded steps"
    if "kernels" in Path(file).parts:
        return "own kernels"
    for kind, words in KINDS.items():
        if any(word in name for word in words):
            return kind
    return "everything else"


def profiled(work: Callable[[], int]) -> tuple[dict[str, float], int]:
    """Seconds by kind, and samples, of ROUNDS rounds after three."""
    for _ in range(3):
        work()
    profile = cProfile.Profile()
    samples = sum(profile.runcall(work) for _ in range(ROUNDS))
    seconds = dict.fromkeys(["recorded steps", "own kernels", *KINDS, "everything else"], 0.0)
    for (file, _, name), (_, _, own_seconds, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        seconds[kind_of(file, name)] += own_seconds
    return seconds, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["cnn", "fashion"])
    parser.add_argument("--engine", type=json.loads, default={"name": "serial"})
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.workloads:
        workload = WORKLOADS[name]
        federation, long = (with_fedloom.federation(workload, **arguments.engine) for _ in range(2))
        contestants = {
            "fedloom, first rounds": with_fedloom.rounds(federation),
            "fedloom, a long run": with_fedloom.rounds(with_fedloom.warmed(long, WARM_UP_SECONDS)),
            "plain loop": with_torch.rounds(workload),
            "loop with DataLoaders": with_loaders(workload),
        }
        print(f"{name}: microseconds a sample")
        for who, work in contestants.items():
            seconds, samples = profiled(work)
            kinds = ", ".join(f"{kind} {spent / samples * 1e6:.1f}" for kind, spent in seconds.items())
            print(f"  {who}: {sum(seconds.values()) / samples * 1e6:.1f} = {kinds}")
        with_fedloom.closed(federation)
        with_fedloom.closed(long)


if __name__ == "__main__":
    main()
