"""Calls as users write them, for mypy; nothing runs them. It must refuse each line that ends in an error's name."""

import numpy as np

import fedloom as fl


def right() -> None:
    x, y = np.zeros((4, 2), dtype=np.float32), np.zeros(4, dtype=np.int64)
    digits = fl.scenario(
        "digits", partition="dirichlet", alpha=0.1, clients=10, skews=[{"name": "long-tail", "rho": 10}]
    )
    table = fl.scenario("csv", path="a.csv", label="dead", group="patient", incomplete="impute")
    mine = fl.scenario((x, y), clients=2)
    fl.run("fedsc", digits, rounds=5, fedsc={"tau": 0.1}, optimizer={"name": "adam"}, evaluation={"metrics": ["auroc"]})
    fl.run("fedavg", mine, model="mlp", engine="serial", drift=True, seed=3, out="runs/a", existing="resume")
    fl.run("fedprox+dw", table, options={"fedprox+dw": {"mu": 0.1}}, evaluation={"decision": {"class": "yes"}})
    comparison = fl.compare(["fedavg", "fedsc"], digits, rounds=[5, 10], fedsc={"tau": 0.1}, seeds=2, jobs=2)
    print(comparison, fl.advise(digits, goal="personal", dp=True).reference)
    fl.Study(["fedavg"], out="s", scenario=digits, seeds={"until": "decided", "most": 10}, tune={"optimizer.lr": [0.1]})


def wrong() -> None:
    digits = fl.scenario("digits", alpa=0.1)  # type: ignore[call-overload]
    fl.run("fedavg", digits, epochs=2)  # type: ignore[call-arg]
    fl.run("fedavg", digits, rounds="ten")  # type: ignore[arg-type]
    fl.run("fedavg", digits, optimizer={"lr": "fast"})  # type: ignore[arg-type]
    fl.run("fedsc", digits, fedsc={"taus": 0.1})  # type: ignore[typeddict-unknown-key]
    fl.run("fedavg", digits, precision="float16")  # type: ignore[arg-type]
    fl.compare(["fedavg"], digits, round=5)  # type: ignore[call-arg]
    fl.advise(digits, goal="mine")  # type: ignore[arg-type]
    fl.Study(["fedavg"], out="s", seed=["a"])  # type: ignore[list-item]
