"""Speed of fedloom against a plain loop, Flower, pfl, fluke and FedJAX: rounds, whole runs, memory, scale.

    python -m benchmarks engines [--peers PYTHON] [--fluke PYTHON] [--fedjax PYTHON] [--only no-op,cnn]

Contestants take turns in one run. Rates are samples per second over the whole rounds of a turn; the results are medians
over the turns with their range. Parts:

    no-op           the round loop against Flower's simulation
    cnn             LeNet5 on 32x32x3, 50 clients of 10 batches of 16
    fashion         Fashion-MNIST, 100 clients, Dirichlet 0.3, 10 per round, LeNet5 with batch norm, batch 32; also
                    centralised SGD on the same net, the limit
    command         the same from the command to the result, against Flower's
    mlp, logistic, mlp-sizes, logistic-sizes
                    1,000 clients, 100 per round, batch 10: of 60 samples each, or with Dirichlet 0.3, 4 to 219 samples
    memory          a stateful method with 10 and with 1,000 clients, states beyond the budget on disk
    scale           1,000 registered clients against 1,000,000, 100 per round
    partition       seconds to deal 1,200,000 samples to a million clients
    resnet8, resnet10   3x32x32, batch 32, few clients: serial against the plain loop
    auto            whole runs with the default engine against serial and 2 processes, also while a core is busy
    evaluation      tests of 100 clients' own nets: 2 processes against serial
    short-runs      10 and 50 rounds of mlp-sizes, start to end, tested every 5: default against the former default
    methods         FedSKC, FedDW, FedSC, Fed-CO2 and FedSSA on mlp-sizes: default against the former default
    every-round     the command of `fashion` tested every round: default against the former default
    operations      whether time grows with operations

The former default is the engine `processes`. --peers names a Python with flwr[simulation] 1.41, pfl and fedloom,
--fluke one with fluke 0.8, --fedjax one with FedJAX (jax < 0.4.26). Fashion-MNIST is Debian's package. The command ends
with the ratios that we asked for (`bounds.py`) and those that it measured.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import federations, plain_loop, whole_runs
from benchmarks.bounds import FORMER, LINEAR, METHODS, PEERS, table
from benchmarks.data import read_results, write_results
from benchmarks.turns import Figures, TurnCost, command, in_turns, obstacle, rates, ratios, summary, timed_rounds
from benchmarks.workloads import NO_OP, SMOKE, WORKLOADS, Workload, with_clients
from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, make_scenario
from fedloom.data.partitions import labels_only
from fedloom.data.sources import Splits
from fedloom.runs.storage.data_record import describe_environment

TURNS = 1 if SMOKE else 4
SHORT_TURNS = 1 if SMOKE else 8  # of rounds below half a second, which other work disturbs most
WARM_UP_SECONDS = 0.0 if SMOKE else 15.0  # of every fedloom contestant, after two rounds
ROUNDS = {"cnn": 2, "fashion": 3, "resnet8": 1, "resnet10": 1}  # of a turn; else:
SHORT_ROUNDS = 1 if SMOKE else 8
NO_OP_ROUNDS = 2 if SMOKE else 10

SERIAL: dict[str, dict[str, Any]] = {"serial": {"name": "serial"}}
ENGINES: dict[str, dict[str, Any]] = {
    **SERIAL,
    "2 processes": {"name": "processes", "workers": 2},
    "threads": {"name": "threads"},
    "auto": {},
}
# Left out, with the reason, where they are not there.
OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    name: {
        "2 processes, own kernels": {"name": "processes", "workers": 2, "kernels": "own"},
        "auto, own kernels": {"kernels": "own"},
    }
    for name in ("cnn", "fashion")
}
OTHERS |= {name: {"batched, 2 processes": {"name": "batched", "workers": 2}} for name in LINEAR}
COMPARED = ("serial", "2 processes", "threads", "auto", "2 processes, own kernels", "auto, own kernels")


def measured(name: str, pythons: Mapping[str, str], engines: Mapping[str, dict[str, Any]]) -> Figures:
    """Measure fedloom's engines, the plain loop and the peers on one workload."""
    workload, rounds = WORKLOADS[name], 1 if SMOKE else ROUNDS.get(name, SHORT_ROUNDS)
    contestants: dict[str, Callable[[], TurnCost]] = {}
    left_out: dict[str, str] = {}
    starts: dict[str, list[float]] = {}
    cores: dict[str, list[float]] = {}
    simulations = {}
    try:
        for contestant, choice in engines.items():
            try:
                simulations[contestant] = federations.federation(workload, **choice)
            except federations.NOT_THERE as error:
                left_out[contestant] = federations.reason_of(error)
                continue
            federations.warmed(simulations[contestant], WARM_UP_SECONDS)
            contestants[contestant] = timed_rounds(federations.rounds(simulations[contestant]), rounds)
        loops = {"plain loop": plain_loop.rounds(workload)}
        if name == "fashion":
            loops["centralised"] = plain_loop.centralised(workload, 60 if SMOKE else 6000)
        for contestant, loop in loops.items():
            loop()
            contestants[contestant] = timed_rounds(loop, rounds)
        for contestant, peer in PEERS.items():
            python = pythons[peer.environment]
            if name not in peer.takes:
                continue
            if why := obstacle(python, peer.package):
                left_out[contestant] = why
                continue
            starts[contestant], cores[contestant] = [], []
            turn = functools.partial(
                peer_turn, python, peer.module, name, rounds, starts[contestant], cores[contestant]
            )
            contestants[contestant] = turn
        turns = in_turns(contestants, TURNS if name in ROUNDS else SHORT_TURNS)
        engine = federations.engine_of(simulations["auto"]) if "auto" in simulations else None
    finally:
        for simulation in simulations.values():
            federations.closed(simulation)
    per_round = _samples_a_round(workload)
    speed = {contestant: rates(contestant_turns) for contestant, contestant_turns in turns.items()}
    pairs = {
        f"{ours} / {contestant}": (speed[ours], speed[contestant])
        for ours in COMPARED
        for contestant in speed
        if ours in speed and contestant != ours
    }
    return {
        "samples_per_second": {contestant: summary(values, 1) for contestant, values in speed.items()},
        "seconds_a_round": {
            contestant: summary([per_round / rate for rate in values]) for contestant, values in speed.items()
        },
        **({"auto takes": engine} if engine else {}),
        "to_first_round_s": starts,
        "cores": {contestant: summary(values, 2) for contestant, values in cores.items() if values},
        "left out": left_out,
        **ratios(pairs),
    }


def peer_turn(
    python: str, module: str, workload: str, rounds: int, starts: list[float], cores: list[float]
) -> TurnCost:
    """Run some rounds of a peer after its first one. `cores`: CPU time over wall time of its rounds, if it says so."""
    answer = command(python, module, workload, str(rounds + 1))
    starts.append(round(answer["to_first_round"], 2))
    if "cores" in answer:
        cores.append(answer["cores"])
    return sum(answer["rounds"][-rounds:]), sum(answer["samples"][-rounds:])


def _samples_a_round(workload: Workload) -> float:
    scenario = workload.scenario()
    return sum(len(scenario.train[k]) for k in range(scenario.clients)) * workload.sampled / scenario.clients


def methods() -> Figures:
    """Measure methods on unequal clients of the MLP: rounds of the default engine against those of the former one."""
    figures: Figures = {"figures": {}, "ranges": {}, "seconds_a_round": {}}
    for method in METHODS:
        workload = replace(WORKLOADS["mlp-sizes"], method=method)
        simulations = {name: federations.federation(workload, **e) for name, e in whole_runs.DEFAULTS.items()}
        try:
            contestants = {
                name: timed_rounds(federations.rounds(federations.warmed(f, WARM_UP_SECONDS)), SHORT_ROUNDS)
                for name, f in simulations.items()
            }
            turns = in_turns(contestants, SHORT_TURNS)
        finally:
            for simulation in simulations.values():
                federations.closed(simulation)
        speed = {name: rates(method_turns) for name, method_turns in turns.items()}
        judged = ratios({f"{method}: {FORMER}": (speed["default"], speed["former default"])})
        figures["figures"] |= judged["figures"]
        figures["ranges"] |= judged["ranges"]
        per_round = _samples_a_round(workload)
        seconds = {name: summary([per_round / rate for rate in values]) for name, values in speed.items()}
        figures["seconds_a_round"] |= {f"{method}, {name}": times for name, times in seconds.items()}
    return figures


def no_op(python: str) -> Figures:
    """Measure the cost of clients that return the weights untouched, here and in Flower's simulation."""
    figures: Figures = {"figures": {}, "left out": {}}
    why = obstacle(python, "flwr")
    for name, workload in NO_OP.items():
        size, clients = workload.source["parameters"], workload.sampled
        work = timed_rounds(federations.rounds(federations.federation(workload, name="serial")), NO_OP_ROUNDS)
        ours, theirs = [work()[0] for _ in range(3)][1:], []
        for _ in range(0 if why else 1 if SMOKE else 2):
            theirs += command(python, "with_flower", name, str(SHORT_ROUNDS + 1))["rounds"][-SHORT_ROUNDS:]
        figures["figures"][f"ms a client, {size} parameters"] = round(median(ours) / NO_OP_ROUNDS / clients * 1e3, 3)
        if theirs:
            figures[f"{size} parameters, flower, ms"] = round(median(theirs) / clients * 1e3, 3)
            ratio = median(theirs) / (median(ours) / NO_OP_ROUNDS)
            figures["figures"][f"flower / fedloom, {size} parameters"] = round(ratio, 1)
    return figures | ({"left out": {"flower": why}} if why else {})


def scale() -> Figures:
    """Measure rounds of 100 clients of 60 samples, of 1,000 registered and of 1,000,000 that share the same samples."""
    workload = WORKLOADS["logistic"]
    contestants = {}
    for count in (1000, 1_000_000):
        scenario = with_clients(workload.scenario(), count // 100 if SMOKE else count)
        federation = federations.federation(workload, scenario, name="serial")
        federations.warmed(federation, 0.0)
        contestants[f"{count:,}"] = timed_rounds(federations.rounds(federation), 1)
    turns = in_turns(contestants, 2 if SMOKE else 20)
    seconds = {
        contestant: [duration for duration, _ in contestant_turns] for contestant, contestant_turns in turns.items()
    }
    return {
        "seconds_a_round": {contestant: summary(values) for contestant, values in seconds.items()},
        **ratios({"1,000,000 / 1,000": (seconds["1,000,000"], seconds["1,000"])}),
    }


def partition() -> Figures:
    """Measure the seconds to deal samples without pixels to many clients, and to look up a client's samples."""
    clients, classes = 1000 if SMOKE else 1_000_000, 10
    labels = np.random.default_rng(0).integers(0, classes, clients * 6 // 5)
    data = labels_only(labels, [str(label) for label in range(classes)])
    kinds = {"iid": {}, "dirichlet": {"alpha": 0.3, "min_samples": 0}, "quantity": {"alpha": 1.0, "min_samples": 0}}
    figures: Figures = {"figures": {}}
    for name, keys in kinds.items():
        began = time.perf_counter()
        splits, kind = Splits(data, data.head(len(labels) // 6)), PARTITIONS.get(name)(**keys)
        scenario = make_scenario("synthetic", splits, kind, clients=clients, val=0.1, streams=Streams(0))
        dealt = time.perf_counter()
        for client in np.random.default_rng(1).integers(0, clients, 1000):
            scenario.train.tensor(int(client))
        looked_up = time.perf_counter()
        figures["figures"][f"{name}, s"] = round(dealt - began, 2)
        figures["figures"][f"{name}, microseconds per client looked up"] = round((looked_up - dealt) * 1e3, 2)
    return figures


def parts_of(pythons: Mapping[str, str]) -> dict[str, Callable[[], Figures]]:
    """Return by name the function that measures a part."""

    def workload(name: str, engines: Mapping[str, dict[str, Any]]) -> Callable[[], Figures]:
        return lambda: measured(name, pythons, {**engines, **OTHERS.get(name, {})})

    return (
        {"no-op": lambda: no_op(pythons["peers"])}
        | {name: workload(name, ENGINES) for name in ("cnn", "fashion", *LINEAR)}
        | {"command": lambda: whole_runs.from_command(pythons["peers"]), "memory": whole_runs.memory}
        | {"scale": scale, "partition": partition}
        | {name: workload(name, SERIAL) for name in ("resnet8", "resnet10")}
        | {"auto": whole_runs.auto, "evaluation": whole_runs.evaluation, "short-runs": whole_runs.short_runs}
        | {"methods": methods, "every-round": whole_runs.every_round, "operations": whole_runs.operations}
    )


def print_part(name: str, figures: Figures) -> None:
    """Print a part in a few lines."""
    print(f"\n{name}")
    for contestant, rate in figures.get("samples_per_second", {}).items():
        seconds, cores = figures["seconds_a_round"][contestant]["median"], figures["cores"].get(contestant)
        text = f"  {cores['median']:.2f} cores" if cores else ""
        print(f"  {contestant:30s} {rate['median']:12,.1f} samples/s  {seconds:9.4f} s per round{text}", flush=True)
    for contestant, why in figures.get("left out", {}).items():
        print(f"  {contestant:30s} {why}", flush=True)
    print(f"  {json.dumps(figures['figures'])}", flush=True)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in sorted({peer.environment for peer in PEERS.values()}):
        packages = {peer.package for peer in PEERS.values() if peer.environment == option}
        parser.add_argument(f"--{option}", default="", metavar="PYTHON", help=f"has {', '.join(sorted(packages))}")
    parser.add_argument("--only", default="", help="parts, e.g. cnn,resnet8")
    parser.add_argument("--smoke", action="store_true", help="everything tiny, to see that it runs; keeps nothing")
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    parts = parts_of({peer.environment: getattr(arguments, peer.environment) for peer in PEERS.values()})
    selected = set(filter(None, arguments.only.split(",")))
    if unknown := selected - parts.keys():
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    results = {} if SMOKE else read_results("engines")
    for name, part in parts.items():
        if selected and name not in selected:
            continue
        results[name] = part() | {"environment": describe_environment()}  # parts may come from different machines
        print_part(name, results[name])
        if not SMOKE:
            write_results("engines", results)
    print(table(results))
    if SMOKE:
        print("smoke: it runs; the numbers mean nothing")
