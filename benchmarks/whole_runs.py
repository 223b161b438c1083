"""Parts of the benchmark `engines` that measure whole runs and commands, with start, tests, checkpoint and end."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import fedloom as fl
from benchmarks.bounds import FORMER, LOADS, WHOLE_RUNS
from benchmarks.turns import Figures, command, fedloom_run, in_turns, obstacle, ratios, summary
from benchmarks.workloads import LR, SMOKE, WORKLOADS

ROUNDS = 2 if SMOKE else 30  # of a whole run
TURNS = 1 if SMOKE else 3
SHORT = (10, 50)  # rounds of short runs
TEST_EVERY = 5
COSTLY = ("copa", "pfedme", "fedrep", "perfedavg", "fedgen", "fednh", "fedtgp", "scaffold", "feddyn")
OPERATION_TURNS, OPERATION_ROUNDS, FIRST_ROUNDS = (1, 3, 2) if SMOKE else (3, 14, 7)
SECONDS = ("seconds_train", "seconds_aggregate", "seconds_move")
COMMAND_ROUNDS = 2 if SMOKE else 20
# The default engine, and the default before there were threads.
DEFAULTS: dict[str, dict[str, Any]] = {"default": {}, "former default": {"name": "processes"}}
AUTO: dict[str, dict[str, Any]] = {"serial": {"name": "serial"}, "2 processes": {"name": "processes", "workers": 2}}
AUTO |= {"auto": {}}


def whole_run(name: str, rounds: int, every: int, engine: Mapping[str, Any]) -> Figures:
    """Start one run in another process."""
    return command(sys.executable, "fedloom_run", "whole", name, str(rounds), str(every), json.dumps(engine))


def short_runs() -> Figures:
    """Measure runs of 10 and 50 rounds of the MLP on unequal clients, tested every 5, from the call to the result.

    A run before them compiles the kernels, which happens once per machine.
    """
    whole_run("mlp-sizes", 2 if SMOKE else 10, TEST_EVERY, {})
    figures: Figures = {"figures": {}, "ranges": {}, "seconds": {}}
    for rounds in SHORT:
        length = ROUNDS if SMOKE else rounds
        engines: dict[str, set[str]] = {name: set() for name in DEFAULTS}

        def seconds_of(contestant: str, length: int = length, engines: dict[str, set[str]] = engines) -> float:
            ran = whole_run("mlp-sizes", length, TEST_EVERY, DEFAULTS[contestant])
            engines[contestant].add(ran["engine"])
            return float(ran["seconds"])

        seconds = in_turns({name: lambda name=name: seconds_of(name) for name in DEFAULTS}, TURNS)
        title = f"{rounds} rounds: {FORMER}"
        judged = ratios({title: (seconds["former default"], seconds["default"])})  # of their speeds
        figures["figures"] |= judged["figures"]
        figures["ranges"] |= judged["ranges"]
        figures["seconds"][f"{rounds} rounds"] = {name: summary(values, 3) for name, values in seconds.items()}
        figures[f"engines, {rounds} rounds"] = {name: sorted(names) for name, names in engines.items()}
    return figures


def every_round() -> Figures:
    """Measure Fashion-MNIST, LeNet5 with batch norm, tested every round: the whole command, default metrics."""
    choices = {
        f"{name}{words}": {**engine, **kernels}
        for name, engine in DEFAULTS.items()
        for words, kernels in {"": {}, ", own kernels": {"kernels": "own"}}.items()
    }
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as folder:

        def seconds_of(contestant: str) -> float:
            out = Path(folder) / f"{contestant} {len(list(Path(folder).iterdir()))}"
            path = _written(Path(folder), every=1, engine=choices[contestant])
            seconds = fedloom_run(path, out)
            if contestant == "default":
                spent = json.loads((out / "summary.json").read_text(encoding="utf-8"))["seconds"]
                shares.append(spent["evaluate"] / spent["total"])
            return seconds

        contestants = {name: lambda name=name: seconds_of(name) for name in choices}
        seconds = in_turns(contestants, TURNS)
    pairs = {
        FORMER: (seconds["former default"], seconds["default"]),
        f"{FORMER}, own kernels": (seconds["former default, own kernels"], seconds["default, own kernels"]),
    }
    judged = ratios(pairs)
    judged["figures"]["share of tests"] = round(median(shares), 3)
    return judged | {"seconds": {name: summary(values, 2) for name, values in seconds.items()}}


def from_command(python: str) -> Figures:
    """Measure a command to its result: 20 rounds, the test accuracy at the end, a run folder and a checkpoint."""
    if why := obstacle(python, "flwr"):
        return {"figures": {}, "left out": {"flower": why}}
    with tempfile.TemporaryDirectory() as folder:
        path = _written(Path(folder), every=COMMAND_ROUNDS, engine={})
        contestants = {
            "fedloom": lambda: fedloom_run(path, Path(folder) / str(len(list(Path(folder).iterdir())))),
            "flower": lambda: float(command(python, "with_flower", "fashion", str(COMMAND_ROUNDS))["command_s"]),
        }
        seconds = in_turns(contestants, TURNS)
    return {contestant: summary(values) for contestant, values in seconds.items()} | ratios(
        {"fedloom / flower": (seconds["flower"], seconds["fedloom"])}
    )


def _written(folder: Path, *, every: int, engine: Mapping[str, Any]) -> Path:
    """Write the config of the Fashion-MNIST run; of a smoke, another model and data that come with scikit-learn."""
    workload = WORKLOADS["fashion"]
    dealt = {"source": "digits", "partition": "iid", "clients": 10} if SMOKE else workload.source
    config = {
        "method": "fedavg",
        "model": "logistic" if SMOKE else workload.model,
        "scenario": dealt,
        "rounds": COMMAND_ROUNDS,
        "participation": workload.sampled / dealt["clients"],
        "local_epochs": 1,
        "batch_size": workload.batch,
        "optimizer": {"name": "sgd", "lr": LR, "momentum": 0.0},
        "evaluation": {"protocol": "global/global", "every": every},
        "engine": {} if SMOKE else dict(engine),
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


@contextlib.contextmanager
def one_core_busy() -> Iterator[None]:
    """Keep one core busy with a process that ends with this one at the latest."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1000000))"
    burner = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        burner.terminate()
        burner.wait()


def auto() -> Figures:
    """Measure whole runs: seconds of the default engine over those of the better of serial and 2 processes."""
    figures: Figures = {"figures": {}}
    for load in LOADS:
        with one_core_busy() if load == "a core busy" else contextlib.nullcontext():
            for name in WHOLE_RUNS:
                engines: list[str] = []

                def seconds_of(contestant: str, name: str = name, engines: list[str] = engines) -> float:
                    ran = whole_run(name, ROUNDS, ROUNDS, AUTO[contestant])
                    if contestant == "auto":
                        engines.append(ran["engine"])
                    return float(ran["seconds"] - ran["evaluate"])

                seconds = in_turns({who: lambda who=who: seconds_of(who) for who in AUTO}, TURNS)
                best = min(median(seconds[contestant]) for contestant in AUTO if contestant != "auto")
                figures["figures"][f"{name}, {load}"] = round(median(seconds["auto"]) / best, 3)
                summaries = {contestant: summary(values, 3) for contestant, values in seconds.items()}
                figures[f"{name}, {load}"] = {"seconds": summaries, "auto took": engines}
    return figures


def evaluation() -> Figures:
    """Measure the seconds of tests."""
    accuracies = set()

    def seconds_of(contestant: str) -> float:
        tested = command(
            sys.executable, "fedloom_run", "tests", "10" if SMOKE else "2000", json.dumps(AUTO[contestant])
        )
        accuracies.add(tested["accuracy"])
        return float(tested["evaluate"])

    contestants = {name: lambda name=name: seconds_of(name) for name in ("serial", "2 processes")}
    seconds = in_turns(contestants, TURNS)
    return {
        "seconds": {contestant: summary(values, 3) for contestant, values in seconds.items()},
        "same accuracy": len(accuracies) == 1,
        **ratios({"2 processes / serial": (seconds["serial"], seconds["2 processes"])}),  # of their rates
    }


def memory() -> Figures:
    """Measure the peak memory of FedBN, whose clients keep batch norm, and of local training."""
    figures: Figures = {"figures": {}}
    for method, model in (("fedbn", "lenet5-bn"), ("local", "mlp-128")):
        counts = (10, 20) if SMOKE else (10, 1000)
        peaks = [command(sys.executable, "fedloom_run", "memory", method, model, str(clients)) for clients in counts]
        figures[f"{method}, {model}"] = {str(clients): peak for clients, peak in zip(counts, peaks, strict=True)}
        share = peaks[1]["peak_memory_mb"] / peaks[0]["peak_memory_mb"]
        figures["figures"][f"{method}, 1,000 / 10"] = round(share, 3)
    return figures


def operations() -> Figures:
    """Compare time with operations: a method that computes twice as much should take twice as long.

    LeNet5 on Fashion-MNIST with 10 of 100 unequal clients per round, on threads. FedAvg runs before and after each
    method. A server's own training counts as time alone.
    """
    workload = replace(WORKLOADS["fashion"], model="lenet5")
    scenario = workload.scenario()

    def measured(method: str) -> tuple[float, float]:
        """The median seconds of a round after the first ones, and the operations of the run."""
        result = fl.run(
            method,
            scenario=scenario,
            model=workload.model,
            rounds=OPERATION_ROUNDS,
            participation=workload.sampled / scenario.clients,
            local_epochs=workload.epochs,
            batch_size=workload.batch,
            optimizer={"name": "sgd", "lr": LR},
            evaluation={"protocols": ["global/global", "personal/local"], "every": OPERATION_ROUNDS},
            engine="threads",
            progress=False,
        )
        by_round = dict.fromkeys(range(1, OPERATION_ROUNDS + 1), 0.0)
        for row in result.rows:
            if row["name"] in SECONDS:
                by_round[row["round"]] += row["value"]
        return median(list(by_round.values())[FIRST_ROUNDS:]), result.numbers["flops"]

    figures: Figures = {"figures": {}, "ranges": {}}
    for method in COSTLY:
        quotients = list[float]()
        for _ in range(OPERATION_TURNS):
            before, (seconds, flops), after = (measured(name) for name in ("fedavg", method, "fedavg"))
            ratio = flops / before[1]
            quotients.append(2 * seconds / (before[0] + after[0]) / ratio)
        figures["figures"][f"{method}: operations / fedavg's"] = round(ratio, 2)
        figures["figures"][f"{method}: time / operations"] = round(median(quotients), 2)
        figures["ranges"][f"{method}: time / operations"] = [round(min(quotients), 2), round(max(quotients), 2)]
    return figures
