"""The measured study of the methods: `python benchmarks/study.py --data FOLDER`; results in docs/results.md.

Every setting runs its methods at equal local work on the same clients, three seeds each. Finished runs are kept in
`--out` and not repeated, so it can be stopped and started again; the results file is written anew from all that are
there. `--data` is the folder with mnist.npz, usps.npz and mnistm.npz (digit domains); Fashion-MNIST is Debian's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedloom.core.files import write_atomic
from fedloom.study.compare import compare, folder_name
from fedloom.study.config import RunConfig, parse
from fedloom.study.environment import describe
from fedloom.study.results import Result, mean_std

SEEDS = (0, 1, 2)
RESULTS = Path(__file__).parent / "results" / "study.json"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
Entry = tuple[str, dict[str, Any]]

_FASHION = {"source": "fashion-mnist", "limit": 10_000, "clients": 20, "val": 0.0}
_DOMAINS: dict[str, Any] = {
    "model": "fedco2-cnn-bn",
    "rounds": 20,
    "batch_size": 32,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0},
    "evaluation": {"protocol": "personal/local", "every": 4},
}
_CO2 = {"method": "fedco2", "evaluation": {"protocol": "personal/local", "every": 4, "also": ["online", "offline"]}}
_TO_CLIENTS = {"evaluation": {"protocol": "global/local", "every": 4}}
_TWO_CLASSES: dict[str, Any] = {
    "model": "fedssa-cnn",
    "rounds": 15,
    "local_epochs": 1,
    "batch_size": 64,
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0},
    "evaluation": {"protocol": "personal/local", "every": 1},
}


def settings(data: Path | None) -> dict[str, tuple[str, dict[str, Any], list[Entry]]]:
    """By key: what it is in words, the config that all its runs share, and the runs."""
    found: dict[str, tuple[str, dict[str, Any], list[Entry]]] = {}
    found["two-classes"] = (
        "Fashion-MNIST, two classes a client",
        {
            **_TWO_CLASSES,
            "scenario": {**_FASHION, "clients": 10, "partition": "classes", "classes_per_client": 2},
        },
        [
            ("Local, CNN-1 to CNN-5", {"method": "local"}),
            ("FedSSA (paper = sound), CNN-1 to CNN-5", {"method": "fedssa", "preset": "paper"}),
            ("FedSSA, convex fusion, CNN-1 to CNN-5", {"method": "fedssa", "fedssa": {"fusion": "convex"}}),
            ("FedAvg, CNN-5", {"method": "fedavg", "model": "fedssa-cnn5", "evaluation": {"protocol": "global/local"}}),
            (
                "FedProx (mu 0.01), CNN-5",
                {"method": "fedprox", "model": "fedssa-cnn5", "evaluation": {"protocol": "global/local"}},
            ),
        ],
    )
    if data is not None:
        paths = {"mnist": str(data / "mnist.npz"), "usps": str(data / "usps.npz"), "mnist-m": str(data / "mnistm.npz")}
        scenario = {
            "source": "domains",
            "parts": ["mnist", "usps", "mnist-m", "rendered", "blended"],
            "paths": paths,
            "per_domain": 743,
            "partition": "domains",
            "clients": 5,
            "val": 0.0,
        }
        # Fed-CO2 passes its data twice over two nets: the others get as many passes over one net.
        found["digit-domains"] = (
            "Five digit domains, one client each",
            {**_DOMAINS, "scenario": scenario},
            [
                ("Fed-CO2 (paper = sound)", {**_CO2, "preset": "paper", "local_epochs": 1}),
                ("FedBN", {"method": "fedbn", "local_epochs": 4}),
                ("Local", {"method": "local", "local_epochs": 4}),
                ("FedAvg", {"method": "fedavg", "local_epochs": 4, **_TO_CLIENTS}),
                ("FedProx (mu 0.01)", {"method": "fedprox", "local_epochs": 4, **_TO_CLIENTS}),
            ],
        )
    return found


def config_of(base: dict[str, Any], own: dict[str, Any], seed: int) -> RunConfig:
    """One run; `own` replaces whole keys of `base`."""
    return parse({**base, **own, "seed": seed})


def row_of(label: str, results: Sequence[Result], target: float) -> dict[str, Any]:
    """What the table says of one method: accuracies in [0, 1], bytes and seconds of a whole run."""
    numbers = [result.numbers for result in results]
    mean, std = mean_std([n["accuracy"] for n in numbers])
    reached = None  # of methods that are tested once, at the end
    if len(results[0].curve()[0]) > 1:
        reached = [next((r for r, v in zip(*result.curve(), strict=True) if v >= target), None) for result in results]
    branches = {
        name: fmean(result.curve(f"accuracy/{name}")[1][-1] for result in results)
        for name in ("online", "offline")
        if results[0].curve(f"accuracy/{name}")[1]
    }
    return {
        "label": label,
        "protocol": numbers[0]["protocol"],
        "n": len(results),
        "accuracies": [n["accuracy"] for n in numbers],
        "mean": mean,
        "std": std,
        "rounds_to_target": reached,
        "bytes_up": numbers[0]["bytes_up"],
        "bytes_down": numbers[0]["bytes_down"],
        "samples": numbers[0]["samples"],
        "train_seconds": round(fmean(n["seconds"]["train"] for n in numbers), 1),
        "warnings": sorted({message for n in numbers for message in n["degenerate"]}),
        **({"branches": branches} if branches else {}),
    }


def with_tables(page: str, measured: Mapping[str, Any]) -> str:
    """`page` with the table of every measured setting between its markers."""
    for key, setting in measured.items():
        begin, end = f"<!-- table {key} -->\n", f"<!-- end {key} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        if not rest:
            raise SystemExit(f"{PAGE}: no line '{begin.strip()}'")
        page = f"{before}{begin}{table_of(setting)}{end}{after}"
    return page


def table_of(setting: Mapping[str, Any]) -> str:
    """One setting as a Markdown table, methods in the order they were run."""
    target = f"rounds to {100 * setting['target']:.0f} %"
    lines = [
        f"| method | protocol | accuracy % | {target} | MB up | MB down | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for run in setting["runs"]:
        tested = run["rounds_to_target"]
        reached = " / ".join("–" if r is None else str(r) for r in tested) if tested else "not tested"
        accuracy = f"{100 * run['mean']:.1f} ± {100 * (run['std'] or 0):.1f}"
        lines.append(
            f"| {run['label']} | {run['protocol']} | {accuracy} | {reached} |"
            f" {run['bytes_up'] / 1e6:,.1f} | {run['bytes_down'] / 1e6:,.1f} | {run['train_seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def measured(out: Path, data: Path | None) -> dict[str, Any]:
    """All settings whose runs are finished, as the results file holds them."""
    found: dict[str, Any] = {}
    for key, (words, base, entries) in settings(data).items():
        finished: list[tuple[str, list[Result]]] = []
        for label, own in entries:
            results = [Result.read(out / key / folder_name(config_of(base, own, seed))) for seed in SEEDS]
            finished.append((label, [result for result in results if result is not None]))
        finished = [(label, results) for label, results in finished if len(results) == len(SEEDS)]
        reference = next((results for label, results in finished if label.startswith("FedAvg")), None)
        if reference is None:
            continue
        target = int(100 * fmean(result.numbers["accuracy"] for result in reference)) / 100
        found[key] = {
            "words": words,
            "target": target,
            "clients": base["scenario"]["clients"],
            "rounds": base["rounds"],
            "model": base["model"],
            "runs": [row_of(label, results, target) for label, results in finished],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/study"))
    parser.add_argument("--only", nargs="*", help="settings, e.g. two-classes")
    parser.add_argument("--methods", nargs="*", help="methods, e.g. fedavg fedsc")
    parser.add_argument("--page", action="store_true", help="only write the tables of docs/results.md anew")
    arguments = parser.parse_args()
    if arguments.page:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        write_atomic(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), results["settings"]))
        return
    for key, (words, base, entries) in settings(arguments.data).items():
        if arguments.only and key not in arguments.only:
            continue
        chosen = [own for _, own in entries if not arguments.methods or own["method"] in arguments.methods]
        print(f"{words}: {len(chosen)} x {len(SEEDS)} runs", flush=True)
        compare([config_of(base, own, seed) for own in chosen for seed in SEEDS], out=arguments.out / key)
        results = {"environment": describe(), "seeds": SEEDS, "settings": measured(arguments.out, arguments.data)}
        RESULTS.parent.mkdir(exist_ok=True)
        write_atomic(RESULTS, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
