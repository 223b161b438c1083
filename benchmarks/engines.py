"""fedloom beside what people use today: `python benchmarks/engines.py [--peers PYTHON] [--fedjax PYTHON]`.

Work, and what it must show (ratios of rates, taken in turns in one run):
  (a) no-op     the round loop beside Flower's simulation
  (b) cnn       LeNet5 on 32x32x3, 50 clients of 10 batches of 16
  (c) fashion   FedAvg on Fashion-MNIST, 100 clients, Dirichlet 0.3, 10 a round, LeNet5 with batch norm, batch 32
  (d) mlp, logistic   1,000 clients of 60 samples, 100 a round, batch 10
  (e) memory    a stateful method with 10 and with 1,000 clients, states beyond the budget on disk
  (f) centralised     plain SGD on the same net as (c), one thread: the limit
  scale         1,000 registered clients against 1,000,000, 100 a round

In-process contestants take turns round by round, three rounds a turn where rounds are short; peers with processes of
their own take turns command by command.
--peers: a Python that has flwr[simulation] 1.41 and pfl beside fedloom; --fedjax: one that has FedJAX (jax < 0.4.26).
Fashion-MNIST is Debian's package.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import overhead
from contestants import with_fedloom, with_torch
from contestants.workloads import LR, WORKLOADS, Workload
from fedloom.core.files import write_atomic
from fedloom.engine import Federation
from fedloom.engine.serial import Engine
from fedloom.study.environment import describe

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "engines.json"
TURNS, PEER_TURNS, PEER_ROUNDS = 8, 2, 8
MORE = {"mlp": 3, "logistic": 3}  # times as many rounds, where they are short
WARM_UP_SECONDS = 8.0  # of every fedloom contestant: steps that come often are recorded first
ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"name": "serial"},
    "2 processes": {"name": "processes", "workers": 2},
    "batched": {"name": "batched", "workers": 1},
    "batched, 2 processes": {"name": "batched", "workers": 2},
}
NATIVE: dict[str, dict[str, Any]] = {
    "serial, native kernels": {"name": "serial", "kernels": "native"},
    "2 processes, native kernels": {"name": "processes", "workers": 2, "kernels": "native"},
}
NATIVE_STACKS: dict[str, dict[str, Any]] = {
    "batched, 2 processes, native kernels": {"name": "batched", "workers": 2, "kernels": "native"},
}
GAINING = {"cnn": NATIVE, "fashion": NATIVE, "mlp": NATIVE_STACKS, "logistic": NATIVE_STACKS}  # from native kernels
Figures = dict[str, Any]


def summary(seconds: list[float]) -> Figures:
    """Of what was measured: median, least, most and number."""
    return {
        "median_s": round(median(seconds), 4),
        "min_s": round(min(seconds), 4),
        "max_s": round(max(seconds), 4),
        "n": len(seconds),
    }


def in_turns(
    contestants: Mapping[str, Callable[[], int]], turns: int = TURNS, rounds: int = 1
) -> dict[str, list[float]]:
    """Seconds a sample of every contestant in every round, after one turn that warms up. Clients, and so samples,
    differ from round to round: rates are compared."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, work in contestants.items():
            for _ in range(rounds):
                began = time.perf_counter()
                samples = work()
                if turn:
                    taken[name].append((time.perf_counter() - began) / samples)
    return taken


def ratio(slow: list[float], fast: list[float]) -> Figures:
    """How many times the first takes as long as the second: of medians, and of each turn."""
    pairs = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return {"of_medians": round(median(slow) / median(fast), 3), "by_turn": [round(pair, 3) for pair in pairs]}


def warmed(made: Federation) -> Federation:
    """After the rounds that are not the steady state: steps are recorded as they would be in a long run."""
    until = time.perf_counter() + WARM_UP_SECONDS
    made.engine.hurry(True)
    while time.perf_counter() < until:
        made.step()
    made.engine.hurry(False)
    return made


def auto_takes(workload: Workload) -> str:
    """The engine that auto chooses of all."""
    made = with_fedloom.federation(workload, name="auto", same_bits=False)
    made.engine.close()
    return called(made.engine)


def called(engine: Engine) -> str:
    """An engine's name in `ENGINES` and `NATIVE`."""
    name = {"processes": "2 processes", "batched": "batched, 2 processes"}.get(engine.name, engine.name)
    return f"{name}, native kernels" if engine.native else name


def measured(name: str) -> Figures:
    """The in-process contestants of one workload."""
    workload = WORKLOADS[name]
    auto = auto_takes(workload)
    natives = GAINING.get(name, {})
    choices = ENGINES | natives
    federations = {engine: warmed(with_fedloom.federation(workload, **choice)) for engine, choice in choices.items()}
    contestants = {engine: with_fedloom.rounds(made) for engine, made in federations.items()}
    contestants["plain loop"] = with_torch.rounds(workload)
    if name == "fashion":
        contestants["centralised"] = with_torch.centralised(workload, 6000)
    try:
        taken = in_turns(contestants, rounds=MORE.get(name, 1))
    finally:
        for made in federations.values():
            made.engine.close()
    per_round = _samples_a_round(workload)
    serial, best = taken["serial"], min(choices, key=lambda engine: median(taken[engine]))
    figures: Figures = {
        "seconds_a_round": {who: summary([s * per_round for s in seconds]) for who, seconds in taken.items()},
        "fastest": best,
        "auto takes": auto,
        "auto / fastest": round(median(taken[auto]) / median(taken[best]), 3),
        "serial / plain loop": ratio(serial, taken["plain loop"]),
        "serial / 2 processes": ratio(serial, taken["2 processes"]),
    }
    for native in natives:
        plain = native.removesuffix(", native kernels")
        figures[f"{plain} / {native}"] = ratio(taken[plain], taken[native])
    if "centralised" in taken:
        figures["serial / centralised, a sample"] = ratio(serial, taken["centralised"])
    return figures


def _samples_a_round(workload: Workload) -> float:
    scenario = workload.scenario()
    return sum(len(scenario.train[k]) for k in range(scenario.clients)) * workload.sampled / scenario.clients


def peer(python: str, script: str, workload: str, rounds: int) -> Figures:
    """One command of a peer; its own JSON, and the seconds of the whole command."""
    began = time.perf_counter()
    script, *style = script.split()
    command = [python, str(HERE / "contestants" / script), workload, str(rounds), *style]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    found: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return found | {"command_s": time.perf_counter() - began}


def beside_peers(name: str, scripts: Mapping[str, tuple[str, str]]) -> Figures:
    """fedloom's fastest engine and the peers, command after command: seconds of a round of average size."""
    workload = WORKLOADS[name]
    per_round, rounds = _samples_a_round(workload), PEER_ROUNDS * MORE.get(name, 1)
    taken: dict[str, list[float]] = {who: [] for who in ("fedloom", *scripts)}
    starts: dict[str, list[float]] = {who: [] for who in scripts}
    made = with_fedloom.federation(workload, name="auto", same_bits=False)
    try:
        warmed(made)
        for _ in range(PEER_TURNS):
            for _ in range(rounds):
                began = time.perf_counter()
                samples = made.step().samples
                taken["fedloom"].append((time.perf_counter() - began) / samples * per_round)
            for who, (python, script) in scripts.items():
                found = peer(python, script, name, rounds + 1)
                pairs = list(zip(found["rounds"], found["samples"], strict=True))[-rounds:]
                taken[who] += [seconds / samples * per_round for seconds, samples in pairs]
                starts[who].append(round(found["to_first_round"], 2))
        engine = called(made.engine)
    finally:
        made.engine.close()
    figures: Figures = {
        "engine": engine,
        "seconds_a_round": {who: summary(seconds) for who, seconds in taken.items()},
        "to_first_round_s": starts,
    }
    for who in scripts:
        figures[f"{who} / fedloom"] = round(median(taken[who]) / median(taken["fedloom"]), 2)
    return figures


def no_op(python: str) -> Figures:
    """(a) Overhead per client-round, of clients that return what they got: here, and in Flower's simulation."""
    found: Figures = {}
    for size in (10, 500_000):
        rounds = overhead.fedloom_rounds(size)
        rounds()
        ours, theirs = [], []
        for _ in range(PEER_TURNS):
            ours.append(overhead.milliseconds(rounds))
            seconds = peer(python, "with_flower.py", f"no-op {size}", PEER_ROUNDS + 1)["rounds"][-PEER_ROUNDS:]
            theirs += [second / overhead.CLIENTS * 1e3 for second in seconds]
        found[f"{size} parameters"] = {
            "fedloom_ms": round(median(ours), 3),
            "flower_ms": round(median(theirs), 3),
            "flower / fedloom": round(median(theirs) / median(ours), 1),
        }
    return found


def commands(python: str) -> Figures:
    """(c) from the command to its result: 20 rounds, the test accuracy at the end, a run folder and a checkpoint."""
    workload = WORKLOADS["fashion"]
    config = {
        "method": "fedavg",
        "model": workload.model,
        "scenario": workload.source,
        "rounds": 20,
        "participation": 0.1,
        "local_epochs": 1,
        "batch_size": workload.batch,
        "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.0},
        "evaluation": {"protocol": "global/global", "every": 20},
    }
    taken: dict[str, list[float]] = {"fedloom": [], "flower": []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        for turn in range(PEER_TURNS):
            began = time.perf_counter()
            run = ["-m", "fedloom", "run", str(path), "--out", str(Path(folder) / str(turn)), "--json"]
            subprocess.run([sys.executable, *run], check=True, capture_output=True)
            taken["fedloom"].append(time.perf_counter() - began)
            taken["flower"].append(peer(python, "with_flower.py", "fashion", 20)["command_s"])
    share = round(median(taken["fedloom"]) / median(taken["flower"]), 3)
    return {who: summary(seconds) for who, seconds in taken.items()} | {"fedloom / flower": share}


def scale() -> Figures:
    """Rounds of 100 clients of 60 samples, of 1,000 registered and of 1,000,000 that share the same samples."""
    few, many = (with_fedloom.registered(count, name="serial") for count in (1000, 1_000_000))
    taken = in_turns({"1,000": with_fedloom.rounds(few), "1,000,000": with_fedloom.rounds(many)}, 20)
    seconds = {who: summary([s * 6000 for s in values]) for who, values in taken.items()}
    return {"seconds_a_round": seconds, "1,000,000 / 1,000": ratio(taken["1,000,000"], taken["1,000"])}


def memory() -> Figures:
    """(e) Peak memory of a run in a process of its own: FedBN, whose clients keep batch norm, and local training."""
    found: Figures = {}
    for method, model in (("fedbn", "lenet5-bn"), ("local", "mlp-128")):
        peaks = {}
        for clients in (10, 1000):
            command = [sys.executable, str(HERE / "contestants" / "stateful.py"), method, model, str(clients)]
            peaks[str(clients)] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        found[f"{method}, {model}"] = peaks | {
            "1,000 / 10": round(peaks["1000"]["peak_memory_mb"] / peaks["10"]["peak_memory_mb"], 3)
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default="", help="a Python with flwr[simulation] and pfl")
    parser.add_argument("--fedjax", default="", help="a Python with FedJAX")
    parser.add_argument("--only", default="", help="parts, e.g. cnn,fashion,mlp,logistic,commands,memory,scale")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go; parts not run are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts: dict[str, Callable[[], Figures]] = {name: lambda name=name: measured(name) for name in WORKLOADS}
    for name in WORKLOADS:
        scripts = {}
        if arguments.peers:
            scripts |= {"flower": (arguments.peers, "with_flower.py"), "pfl": (arguments.peers, "with_pfl.py")}
            if name == "cnn":
                scripts["flower, quickstart"] = (arguments.peers, "with_flower.py quickstart")
        if arguments.fedjax and name in ("mlp", "logistic"):
            scripts["fedjax"] = (arguments.fedjax, "with_fedjax.py")
        if scripts:
            parts[f"{name} beside peers"] = lambda name=name, scripts=scripts: beside_peers(name, scripts)
    if arguments.peers:
        parts["no-op beside flower"] = lambda: no_op(arguments.peers)
        parts["fashion, 20 rounds from the command"] = lambda: commands(arguments.peers)
    parts |= {"memory": memory, "scale": scale}
    results = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    for name, part in parts.items():
        if arguments.only and not any(word in name for word in arguments.only.split(",")):
            continue
        results[name] = part()
        print(name, json.dumps(results[name], indent=1), flush=True)
        results["environment"] = describe()
        write_atomic(arguments.json, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
