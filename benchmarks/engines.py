"""fedloom beside what people use today: `python benchmarks/engines.py [--peers PYTHON] [--fluke PYTHON] ...`.

What is compared takes turns in one run; rates are samples a second over the whole rounds of a turn, figures medians of
what the turns give. Parts, for --only by letter or name:

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

--peers: a Python that has flwr[simulation] 1.41 and pfl beside fedloom; --fluke: one with fluke 0.8; --fedjax: one with
FedJAX (jax < 0.4.26); --blazefl: one with BlazeFL 3.0. Fashion-MNIST is Debian's package. At the end: what must hold.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import overhead
from contestants import with_fedloom, with_torch
from contestants.workloads import LR, SMOKE, WORKLOADS, Workload, with_clients
from fedloom.core.files import write_atomic
from fedloom.storage.environment import describe_environment

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "engines.json"
TURNS = 1 if SMOKE else 4
SHORT_TURNS = 1 if SMOKE else 8  # of rounds below half a second, which other work disturbs most
WARM_UP_SECONDS = 0.0 if SMOKE else 15.0  # of every fedloom contestant, after two rounds
ROUNDS = {"cnn": 2, "fashion": 3, "resnet8": 1, "resnet10": 1}  # of a turn; else:
SHORT_ROUNDS = 2 if SMOKE else 8
RUN_ROUNDS = 3 if SMOKE else 30  # of a whole run
RUN_TURNS = 1 if SMOKE else 3
Figures = dict[str, Any]
Taken = tuple[float, int]  # seconds, samples

SERIAL: dict[str, dict[str, Any]] = {"serial": {"name": "serial"}}
ENGINES: dict[str, dict[str, Any]] = {**SERIAL, "2 processes": {"name": "processes", "workers": 2}, "auto": {}}
# Left out, with the reason, where they are not there.
OTHERS: dict[str, dict[str, dict[str, Any]]] = {
    name: {
        "serial, own kernels": {"name": "serial", "kernels": "own"},
        "2 processes, own kernels": {"name": "processes", "workers": 2, "kernels": "own"},
    }
    for name in ("cnn", "fashion")
}
LINEAR = ("mlp", "logistic", "mlp-sizes", "logistic-sizes")
OTHERS |= {name: {"batched, 2 processes": {"name": "batched", "workers": 2}} for name in LINEAR}


@dataclass(frozen=True)
class Peer:
    """A contestant with a process of its own: which Python runs it, what it must be able to import."""

    script: str
    environment: str  # the option that names its Python
    package: str
    takes: tuple[str, ...]
    least: tuple[int, int] = (3, 11)


EVERYTHING = ("cnn", "fashion", *LINEAR)
PEERS = {
    "flower": Peer("with_flower.py", "peers", "flwr", EVERYTHING),
    "flower, quickstart": Peer("with_flower.py quickstart", "peers", "flwr_datasets", ("cnn",)),
    "pfl": Peer("with_pfl.py", "peers", "pfl", EVERYTHING),
    "fedjax": Peer("with_fedjax.py", "fedjax", "fedjax", LINEAR),
    "fluke": Peer("with_fluke.py", "fluke", "fluke", EVERYTHING),
    "blazefl": Peer("with_blazefl.py", "blazefl", "blazefl", ("cnn", "fashion"), least=(3, 14)),
}


@dataclass(frozen=True)
class Must:
    """A figure of a part and the least, or the most, that it may be."""

    part: str
    figure: str
    bound: float
    most: bool = False

    def judged(self, results: Mapping[str, Any]) -> Figures:
        part = results.get(self.part, {})
        value = part.get("figures", {}).get(self.figure)
        row = {"figure": f"{self.part}: {self.figure}", "bound": f"{'<=' if self.most else '>='} {self.bound:g}"}
        if value is None:
            peer_name = self.figure.partition(" / ")[2]
            return row | {"seen": None, "verdict": part.get("left out", {}).get(peer_name, "not measured")}
        holds = value <= self.bound if self.most else value >= self.bound
        return row | {"seen": value, "verdict": "MET" if holds else "MISSED"}


WHOLE_RUNS = ("cnn", "fashion", "mlp-sizes", "logistic-sizes")
LOADS = ("idle", "a core busy")
# How many times the rate of the best peer the default engine must have.
BOUNDS = {"cnn": 2.0, "fashion": 1.5, "mlp": 1.0, "logistic": 1.0, "mlp-sizes": 1.3, "logistic-sizes": 1.3}
MUST = [
    Must("no-op", "ms a client, 10 parameters", 0.3, most=True),
    Must("no-op", "ms a client, 500000 parameters", 1.5, most=True),
    *(
        Must(part, f"auto / {who}", BOUNDS[part])
        for part in BOUNDS
        for who, peer in PEERS.items()
        if part in peer.takes
    ),
    *(
        Must(part, f"2 processes, own kernels / {who}", 3.0)
        for part in OTHERS
        for who, peer in PEERS.items()
        if part not in LINEAR and part in peer.takes
    ),
    *(Must(part, "serial / plain loop", 0.97) for part in ("resnet8", "resnet10")),
    *(Must("auto", f"{name}, {load}", 1.1, most=True) for name in WHOLE_RUNS for load in LOADS),
    Must("evaluation", "2 processes / serial", 1.7),
]


def in_turns(contestants: Mapping[str, Callable[[], Taken]], turns: int) -> dict[str, list[Taken]]:
    """What every contestant takes in every turn; who begins differs from turn to turn."""
    names, turns_by_name = list(contestants), {name: list[Taken]() for name in contestants}
    for turn in range(turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            turns_by_name[name].append(contestants[name]())
    return turns_by_name


def rates(turns: list[Taken]) -> list[float]:
    return [samples / seconds for seconds, samples in turns]


def summary(values: list[float], digits: int = 4) -> Figures:
    """Of what was measured: median, least, most and number."""
    figures = {"median": median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()} | {"n": len(values)}


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """The median over turns of how many times the first is the second."""
    return round(median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def timed_rounds(work: Callable[[], int], rounds: int) -> Callable[[], Taken]:
    """Some rounds of work in this process."""

    def turn() -> Taken:
        began = time.perf_counter()
        samples = sum(work() for _ in range(rounds))
        return time.perf_counter() - began, samples

    return turn


def command(python: str, script: str, *arguments: str) -> Figures:
    """One command of a contestant; its own JSON, and the seconds of the whole command."""
    began = time.perf_counter()
    script, *style = script.split()
    command_line = [python, str(HERE / "contestants" / script), *arguments, *style]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command_line)} failed:\n{done.stderr[-3000:]}")
    figures: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return figures | {"command_s": time.perf_counter() - began}


@functools.cache
def obstacle(python: str, package: str, min_python: tuple[int, int]) -> str | None:
    """Why a peer cannot be run; None if it can."""
    path = shutil.which(python) if python else None
    if path is None:
        newest = shutil.which(f"python{min_python[0]}.{min_python[1]}")
        if sys.version_info < min_python and newest is None:
            return f"cannot be installed: needs Python >= {min_python[0]}.{min_python[1]}"
        return "not asked for"
    done = subprocess.run([path, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"cannot be imported: {done.stderr.strip().splitlines()[-1]}"


def measured(name: str, pythons: Mapping[str, str], engines: Mapping[str, dict[str, Any]]) -> Figures:
    """fedloom's engines, the plain loop and the peers on one workload."""
    workload, rounds = WORKLOADS[name], ROUNDS.get(name, SHORT_ROUNDS)
    contestants: dict[str, Callable[[], Taken]] = {}
    left_out: dict[str, str] = {}
    starts: dict[str, list[float]] = {}
    federations = {}
    try:
        for contestant, choice in engines.items():
            try:
                federations[contestant] = with_fedloom.federation(workload, **choice)
            except with_fedloom.NOT_THERE as error:
                left_out[contestant] = str(error)
                continue
            with_fedloom.warmed(federations[contestant], WARM_UP_SECONDS)
            contestants[contestant] = timed_rounds(with_fedloom.rounds(federations[contestant]), rounds)
        loops = {"plain loop": with_torch.rounds(workload)}
        if name == "fashion":
            loops["centralised"] = with_torch.centralised(workload, 600 if SMOKE else 6000)
        for contestant, loop in loops.items():
            loop()
            contestants[contestant] = timed_rounds(loop, rounds)
        for contestant, peer in PEERS.items():
            python = pythons[peer.environment]
            if name not in peer.takes:
                continue
            if why := obstacle(python, peer.package, peer.least):
                left_out[contestant] = why
                continue
            starts[contestant] = []
            turn = functools.partial(peer_turn, python, peer.script, name, rounds, starts[contestant])
            contestants[contestant] = turn
        turns = in_turns(contestants, TURNS if name in ROUNDS else SHORT_TURNS)
        engine = with_fedloom.engine_of(federations["auto"]) if "auto" in federations else None
    finally:
        for federation in federations.values():
            with_fedloom.closed(federation)
    per_round = _samples_a_round(workload)
    speed = {contestant: rates(contestant_turns) for contestant, contestant_turns in turns.items()}
    ratios = {
        f"{ours} / {contestant}": median_ratio(speed[ours], speed[contestant])
        for ours in ("serial", "2 processes", "auto", "2 processes, own kernels")
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
        "left out": left_out,
        "figures": ratios,
    }


def peer_turn(python: str, script: str, workload: str, rounds: int, starts: list[float]) -> Taken:
    """Some rounds of a peer after its first one."""
    answer = command(python, script, workload, str(rounds + 1))
    starts.append(round(answer["to_first_round"], 2))
    return sum(answer["rounds"][-rounds:]), sum(answer["samples"][-rounds:])


def _samples_a_round(workload: Workload) -> float:
    scenario = workload.scenario()
    return sum(len(scenario.train[k]) for k in range(scenario.clients)) * workload.sampled / scenario.clients


def no_op(python: str) -> Figures:
    """(a) Overhead per client-round, of clients that return what they got: here, and in Flower's simulation."""
    figures: Figures = {"figures": {}, "left out": {}}
    rounds = SHORT_ROUNDS
    why = obstacle(python, "flwr", (3, 11))
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


def from_command(python: str) -> Figures:
    """(c) from the command to its result: 20 rounds, the test accuracy at the end, a run folder and a checkpoint."""
    if why := obstacle(python, "flwr", (3, 11)):
        return {"figures": {}, "left out": {"flower": why}}
    workload, rounds = WORKLOADS["fashion"], 2 if SMOKE else 20
    config = {
        "method": "fedavg",
        "model": workload.model,
        "scenario": workload.source,
        "rounds": rounds,
        "participation": workload.sampled / workload.source["clients"],
        "local_epochs": 1,
        "batch_size": workload.batch,
        "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.0},
        "evaluation": {"protocol": "global/global", "every": rounds},
    }
    seconds: dict[str, list[float]] = {"fedloom": [], "flower": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        for turn in range(1 if SMOKE else 2):
            began = time.perf_counter()
            run = ["-m", "fedloom", "run", str(path), "--out", str(Path(folder) / str(turn)), "--json"]
            subprocess.run([sys.executable, *run], check=True, capture_output=True)
            seconds["fedloom"].append(time.perf_counter() - began)
            seconds["flower"].append(command(python, "with_flower.py", "fashion", str(rounds))["command_s"])
    share = round(median(seconds["fedloom"]) / median(seconds["flower"]), 3)
    return {contestant: summary(values) for contestant, values in seconds.items()} | {
        "figures": {"fedloom / flower": share}
    }


def scale() -> Figures:
    """Rounds of 100 clients of 60 samples, of 1,000 registered and of 1,000,000 that share the same samples."""
    workload = WORKLOADS["logistic"]
    contestants = {}
    for count in (1000, 1_000_000):
        scenario = with_clients(workload.scenario(), count)
        federation = with_fedloom.federation(workload, scenario, name="serial")
        with_fedloom.warmed(federation, 0.0)
        contestants[f"{count:,}"] = timed_rounds(with_fedloom.rounds(federation), 1)
    turns = in_turns(contestants, 2 if SMOKE else 20)
    seconds = {
        contestant: [duration for duration, _ in contestant_turns] for contestant, contestant_turns in turns.items()
    }
    figures = {"1,000,000 / 1,000": median_ratio(seconds["1,000,000"], seconds["1,000"])}
    return {
        "seconds_a_round": {contestant: summary(values) for contestant, values in seconds.items()},
        "figures": figures,
    }


def memory() -> Figures:
    """(e) Peak memory of a run in a process of its own: FedBN, whose clients keep batch norm, and local training."""
    figures: Figures = {"figures": {}}
    for method, model in (("fedbn", "lenet5-bn"), ("local", "mlp-128")):
        peaks = {
            str(clients): command(sys.executable, "stateful.py", method, model, str(clients)) for clients in (10, 1000)
        }
        figures[f"{method}, {model}"] = peaks
        share = peaks["1000"]["peak_memory_mb"] / peaks["10"]["peak_memory_mb"]
        figures["figures"][f"{method}, 1,000 / 10"] = round(share, 3)
    return figures


@contextlib.contextmanager
def one_core_busy() -> Iterator[None]:
    """A process that does nothing but compute, for as long as this one lives at most."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1000000))"
    burner = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        burner.terminate()
        burner.wait()


def auto() -> Figures:
    """Whole runs: seconds of the default engine over those of the better of serial and 2 processes."""
    figures: Figures = {"figures": {}}
    for load in LOADS:
        with one_core_busy() if load == "a core busy" else contextlib.nullcontext():
            for name in WHOLE_RUNS:
                seconds: dict[str, list[float]] = {contestant: [] for contestant in ENGINES}
                engines = []
                for turn in range(RUN_TURNS):
                    for contestant in (list(ENGINES) * 2)[turn % 3 :][:3]:
                        ran = command(
                            sys.executable, "whole_run.py", name, str(RUN_ROUNDS), json.dumps(ENGINES[contestant])
                        )
                        seconds[contestant].append(ran["seconds"])
                        if contestant == "auto":
                            engines.append(ran["engine"])
                best = min(median(seconds[contestant]) for contestant in ENGINES if contestant != "auto")
                figures["figures"][f"{name}, {load}"] = round(median(seconds["auto"]) / best, 3)
                summaries = {contestant: summary(values, 3) for contestant, values in seconds.items()}
                figures[f"{name}, {load}"] = {"seconds": summaries, "auto took": engines}
    return figures


def evaluation() -> Figures:
    """(i) Seconds that testing takes."""
    choices = {contestant: ENGINES[contestant] for contestant in ("serial", "2 processes")}
    seconds: dict[str, list[float]] = {contestant: [] for contestant in choices}
    accuracies = set()
    for _ in range(RUN_TURNS):
        for contestant, choice in choices.items():
            done = command(sys.executable, "personal_tests.py", "200" if SMOKE else "2000", json.dumps(choice))
            seconds[contestant].append(done["evaluate"])
            accuracies.add(done["accuracy"])
    return {
        "seconds": {contestant: summary(values, 3) for contestant, values in seconds.items()},
        "same accuracy": len(accuracies) == 1,
        "figures": {"2 processes / serial": median_ratio(seconds["serial"], seconds["2 processes"])},  # of their rates
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
            "command": ("c", lambda: from_command(pythons["peers"])),
        }
        | {name: ("d", workload(name, ENGINES)) for name in LINEAR}
        | {"memory": ("e", memory), "scale": ("f", scale)}
        | {name: ("g", workload(name, SERIAL)) for name in ("resnet8", "resnet10")}
        | {"auto": ("h", auto), "evaluation": ("i", evaluation)}
    )


def print_part(name: str, figures: Figures) -> None:
    """A part in a few lines."""
    print(f"\n{name}")
    for contestant, rate in figures.get("samples_per_second", {}).items():
        seconds = figures["seconds_a_round"][contestant]["median"]
        print(f"  {contestant:30s} {rate['median']:12,.1f} samples/s  {seconds:9.4f} s a round", flush=True)
    for contestant, why in figures.get("left out", {}).items():
        print(f"  {contestant:30s} {why}", flush=True)
    print(f"  {json.dumps(figures['figures'])}", flush=True)


def table(rows: list[Figures]) -> str:
    """What must hold, as a table."""
    lines = [f"\n{'must hold':48s}{'bound':>10s}{'seen':>10s}"]
    for row in rows:
        value = "" if row["seen"] is None else f"{row['seen']:.3f}"
        lines.append(f"{row['figure']:48s}{row['bound']:>10s}{value:>10s}  {row['verdict']}")
    return "\n".join(lines)


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
        results["must hold"] = [must.judged(results) for must in MUST]
        if out:
            write_atomic(out, (json.dumps(results, indent=1) + "\n").encode())
    print(table(results["must hold"]))
    if SMOKE:
        print("smoke: it runs; the figures mean nothing")


if __name__ == "__main__":
    main()
