"""fedloom beside what people use today: `python benchmarks/engines.py [--peers PYTHON] [--fluke PYTHON] ...`.

What is compared takes turns in one run; rates are samples a second over the whole rounds of a turn, figures medians of
what the turns give, with their range. Parts, for --only by letter or name:

  (a) no-op           the round loop beside Flower's simulation
  (b) cnn             LeNet5 on 32x32x3, 50 clients of 10 batches of 16
  (c) fashion         Fashion-MNIST, 100 clients, Dirichlet 0.3, 10 a round, LeNet5 with batch norm, batch 32; beside it
                      (centralised) SGD on the same net, the limit
      command         the same from the command to the result, beside Flower's
  (d) mlp, logistic, mlp-sizes, logistic-sizes
                      1,000 clients, 100 a round, batch 10: of 60 samples each, and with Dirichlet 0.3, 4 to 219 samples
  (e) memory          a stateful method with 10 and with 1,000 clients, states beyond the budget on disk
  (f) scale           1,000 registered clients against 1,000,000, 100 a round
  (g) resnet8, resnet10   3x32x32, batch 32, few clients: serial beside the plain loop
  (h) auto            whole runs with the default engine beside serial and 2 processes, also while a core is busy
  (i) evaluation      tests of 100 clients' own nets: 2 processes beside serial
  (j) short-runs      10 and 50 rounds of mlp-sizes, start to end, tested every 5: default beside the former default
  (k) methods         FedSKC, FedDW, FedSC, Fed-CO2 and FedSSA on mlp-sizes: default beside the former default
  (l) every-round     the command of (c) tested every round: default beside the former default

The former default is the engine `processes`. --peers: a Python that has flwr[simulation] 1.41 and pfl beside fedloom;
--fluke: one with fluke 0.8; --fedjax: one with FedJAX (jax < 0.4.26); --blazefl: one with BlazeFL 3.0. Fashion-MNIST is
Debian's package. At the end: what was asked for (`bounds.py`), and what was seen.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

import overhead
import whole_runs
from bounds import FORMER, LINEAR, METHODS, PEERS, table
from contestants import with_fedloom, with_torch
from contestants.workloads import SMOKE, WORKLOADS, Workload, with_clients
from fedloom.core.files import write_atomic
from fedloom.runs.storage.environment import describe_environment
from turns import Figures, TurnCost, command, in_turns, obstacle, rates, ratios, summary, timed_rounds

RESULTS = Path(__file__).parent / "results" / "engines.json"
TURNS = 1 if SMOKE else 4
SHORT_TURNS = 1 if SMOKE else 8  # of rounds below half a second, which other work disturbs most
WARM_UP_SECONDS = 0.0 if SMOKE else 15.0  # of every fedloom contestant, after two rounds
ROUNDS = {"cnn": 2, "fashion": 3, "resnet8": 1, "resnet10": 1}  # of a turn; else:
SHORT_ROUNDS = 1 if SMOKE else 8

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
    """fedloom's engines, the plain loop and the peers on one workload."""
    workload, rounds = WORKLOADS[name], 1 if SMOKE else ROUNDS.get(name, SHORT_ROUNDS)
    contestants: dict[str, Callable[[], TurnCost]] = {}
    left_out: dict[str, str] = {}
    starts: dict[str, list[float]] = {}
    cores: dict[str, list[float]] = {}
    federations = {}
    try:
        for contestant, choice in engines.items():
            try:
                federations[contestant] = with_fedloom.federation(workload, **choice)
            except with_fedloom.NOT_THERE as error:
                left_out[contestant] = with_fedloom.reason_of(error)
                continue
            with_fedloom.warmed(federations[contestant], WARM_UP_SECONDS)
            contestants[contestant] = timed_rounds(with_fedloom.rounds(federations[contestant]), rounds)
        loops = {"plain loop": with_torch.rounds(workload)}
        if name == "fashion":
            loops["centralised"] = with_torch.centralised(workload, 60 if SMOKE else 6000)
        for contestant, loop in loops.items():
            loop()
            contestants[contestant] = timed_rounds(loop, rounds)
        for contestant, peer in PEERS.items():
            python = pythons[peer.environment]
            if name not in peer.takes:
                continue
            if why := obstacle(python, peer.package, peer.min_python):
                left_out[contestant] = why
                continue
            starts[contestant], cores[contestant] = [], []
            turn = functools.partial(
                peer_turn, python, peer.script, name, rounds, starts[contestant], cores[contestant]
            )
            contestants[contestant] = turn
        turns = in_turns(contestants, TURNS if name in ROUNDS else SHORT_TURNS)
        engine = with_fedloom.engine_of(federations["auto"]) if "auto" in federations else None
    finally:
        for federation in federations.values():
            with_fedloom.closed(federation)
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
    python: str, script: str, workload: str, rounds: int, starts: list[float], cores: list[float]
) -> TurnCost:
    """Some rounds of a peer after its first one. `cores`: CPU time over wall time of its rounds, if it says so."""
    answer = command(python, script, workload, str(rounds + 1))
    starts.append(round(answer["to_first_round"], 2))
    if "cores" in answer:
        cores.append(answer["cores"])
    return sum(answer["rounds"][-rounds:]), sum(answer["samples"][-rounds:])


def _samples_a_round(workload: Workload) -> float:
    scenario = workload.scenario()
    return sum(len(scenario.train[k]) for k in range(scenario.clients)) * workload.sampled / scenario.clients


def methods() -> Figures:
    """(k) Methods on unequal clients of the MLP: rounds of the default engine beside those of the former one."""
    figures: Figures = {"figures": {}, "ranges": {}, "seconds_a_round": {}}
    for method in METHODS:
        workload = replace(WORKLOADS["mlp-sizes"], method=method)
        federations = {name: with_fedloom.federation(workload, **e) for name, e in whole_runs.DEFAULTS.items()}
        try:
            contestants = {
                name: timed_rounds(with_fedloom.rounds(with_fedloom.warmed(f, WARM_UP_SECONDS)), SHORT_ROUNDS)
                for name, f in federations.items()
            }
            turns = in_turns(contestants, SHORT_TURNS)
        finally:
            for federation in federations.values():
                with_fedloom.closed(federation)
        speed = {name: rates(method_turns) for name, method_turns in turns.items()}
        judged = ratios({f"{method}: {FORMER}": (speed["default"], speed["former default"])})
        figures["figures"] |= judged["figures"]
        figures["ranges"] |= judged["ranges"]
        per_round = _samples_a_round(workload)
        seconds = {name: summary([per_round / rate for rate in values]) for name, values in speed.items()}
        figures["seconds_a_round"] |= {f"{method}, {name}": times for name, times in seconds.items()}
    return figures


def no_op(python: str) -> Figures:
    """(a) Overhead per client-round, of clients that return what they got: here, and in Flower's simulation."""
    figures: Figures = {"figures": {}, "left out": {}}
    rounds = SHORT_ROUNDS
    why = obstacle(python, "flwr")
    for size in (10, 500_000):
        work = overhead.fedloom_rounds(size)
        work()
        ours, theirs = [], []
        for _ in range(1 if SMOKE else 2):
            ours.append(overhead.milliseconds(work))
            if why is None:
                seconds = command(python, "with_flower.py", f"no-op {size}", str(rounds + 1))["rounds"][-rounds:]
                theirs += [second / overhead.CLIENTS * 1e3 for second in seconds]
        figures["figures"][f"ms a client, {size} parameters"] = round(median(ours), 3)
        if theirs:
            figures[f"{size} parameters, flower, ms"] = round(median(theirs), 3)
            figures["figures"][f"flower / fedloom, {size} parameters"] = round(median(theirs) / median(ours), 1)
    return figures | ({"left out": {"flower": why}} if why else {})


def scale() -> Figures:
    """(f) Rounds of 100 clients of 60 samples, of 1,000 registered and of 1,000,000 that share the same samples."""
    workload = WORKLOADS["logistic"]
    contestants = {}
    for count in (1000, 1_000_000):
        scenario = with_clients(workload.scenario(), count // 100 if SMOKE else count)
        federation = with_fedloom.federation(workload, scenario, name="serial")
        with_fedloom.warmed(federation, 0.0)
        contestants[f"{count:,}"] = timed_rounds(with_fedloom.rounds(federation), 1)
    turns = in_turns(contestants, 2 if SMOKE else 20)
    seconds = {
        contestant: [duration for duration, _ in contestant_turns] for contestant, contestant_turns in turns.items()
    }
    return {
        "seconds_a_round": {contestant: summary(values) for contestant, values in seconds.items()},
        **ratios({"1,000,000 / 1,000": (seconds["1,000,000"], seconds["1,000"])}),
    }


def parts_of(pythons: Mapping[str, str]) -> dict[str, tuple[str, Callable[[], Figures]]]:
    """By name: the letter, and what measures it."""

    def workload(name: str, engines: Mapping[str, dict[str, Any]]) -> Callable[[], Figures]:
        return lambda: measured(name, pythons, {**engines, **OTHERS.get(name, {})})

    return (
        {
            "no-op": ("a", lambda: no_op(pythons["peers"])),
            "cnn": ("b", workload("cnn", ENGINES)),
            "fashion": ("c", workload("fashion", ENGINES)),
            "command": ("c", lambda: whole_runs.from_command(pythons["peers"])),
        }
        | {name: ("d", workload(name, ENGINES)) for name in LINEAR}
        | {"memory": ("e", whole_runs.memory), "scale": ("f", scale)}
        | {name: ("g", workload(name, SERIAL)) for name in ("resnet8", "resnet10")}
        | {"auto": ("h", whole_runs.auto), "evaluation": ("i", whole_runs.evaluation)}
        | {"short-runs": ("j", whole_runs.short_runs), "methods": ("k", methods)}
        | {"every-round": ("l", whole_runs.every_round)}
    )


def print_part(name: str, figures: Figures) -> None:
    """A part in a few lines."""
    print(f"\n{name}")
    for contestant, rate in figures.get("samples_per_second", {}).items():
        seconds, cores = figures["seconds_a_round"][contestant]["median"], figures["cores"].get(contestant)
        text = f"  {cores['median']:.2f} cores" if cores else ""
        print(f"  {contestant:30s} {rate['median']:12,.1f} samples/s  {seconds:9.4f} s a round{text}", flush=True)
    for contestant, why in figures.get("left out", {}).items():
        print(f"  {contestant:30s} {why}", flush=True)
    print(f"  {json.dumps(figures['figures'])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in sorted({peer.environment for peer in PEERS.values()}):
        packages = {peer.package for peer in PEERS.values() if peer.environment == option}
        parser.add_argument(f"--{option}", default="", metavar="PYTHON", help=f"has {', '.join(sorted(packages))}")
    parser.add_argument("--only", default="", help="parts, e.g. b,c,resnet8")
    parser.add_argument("--smoke", action="store_true", help="everything tiny, to see that it runs")
    parser.add_argument("--json", type=Path, help=f"where the results go ({RESULTS.name}; smoke: nowhere); others stay")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = parts_of({peer.environment: getattr(arguments, peer.environment) for peer in PEERS.values()})
    selected = set(filter(None, arguments.only.split(",")))
    if unknown := selected - parts.keys() - {letter for letter, _ in parts.values()}:
        parser.error(f"--only: no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    out: Path | None = arguments.json or (None if SMOKE else RESULTS)
    before = json.loads(out.read_text()) if out and out.exists() else {}
    results = {name: before[name] for name in parts if "figures" in before.get(name, {})}
    for name, (letter, part) in parts.items():
        if selected and not selected & {name, letter}:
            continue
        results[name] = part() | {"environment": describe_environment()}  # parts may come from different machines
        print_part(name, results[name])
        if out:
            write_atomic(out, (json.dumps(results, indent=1) + "\n").encode())
    print(table(results))
    if SMOKE:
        print("smoke: it runs; the figures mean nothing")


if __name__ == "__main__":
    main()
