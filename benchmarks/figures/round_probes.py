"""Measure the models of the rounds that a run kept (`checkpoint.keep_clients`): landscapes, cohorts, class knowledge.

Every function takes a `Result` with a run folder, and raises `ConfigError` if it kept no rounds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.figures.probes import Rows, evenly, loss_surface, outputs_of, placed, scenario_of, single_net
from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.data import Scenario
from fedloom.runs.client_models import kept_rounds
from fedloom.runs.export.trained import RoundModels
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder

_CLIENTS = 2  # of a round, as both papers draw


def landscapes(result: RunData, *, reach: float = 1.0, steps: int = 17, samples: int = 256) -> Rows:
    """Compute the loss around local and global models (FedSKC, Fig. 1b; FedSC, Fig. 1b).

    Of the last kept round these are two client models before the aggregation, each on the client's own training
    samples, and the global model after it, on those of all clients; of earlier ones the global model. The clients are
    the two participants with the most samples.

    result: a finished run. reach: x and y go from -reach to reach; 0, 0 is the model. steps: steps from -reach to
    reach. samples: at most so many for each landscape, evenly spread over the training data.

    Returns rows of model (whose it is), round, x, y, loss (cross-entropy in nats). Directions are filter-normalised (Li
    et al. 2018, arXiv 1712.09913) and come from the same random numbers in all landscapes of a run.
    """
    scenario, rounds, seed = scenario_of(result), _rounds(result), result.numbers["seed"]
    rows = Rows()

    def add(name: str, round_: int, model: nn.Module, indices: Tensor) -> None:
        chosen = evenly(indices, samples)
        data = scenario.train_set.gather(chosen), scenario.train_set.y[chosen]
        surface = loss_surface(model, data, seed, reach=reach, steps=steps)
        rows.extend({"model": name, "round": round_, **row} for row in surface)

    everyone = torch.from_numpy(scenario.train.order)
    for round_ in rounds:
        models = RoundModels(result, round_)
        if round_ == rounds[-1]:
            for client in largest_clients(models, scenario):
                add(f"client {client}, round {round_}", round_, models.client(client), scenario.train.tensor(client))
        add(f"global, round {round_}", round_, models.server(), everyone)
    return rows


def cohorts(result: RunData) -> Rows:
    """Count the training samples of each class that the participants of the kept rounds hold (FedSKC, Fig. 1b, right).

    Returns rows of round, client, class, name and samples.
    """
    scenario = scenario_of(result)
    counts, names = scenario.class_counts(), scenario.class_names
    return [
        {"round": round_, "client": client, "class": label, "name": name, "samples": int(counts[client][label])}
        for round_ in _rounds(result)
        for client in RoundModels(result, round_).clients
        for label, name in enumerate(names)
    ]


def local_points(result: RunData, *, unit: bool = False, samples: int = 1000) -> Rows:
    """Embed test samples by the class scores of a client's model, with the client's class knowledge (FedSKC, Fig. 4a,
    4b).

    The model is that of the last kept round's participant with the most samples. Its class knowledge is the mean of
    its class scores over its own training samples of each class.

    result: a finished run. unit: scale vectors to length 1 before. samples: at most so many, evenly spread over the
    test data.

    Returns rows of client, kind ("sample" or "means"), class, name, x, y.
    """
    scenario = scenario_of(result)
    models = RoundModels(result, _rounds(result)[-1])
    client = largest_clients(models, scenario)[0]
    net = single_net(result, models.client(client))
    indices = evenly(torch.arange(len(scenario.test_set)), samples)
    own = scenario.train.tensor(client)
    labels, trained = scenario.train_set.y[own], outputs_of(net, scenario.train_set, own).double()
    held = torch.unique(labels)
    # Only classes that the client holds: the mean of an empty class would be NaN, which t-SNE refuses.
    means = torch.stack([trained[labels == label].mean(0) for label in held])
    z = torch.cat([outputs_of(net, scenario.test_set, indices).double(), means]).float()
    kinds = ["sample"] * len(indices) + ["means"] * len(held)
    classes = scenario.test_set.y[indices].tolist() + held.tolist()
    rows: Rows = [
        {"client": client, "kind": kind, "class": label, "name": scenario.class_names[label]}
        for kind, label in zip(kinds, classes, strict=True)
    ]
    return placed(rows, z, unit, result.numbers["seed"])


def knowledge(result: RunData) -> Rows:
    """Place the class knowledge of the last kept round in the plane: each participant's rows, and the server's.

    The plane is that of the two first principal components of all rows. It shows what FedSKC's Fig. 4d illustrates:
    how the server's row of a class lies among those of the clients.

    Returns rows of client (None is the server), kind ("sample" for a client's row, "server" for the server's), class,
    name, x, y. Raises `ConfigError` for a method that exchanges no class table.
    """
    scenario = scenario_of(result)
    models = RoundModels(result, _rounds(result)[-1])
    entries = [name for name, value in models.after.items() if isinstance(value, ClassTable)]
    if not entries:
        raise ConfigError(f"{result.numbers['method']}: its server keeps no class table, so no knowledge can be drawn")
    owned: dict[int | None, Any] = {client: upload.get(entries[0]) for client, upload in models.uploads.items()}
    owned[None] = models.after[entries[0]]
    tables = [(client, table) for client, table in owned.items() if isinstance(table, ClassTable)]
    names = scenario.class_names
    owners = [(client, int(label)) for client, table in tables for label in table.held.nonzero().flatten()]
    vectors = torch.cat([table.values[table.held] for _, table in tables]).double()
    centred = (vectors - vectors.mean(0)).numpy()
    # Principal components by SVD: a covariance matrix would square the condition number.
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    rows: Rows = [
        {"client": client, "kind": "server" if client is None else "sample", "class": label, "name": names[label]}
        for client, label in owners
    ]
    plane = centred @ directions.T
    return [row | {"x": float(x), "y": float(y)} for row, (x, y) in zip(rows, plane, strict=True)]


def largest_clients(models: RoundModels, scenario: Scenario) -> Sequence[int]:
    """Return the two participants of a round with the most training samples, the largest first."""
    return sorted(models.clients, key=lambda client: (-len(scenario.train[client]), client))[:_CLIENTS]


def _rounds(result: RunData) -> tuple[int, ...]:
    kept = () if result.folder is None else kept_rounds(RunFolder(result.folder).client_models)
    if not kept:
        raise ConfigError("this run kept no client models; run with a folder and checkpoint.keep_clients=[round, ...]")
    return kept


ROUND_PROBES: dict[str, Callable[[RunData], Rows]] = {
    "landscapes": landscapes,
    "cohorts": cohorts,
    "local_points": local_points,
    "knowledge": knowledge,
}
