"""Where the time of a round goes, by cProfile: `python benchmarks/where.py [cnn fashion mlp]`.

Seconds of four rounds by kind of work, for fedloom's serial engine with and without recorded steps and native kernels,
the plain loop, and a loop with DataLoaders. Forward, backward and update of recorded steps are one call.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from contestants import with_fedloom, with_torch
from contestants.workloads import WORKLOADS, Workload
from engines import GAINING, NATIVE, warmed

ROUNDS = 4
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
            weights[name] = sum(own[name] * (samples / total) for own, samples in done)
        return total

    return one_round


def kind_of(file: str, name: str) -> str:
    if file.endswith("programs.py"):
        return "recorded steps"
    if "kernels" in Path(file).parts:
        return "native kernels"
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
    seconds = dict.fromkeys(["recorded steps", "native kernels", *KINDS, "everything else"], 0.0)
    for (file, _, name), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        seconds[kind_of(file, name)] += own
    return seconds, samples


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ["cnn", "fashion"]:
        workload = WORKLOADS[name]
        made, recording = (with_fedloom.federation(workload, name="serial") for _ in range(2))
        warmed(recording)
        natives = {}
        if GAINING.get(name) is NATIVE:
            plain, recorded = (with_fedloom.federation(workload, name="serial", kernels="own") for _ in range(2))
            natives = {
                "fedloom, native kernels": with_fedloom.rounds(plain),
                "fedloom, native kernels, recorded": with_fedloom.rounds(warmed(recorded)),
            }
        contestants = {
            "fedloom, serial": with_fedloom.rounds(made),
            "fedloom, recorded": with_fedloom.rounds(recording),
            **natives,
            "plain loop": with_torch.rounds(workload),
            "loop with DataLoaders": with_loaders(workload),
        }
        print(f"{name}: microseconds a sample")
        for who, work in contestants.items():
            seconds, samples = profiled(work)
            each = ", ".join(f"{kind} {spent / samples * 1e6:.1f}" for kind, spent in seconds.items())
            print(f"  {who}: {sum(seconds.values()) / samples * 1e6:.1f} = {each}")


if __name__ == "__main__":
    main()
