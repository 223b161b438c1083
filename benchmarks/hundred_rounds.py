"""A hundred rounds at the papers' own settings on small data: `python benchmarks/hundred_rounds.py`.

Clients, participation, epochs, batch, optimiser and partition of each method's main table, on the 8x8 digits. Not so:
FedDW has 20 clients for 10; Fed-CO2 has 1,000 images of Fashion-MNIST, for a net with batch norm, on five clients. Says
for each preset, also at the lowest temperature, in how many seeds every loss stayed finite, and when the first one did
not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cells import option_text, titles
from fedloom.core.files import write_atomic
from fedloom.methods import METHODS
from fedloom.results.statistics import mean_std
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import run
from fedloom.runs.storage.environment import describe_environment

RESULTS = Path(__file__).parent / "results" / "hundred_rounds.json"
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
    """Method, preset, the options on top of it, and alpha where it is not the one above."""
    for preset in ("sound", "paper"):
        yield "fedskc", preset, {}, 0.05
    for gpr in ("affine", "off"):
        yield "fedskc", "paper", {"gpr": gpr}, 0.05
    for method in PAPERS:
        alike = METHODS.get(method).presets["sound"] == METHODS.get(method).presets["paper"]
        for preset in ("paper",) if alike else ("sound", "paper"):
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


def table(cases: Sequence[Mapping[str, Any]]) -> str:
    """The cases by method, as in `PAPERS`."""
    lines = ["| method | alpha | preset | options | seeds that stayed finite | accuracy % |", "|---" * 6 + "|"]
    for case in sorted(cases, key=lambda case: (list(PAPERS).index(case["method"]), -(case["alpha"] or 0))):
        options = ", ".join(f"{key}={option_text(value)}" for key, value in case["options"].items())
        lost = sorted({first for first in case["first_not_finite"] if first is not None})
        finite = f"{case['finite']} of {case['seeds']}" + (f" (round {', '.join(map(str, lost))})" if lost else "")
        mean, std = (100 * value for value in case["accuracy"])
        lines.append(
            f"| {titles()[case['method']]} | {case['alpha'] or '–'} | {case['preset']} | {options or '–'} |"
            f" {finite} | {mean:.1f} ± {std:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go; cases in it are kept")
    out = parser.parse_args().json
    measured_cases = json.loads(out.read_text())["cases"] if out.exists() else []
    done_keys = {json.dumps([case[key] for key in KEY]) for case in measured_cases}
    for method, preset, options, alpha in cases():
        real = PAPERS[method]["scenario"].get("alpha") if alpha is None else alpha
        if json.dumps([method, preset, options, real]) in done_keys:
            continue
        measured_cases.append(measure((method, preset, options, alpha)))
        print(measured_cases[-1], flush=True)
        results = {"rounds": ROUNDS, "papers": PAPERS, "cases": measured_cases, "environment": describe_environment()}
        write_atomic(out, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
