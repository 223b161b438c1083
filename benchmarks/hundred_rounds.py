"""Whether training stays finite for a hundred rounds at the papers' settings, on small data.

Clients, participation, epochs, batch, optimiser and partition of each method's main table, on the 8x8 digits. Not so:
FedDW has 20 clients for 10; Fed-CO2 has 1,000 images of Fashion-MNIST, for a net with batch norm, on five clients. For
each preset, also at the lowest temperature, the result says in how many seeds every loss stayed finite, and in which
round the first one did not. Cases that are in the results are not run again.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.data import RESULTS, read_rows, write_rows
from fedloom.methods import METHODS
from fedloom.results.group import mean_std
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import run
from fedloom.runs.storage.data_record import describe_environment

PATH = RESULTS / "hundred_rounds.csv.gz"
SEEDS = range(5)
ROUNDS, LOWEST_TAU = 100, 0.01
KEY = ("method", "preset", "options", "alpha")
_DIRICHLET = {"source": "digits", "partition": "dirichlet-fedma", "val": 0.0}
_WHOLE = {"protocol": "global/global", "every": 10}
_OWN = {"protocol": "personal/global", "every": 50}
PAPERS: dict[str, dict[str, Any]] = {
    "fedskc": {
        "scenario": _DIRICHLET | {"alpha": 0.2, "clients": 20},
        "participation": 0.4,
        "local_epochs": 10,
        "batch_size": 64,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "evaluation": _WHOLE,
    },
    "fedsc": {
        "scenario": _DIRICHLET | {"alpha": 0.2, "clients": 10},
        "participation": 0.5,
        "local_epochs": 10,
        "batch_size": 64,
        "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
        "evaluation": _WHOLE,
    },
    "feddw": {
        "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.5, "clients": 20, "min_samples": 1},
        "participation": 1.0,
        "local_epochs": 5,
        "batch_size": 128,
        "optimizer": {"name": "adam", "lr": 0.001},
        "evaluation": _WHOLE,
    },
    "fedco2": {
        "model": "lenet5-bn",
        "scenario": _DIRICHLET | {"source": "fashion-mnist", "limit": 1000, "alpha": 0.3, "clients": 5},
        "participation": 1.0,
        "local_epochs": 1,
        "batch_size": 32,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "evaluation": _OWN,
    },
    "fedssa": {
        "scenario": {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 10, "val": 0.0},
        "participation": 1.0,
        "local_epochs": 10,
        "batch_size": 64,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "evaluation": _OWN,
    },
}


Case = tuple[str, str, dict[str, Any], float | None]


def cases() -> Iterator[Case]:
    """Yield method, preset, further options, and alpha where it is not the one above."""
    for preset in ("sound", "paper"):
        yield "fedskc", preset, {}, 0.05
    for gpr in ("affine", "off"):
        yield "fedskc", "paper", {"gpr": gpr}, 0.05
    for method in PAPERS:
        same = METHODS.get(method).presets["sound"] == METHODS.get(method).presets["paper"]
        for preset in ("paper",) if same else ("sound", "paper"):
            yield method, preset, {}, None
            if method in ("fedskc", "fedsc"):
                yield method, preset, {"tau": LOWEST_TAU}, None


def measure(case: Case) -> dict[str, Any]:
    method, preset, options, alpha = case
    accuracies, first_lost = [], []
    for seed in SEEDS:
        shared = {"model": "digits-cnn", "rounds": ROUNDS, "seed": seed, "engine": {"name": "serial"}}
        config = {"method": method, "preset": preset, "options": {method: options}} | shared | PAPERS[method]
        if alpha is not None:
            config["scenario"] = config["scenario"] | {"alpha": alpha}
        result = run(RunConfig.model_validate(config))
        lost = [row["round"] for row in result.rows if row["name"] == f"degenerate/{method}.diverged"]
        first_lost.append(min(lost, default=None))
        accuracies.append(result.numbers["accuracy"])
    mean, std = mean_std(accuracies)
    return {
        "method": method,
        "preset": preset,
        "options": options,
        "alpha": PAPERS[method]["scenario"].get("alpha") if alpha is None else alpha,
        "finite": sum(first is None for first in first_lost),
        "seeds": len(SEEDS),
        "first_not_finite": first_lost,
        "accuracy": [round(mean, 4), round(std, 4)],
    }


def main(arguments: Sequence[str]) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks hundred-rounds", description=__doc__).parse_args(arguments)
    done = read_rows(PATH) if PATH.exists() else []
    done_keys = {json.dumps([case[key] for key in KEY]) for case in done}
    for method, preset, options, alpha in cases():
        real = PAPERS[method]["scenario"].get("alpha") if alpha is None else alpha
        if json.dumps([method, preset, options, real]) in done_keys:
            continue
        done.append(measure((method, preset, options, alpha)) | {"environment": describe_environment()})
        print(done[-1], flush=True)
        done.sort(key=lambda case: (list(PAPERS).index(case["method"]), -(case["alpha"] or 0)))
        write_rows(PATH, done)
