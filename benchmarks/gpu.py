"""Speed and bits on one GPU: rounds against plain loops and JAX, five methods, whole runs, and the bits of all methods.

    python -m benchmarks gpu [--device cuda] [--only float32,bits] [--jax PYTHON]

The workloads are LeNet5 with batch norm (100 unequal clients, batch 32), an MLP 784-128-10 (100 unequal clients, batch
10) and ResNet-18 (10 clients of 5,000, batch 64), on 60,000, 60,000 and 50,000 images of noise. Parts, in this order:

  bits        two rounds on digits, of FedAvg and the five methods: whether the same seed gives the same bits again and
              without graphs, and how far `batched` is from serial; the five are FedSKC, FedDW, FedSC, Fed-CO2, FedSSA
  float32     rounds of FedAvg by the default, by serial with and without graphs, by batched, and by a plain loop
  methods     rounds of the five methods against those of FedAvg
  whole-runs  runs by the default, tested on 10,000 images after every round: rounds with and without the test
  peers       rounds of FedAvg against torch.compile and plain JAX, which rounds to TF32 (`contestants/with_jax.py`)
  bfloat16, tf32   the rounds of FedAvg in another precision; the plain loop takes bfloat16 in channels last by autocast
  other-bits  `bits` of all other methods

Contestants take turns; times are medians with their range. Every part is kept when it ends, and one that was measured
on the same device, driver and versions is not measured again unless --fresh is given, so an interrupted run can
continue. No part begins after --minutes. With --device cpu --smoke it runs on a few samples where no GPU is.
"""

import argparse
import contextlib
import functools
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from statistics import median
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks import federations, plain_loop
from benchmarks.bounds import METHODS as FIVE
from benchmarks.contestants.fedloom_run import whole_run
from benchmarks.data import read_results, write_results
from benchmarks.turns import Figures, in_turns, obstacle, ratios, round_by_round, summary
from benchmarks.workloads import ON_GPU, SMOKE, Workload
from fedloom.core.process_settings import reproducible_settings
from fedloom.engine.device import device_name, device_settings
from fedloom.methods import METHODS
from fedloom.runs.storage.data_record import describe_environment

TURNS, TURN_SECONDS = (1, 0.0) if SMOKE else (5, 20.0)
WHOLE_ROUNDS = 2 if SMOKE else 5
COMPARED = ("fedavg", "fedsc") if SMOKE else ("fedavg", *FIVE)
DIGITS: dict[str, Any] = {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 6}
if SMOKE:
    DIGITS = {"source": "random", "sizes": [48] * 6, "shape": (1, 8, 8)}
# By name, the engines of `bits`; all are compared with the first.
RUNS: dict[str, dict[str, Any]] = {name: {"name": "serial"} for name in ("serial", "again", "without graphs")}
RUNS |= {"without graphs": {"name": "serial", "fast": False}, "batched": {"name": "batched"}}
Call: TypeAlias = Callable[[], Any]
Contestants: TypeAlias = Mapping[str, AbstractContextManager[Call]]


@contextlib.contextmanager
def loop(work: Workload, device: torch.device, precision: str, *, compiled: bool = False) -> Iterator[Call]:
    """A plain loop, which needs no deterministic operators."""
    one_round = plain_loop.rounds(work, str(device), bfloat16=precision == "bfloat16", compiled=compiled)

    def in_precision() -> int:
        with device_settings(device, precision, deterministic=False):
            return one_round()

    yield in_precision


def measured(
    engines: Mapping[str, tuple[Workload, Figures]], others: Contestants, device: torch.device, reference: str
) -> Figures:
    """Measure rounds of fedloom and of other contestants in turns, after two that warm up, and ratios of their seconds.

    engines: by contestant, the workload, and the keywords of a federation.
    """
    calls: dict[str, Callable[[], float]] = {}
    figures: Figures = {"left out": {}}
    simulations: dict[str, federations.BenchFederation] = {}
    with contextlib.ExitStack() as opened:
        for name in (*engines, *others):
            try:
                if name in engines:
                    work, engine = engines[name]
                    simulations[name] = federations.federation(work, **engine)
                    opened.callback(federations.closed, simulations[name])
                    call: Call = federations.rounds(simulations[name])
                else:
                    call = opened.enter_context(others[name])
                timed = functools.partial(seconds, call, device)
                figures[name] = {"first round": round(timed(), 3), "second round": round(timed(), 3)}
                calls[name] = timed
            except Exception as error:  # other contestants go on
                figures["left out"][name] = federations.reason_of(error)
        turns = in_turns(calls, TURNS, TURN_SECONDS)
        for name, times in turns.items():
            figures[name] |= summary(times) | (federations.facts(simulations[name]) if name in simulations else {})
    if reference in turns:
        pairs = {f"{name} / {reference}": (turns[name], turns[reference]) for name in turns if name != reference}
        figures |= ratios(pairs)
    return figures


def seconds(work: Call, device: torch.device) -> float:
    """Seconds of a call, until the device has done what was queued."""
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def default(device: torch.device) -> str:
    """What a user gets who names no device."""
    return "auto" if device.type == "cuda" else str(device)


def rounds(work: Workload, device: torch.device, precision: str) -> Figures:
    serial = {"name": "serial", "device": str(device), "precision": precision}
    engines: dict[str, Figures] = {"serial": serial, "batched": {**serial, "name": "batched"}}
    if precision == "float32":
        engines = {"default": {"device": default(device)}, **engines, "serial, no graphs": {**serial, "fast": False}}
    loops = {"plain loop": loop(work, device, precision)}
    return measured({name: (work, engine) for name, engine in engines.items()}, loops, device, "plain loop")


def peers(work: Workload, device: torch.device, jax: str) -> Figures:
    others: Contestants = {"torch.compile": loop(work, device, "float32", compiled=True)}
    reason = obstacle(jax, "jax")
    if reason is None:
        others = {**others, "jax": round_by_round(jax, "with_jax", work.name, device.type)}
    figures = measured({"default": (work, {"device": default(device)})}, others, device, "default")
    figures["left out"] |= {} if reason is None else {"jax": reason}
    return figures


def methods(work: Workload, device: torch.device) -> Figures:
    engine = {"device": str(device)}
    engines = {method: (replace(work, method=method), engine) for method in COMPARED}
    return measured(engines, {}, device, "fedavg")


def whole_runs(work: Workload, device: torch.device) -> Figures:
    """Measure the rounds of a run but its first two, in which steps are captured."""
    result = whole_run(work, work.scenario(), WHOLE_ROUNDS + 2, 1, {"device": default(device)})
    spent = {
        part: [row["value"] for row in result.rows if row["name"] == f"seconds_{part}"][2:]
        for part in ("train", "aggregate", "move", "evaluate")
    }
    with_test = list(map(sum, zip(*spent.values(), strict=True)))
    tests = spent.pop("evaluate")
    return {
        "with test": summary(with_test),
        "without test": summary(list(map(sum, zip(*spent.values(), strict=True)))),
        "share of test": round(median(test / whole for test, whole in zip(tests, with_test, strict=True)), 3),
        "run": {key: result.numbers[key] for key in ("engine", "device", "seconds")},
    }


def bits(method: str, device: torch.device) -> Figures:
    """Run two rounds of a method by each of `RUNS`, and compare all weights of the server and the clients."""
    work = Workload(method, "digits-cnn", 6, 32, DIGITS, method=method)
    dealt = work.scenario()
    dealt = replace(dealt, public=dealt.test_set)
    figures: Figures = {"left out": {}}
    weights: dict[str, list[Tensor]] = {}
    for name, engine in RUNS.items():
        try:
            simulation = federations.federation(work, dealt, device=str(device), rounds=2, **engine)
            with closing(simulation.engine):
                for _ in range(2):
                    simulation.step()
            weights[name] = federations.weights_of(simulation)
            figures[name] = {"sha256": sha256(weights[name])} | federations.facts(simulation)
            figures[name] |= {"difference": difference(weights["serial"], weights[name])} if "serial" in weights else {}
        except Exception as error:  # other engines and methods go on
            figures["left out"][name] = federations.reason_of(error)
    hashes = {name: figures[name]["sha256"] for name in weights if name != "batched"}
    figures["same bits"] = len(hashes) == len(RUNS) - 1 and len(set(hashes.values())) == 1
    return figures


def sha256(tensors: Sequence[Tensor]) -> str:
    """Return the digest of all bits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def difference(expected: Sequence[Tensor], tensors: Sequence[Tensor]) -> float:
    """Return the largest |a - b| / (1 + |a|) of two lists of tensors: at most 1e-5 is what `batched` promises."""
    largest = 0.0
    for a, b in zip(expected, tensors, strict=True):
        apart = (a.double() - b.double()).abs() / (1 + a.double().abs())
        apart = torch.where(a.isnan() & b.isnan() | (a == b), 0.0, apart).nan_to_num(nan=torch.inf)
        largest = max(largest, float(apart.max()) if apart.numel() else 0.0)
    return float(f"{largest:.3g}")


def environment(device: torch.device) -> Figures:
    """Return what numbers depend on: device, driver, versions."""
    found: Figures = describe_environment() | {"device": device_name(device)}
    if device.type == "cuda":
        found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        with contextlib.suppress(OSError):  # there is no driver to ask in some containers
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            found["driver"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return found


def parts_of(device: torch.device, jax: str) -> dict[str, Callable[[], Figures]]:
    """Return what is measured, the most important first: the kind of a part, a comma, and its workload or method."""
    others = [name for name, _ in METHODS if name not in ("fedavg", *FIVE)][: 1 if SMOKE else None]
    kinds: dict[str, tuple[Callable[[Any], Figures], Sequence[Any]]] = {
        "bits": (lambda method: bits(method, device), COMPARED),
        "float32": (lambda name: rounds(ON_GPU[name], device, "float32"), tuple(ON_GPU)),
        "methods": (lambda name: methods(ON_GPU[name], device), tuple(ON_GPU)),
        "whole-runs": (lambda name: whole_runs(ON_GPU[name], device), tuple(ON_GPU)),
        "peers": (lambda name: peers(ON_GPU[name], device, jax), tuple(ON_GPU)),
        "bfloat16": (lambda name: rounds(ON_GPU[name], device, "bfloat16"), tuple(ON_GPU)),
        "tf32": (lambda name: rounds(ON_GPU[name], device, "tf32"), tuple(ON_GPU)),
        "other-bits": (lambda method: bits(method, device), others),
    }
    return {
        f"{kind}, {name}": functools.partial(measure, name)
        for kind, (measure, names) in kinds.items()
        for name in names
    }


def measure_parts(parts: Mapping[str, Callable[[], Figures]], results: Figures, minutes: float) -> bool:
    """Add to `results` the parts that they lack, and keep them after each. Return whether all could be measured."""
    began, failures = time.monotonic(), 0
    for part, measure in parts.items():
        if part in results:
            continue
        if time.monotonic() - began > minutes * 60:
            print(f"{minutes:g} minutes are over; the same command continues with {part}")
            break
        try:
            with reproducible_settings():
                results[part] = measure()
        except Exception as error:  # a GPU is often lent for minutes: the other parts are measured
            failures += 1
            print(f"{part}: {type(error).__name__}: {federations.reason_of(error)}", flush=True)
            continue
        print(f"{part}: {json.dumps(results[part])}", flush=True)
        if not SMOKE:
            write_results("gpu", results)
    return not failures


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="parts, e.g. float32,bits")
    parser.add_argument("--minutes", type=float, default=7.0, help="no part begins later")
    parser.add_argument("--jax", default=sys.executable, metavar="PYTHON", help="has jax and what fedloom needs")
    parser.add_argument("--fresh", action="store_true", help="measure parts again that are there")
    parser.add_argument("--smoke", action="store_true", help="a few samples, to see that it runs; keeps nothing")
    arguments = parser.parse_args(words)
    device, only = torch.device(arguments.device), arguments.only.split(",")
    if not (torch.cuda.is_available() if device.type == "cuda" else SMOKE):
        parser.error(f"--device {device}: there is no GPU; --device cpu --smoke shows that it runs, and keeps nothing")
    with device_settings(device, "float32", deterministic=True):
        here = environment(device)  # the first block of this kind sets what cuBLAS reads when it starts
    results = {} if SMOKE or arguments.fresh else read_results("gpu")
    if results.get("environment") != here:
        results = {"environment": here}
    parts = parts_of(device, arguments.jax)
    chosen = {part: measure for part, measure in parts.items() if only == [""] or part.partition(",")[0] in only}
    return int(not measure_parts(chosen, results, arguments.minutes))
