"""Whole runs against golden numbers: a model that hands its inputs on as scores is tested on the golden logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from fedloom.data import from_arrays
from fedloom.results.result import Result

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())["measures"]
CLIENTS = [GOLDEN["clients"][str(k)] for k in range(4)]  # the last one has no test samples
OF_COUNTS = ("accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "brier", "nll")
RANKS = ("auroc", "average_precision")


def identity() -> torch.nn.Linear:
    net = torch.nn.Linear(5, 5)
    with torch.no_grad():
        net.weight.copy_(torch.eye(5))
        net.bias.zero_()
    return net


def run_on_golden(method: str, protocol: str, engine: str) -> Result:
    """A run whose rate is too small to move a weight, on the golden test samples and training labels."""
    counts = np.array(GOLDEN["majority"]["train_counts"])
    y = np.concatenate([np.repeat(np.arange(5), of) for of in counts])
    owners = np.repeat(np.arange(4), counts.sum(1))
    tests = [np.array(of, np.int64) for of in GOLDEN["labels"]]
    x_test = np.concatenate([np.array(of, np.float32).reshape(-1, 5) for of in GOLDEN["logits"]])
    owners_test = np.repeat(np.arange(4), [len(of) for of in tests])
    x = np.random.default_rng(0).normal(size=(len(y), 5)).astype(np.float32)
    data = from_arrays(x, y, x_test, np.concatenate(tests), owners=owners, owners_test=owners_test)
    scenario = fl.scenario(data, partition="natural", val=0.0)
    metrics = ["weighted_f1", "precision", "recall", "auroc", "average_precision", "adaptive_ece", "brier", "nll"]
    keys: dict[str, Any] = {"optimizer": {"lr": 1e-60}, "rounds": 1, "local_epochs": 1, "batch_size": 4}
    evaluation = {"protocol": protocol, "metrics": metrics}
    return fl.run(method, scenario=scenario, model=identity, engine=engine, evaluation=evaluation, **keys)


def near(value: float) -> Any:
    return pytest.approx(value, abs=2e-7)


@pytest.mark.parametrize(
    "engine",
    ["serial", *(pytest.param(engine, marks=pytest.mark.matrix) for engine in ("threads", "processes", "batched"))],
)
@pytest.mark.parametrize(
    ("method", "protocol"), [("fedavg", "global/global"), ("fedavg", "global/local"), ("local", "personal/local")]
)
def test_a_run_has_the_golden_numbers(method: str, protocol: str, engine: str) -> None:
    run = run_on_golden(method, protocol, engine)
    numbers, pooled = run.numbers, GOLDEN["pooled"]
    values = numbers["metrics"] | {"accuracy": numbers["accuracy"]}
    assert values["ece"] == near(pooled["calibration"]["ece"])
    assert values["adaptive_ece"] == near(pooled["calibration"]["ece_adaptive"])
    assert numbers["details"]["balanced_accuracy"]["confusion"] == pooled["confusion"]
    if protocol == "global/global":
        assert {name: values[name] for name in OF_COUNTS} == {name: near(pooled[name]) for name in OF_COUNTS}
        assert {name: values[name] for name in RANKS} == {name: near(pooled[name]["macro"]) for name in RANKS}
        assert values["precision"] == near(pooled["macro_precision"])
        assert values["majority_global"] == near(GOLDEN["majority"]["global"])
        return
    for name in (*OF_COUNTS, *RANKS):
        assert values[name] == near(GOLDEN["mean"][name]["mean"]), name
    assert values["majority_own"] == near(GOLDEN["majority"]["own_mean"])
    rows = {(row["name"], row["client"]): row["value"] for row in run.rows if row["split"] == "test"}
    assert (rows["clients", None], rows["auroc_clients", None]) == (3, GOLDEN["mean"]["auroc"]["clients"])
    assert ("auroc_pooled", None) not in rows or protocol == "global/local"  # personal scores share no scale
    for client, golden in enumerate(CLIENTS):
        expected = {name: golden[name] for name in OF_COUNTS} | {name: golden[name]["macro"] for name in RANKS}
        found = {name: rows[name, client] for name in expected if (name, client) in rows}
        assert found == {name: near(value) for name, value in expected.items() if value is not None}
