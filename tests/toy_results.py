"""Small results made by hand; nothing is trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fedloom.results.result import Result
from fedloom.runs.storage.log import Row

MakeResult = Callable[..., Result]


def toy_scenario(clients: int = 3, classes: int = 4, shift: int = 0) -> dict[str, Any]:
    """A scenario.json with counts that differ by client, class and `shift`."""
    counts = [[(7 * k + 3 * c + shift) % 11 for c in range(classes)] for k in range(clients)]
    return {
        "name": "toy",
        "clients": clients,
        "classes": [str(c) for c in range(classes)],
        "class_counts": counts,
        "draws": 1,
        "total_variation": 0.25,
        "classes_per_client": 3.5,
        "imbalance": 1.5,
        "size_ratio": None,
        "empty_clients": 0,
        "empty_classes": [],
        "train_samples": sum(map(sum, counts)),
        "val_samples": 5,
        "test_samples": 20,
    }


@pytest.fixture
def make_scenario() -> Callable[..., dict[str, Any]]:
    return toy_scenario


@pytest.fixture
def make_result() -> MakeResult:
    def make(
        method: str = "fedavg",
        seed: int = 0,
        accuracies: Sequence[float] = (0.5, 0.7, 0.9),
        *,
        preset: str = "sound",
        protocol: str = "global/global",
        select: str = "last",
        best_val: float | None = 0.8,
        terms: Sequence[str] = ("loss",),
        client_accuracies: Sequence[float] = (),
        config: dict[str, Any] | None = None,
        world: dict[str, Any] | None = None,
        **numbers: Any,
    ) -> Result:
        rows: list[Row] = []

        def add(now: int, split: str, name: str, value: float, client: int | None = None) -> None:
            tested = protocol if split == "test" else None
            rows.append(Row(round=now, client=client, split=split, protocol=tested, name=name, value=value))

        for now, accuracy in enumerate(accuracies, start=1):
            for k, term in enumerate(terms):
                add(now, "train", term, (2.0 + k) / now)
            add(now, "test", "accuracy", accuracy)
            add(now, "test", "loss", 1.0 - accuracy)
            for client, own in enumerate(client_accuracies):
                add(now, "test", "accuracy", own, client)
        world = world or toy_scenario(shift=seed)
        base = {
            "method": method,
            "preset": preset,
            "rounds": len(accuracies),
            "evaluation": {"protocol": protocol, "select": select},
            "scenario": {"source": "toy", "partition": "dirichlet", "alpha": 0.1, "seed": None},
            "engine": "serial",
            "seed": seed,
        }
        return Result(
            {
                "method": method,
                "preset": preset,
                "model": "toy-net",
                "source": "toy",
                "seed": seed,
                "rounds": len(accuracies),
                "clients": world["clients"],
                "protocol": protocol,
                "select": select,
                "accuracy": accuracies[-1],
                "best_val_accuracy": best_val,
                "bytes_up": 1000 + seed,
                "bytes_down": 3000,
                "seconds": {
                    "train": 2.0,
                    "evaluate": 0.5,
                    "aggregate": 0.25,
                    "move": 0.125,
                    "checkpoint": 0.125,
                    "total": 3.0 + seed,
                },
                "peak_memory_mb": 100.0 + seed,
                "engine": "serial",
                "degenerate": [],
                "checkpoint_sha256": f"{seed:064x}",
                "run_dir": None,
            }
            | numbers,
            rows,
            base | (config or {}),
            world,
        )

    return make


def runs_by_seed(make_result: MakeResult, accuracies: Mapping[str, Sequence[float]], **more: Any) -> list[Result]:
    """Runs of methods whose last accuracies are given seed by seed, on 10,000 test samples."""
    world = toy_scenario() | {"test_samples": 10_000}
    return [
        make_result(method, seed, (0.1, last), **{"world": world} | more)
        for method, by_seed in accuracies.items()
        for seed, last in enumerate(by_seed)
    ]


def cells_of(markdown: str) -> list[list[str]]:
    """The cells of a Markdown table, without the line below the headings."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for k, line in enumerate(lines) if k != 1]


def with_test_samples(make_result: MakeResult, samples: int) -> MakeResult:
    """Make results of a test set of this size, as those of the papers have 10,000 images."""

    def make(*arguments: Any, world: dict[str, Any] | None = None, **keys: Any) -> Result:
        return make_result(*arguments, world=(world or toy_scenario()) | {"test_samples": samples}, **keys)

    return make


@pytest.fixture
def two_methods(make_result: MakeResult) -> list[Result]:
    """FedAvg 0.96 ± 0.01 and FedSC 0.98 ± 0.01 over seeds 0, 1, 2; FedSC logs two loss terms."""
    results = [make_result("fedavg", s, (0.5, 0.8, 0.95 + s / 100)) for s in range(3)]
    return results + [make_result("fedsc", s, (0.4, 0.85, 0.97 + s / 100), terms=("ce", "rpcl")) for s in range(3)]
