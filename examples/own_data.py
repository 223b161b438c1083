"""Every kind of data that fedloom.scenario takes, with a short run of each.

python examples/own_data.py            # 600 samples, 5 rounds
python examples/own_data.py 120 1      # smaller
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import fedloom as fl
from fedloom.data import from_arrays, from_clients

SPECIES = np.array(["birch", "oak", "pine"])
RANGERS = np.array(["ann", "bob", "cy"])


def leaves(samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Length and width of leaves [n, 2] in cm, the tree's species [n], and its observer [n]."""
    rng = np.random.default_rng(0)
    kind, ranger = rng.integers(0, 3, samples), rng.integers(0, 3, samples)
    size = np.array([[5.0, 4.0], [10.0, 6.0], [6.0, 0.2]])[kind]
    return size + rng.normal(0, 0.7, size.shape), SPECIES[kind], RANGERS[ranger]


def write_table(path: Path, x: np.ndarray, y: np.ndarray, owner: np.ndarray) -> Path:
    """Write the same leaves as a CSV or Parquet file."""
    needles = np.where(x[:, 1] < 2, "needle", "leaf")
    columns = {"length": x[:, 0], "width": x[:, 1], "shape": needles, "ranger": owner, "species": y}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *rows]) + "\n", encoding="utf-8")
    return path


def main(samples: int = 600, rounds: int = 5) -> dict[str, float]:
    """Return the accuracy of each kind of data after `rounds` rounds."""
    x, y, owner = leaves(samples)
    ids = torch.from_numpy(np.searchsorted(SPECIES, y))
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(x).float(), ids)
    each = [(x[owner == name], y[owner == name]) for name in RANGERS]
    table = {"label": "species", "owner": "ranger", "partition": "natural", "clients": len(RANGERS)}
    with tempfile.TemporaryDirectory() as folder:
        csv = write_table(Path(folder) / "leaves.csv", x, y, owner)
        parquet = write_table(Path(folder) / "leaves.parquet", x, y, owner)
        scenarios = {
            "arrays, labels in words": fl.scenario((x, y), clients=3),
            "arrays with owners": fl.scenario(from_arrays(x, y, owners=owner, standardise=True)),
            "a torch dataset": fl.scenario(dataset, partition="dirichlet", alpha=0.5, clients=3),
            "one dataset a client": fl.scenario(from_clients(each, names=list(RANGERS), standardise=True)),
            "CSV": fl.scenario("csv", path=str(csv), **table),
            "Parquet": fl.scenario("parquet", path=str(parquet), **table),
        }
        found = {}
        for kind, scenario in scenarios.items():
            result = fl.run("fedavg", scenario=scenario, model="logistic", rounds=rounds, optimizer={"lr": 0.1})
            found[kind] = float(result.numbers["accuracy"])
            print(f"{kind:24} accuracy {found[kind]:.1%}")
    return found


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
