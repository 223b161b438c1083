"""Measure the trained models of a finished run, as rows: features, class relations, norms, loss surfaces.

The model is the server's, or each client's where the run's protocol tests personal models. Data are those of the run,
without augmentation. Every function takes a `Result` of `fl.run`, or one with its folder, and raises the errors of
`Result.model`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, one_hot

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.data import Dataset, Scenario
from fedloom.data.views import Views
from fedloom.engine import PASS_BATCH
from fedloom.methods.parts.consistency import class_relations, inconsistency
from fedloom.nets.net import Net
from fedloom.runs.export.trained import of_result, open_result
from fedloom.runs.storage.run_data import RunData

Rows = list[dict[str, Any]]
_PERPLEXITY = 30.0


def points(
    result: RunData,
    *,
    space: Literal["features", "scores"] = "features",
    unit: bool = False,
    marks: Literal["none", "weights", "means"] = "none",
    samples: int = 1000,
) -> Rows:
    """Embed test samples in the plane by t-SNE (van der Maaten and Hinton 2008).

    Args:
        result: a finished run.
        space: embed the input of the head, or the class scores.
        unit: scale vectors to length 1 before.
        marks: also embed the head's weight vectors, or the mean of each class over the training samples. They are rows
            whose `kind` is this word.
        samples: at most so many of all clients together, evenly spread over the test data.

    Returns rows of client, kind, class, name, x, y. The perplexity is 30, or a third of the number of vectors if that
    is lower. The run's seed fixes the picture.
    """
    scenario, rows, vectors = scenario_of(result), Rows(), list[Tensor]()
    names = scenario.class_names
    models = list(_models(result, scenario))
    for client, model in models:
        net = single_net(result, model)
        embed: Callable[[Tensor], Tensor] = net.features if space == "features" else net
        indices = evenly(_indices(scenario.test, client, len(scenario.test_set)), samples // len(models))
        labels, kinds = scenario.test_set.y[indices].tolist(), ["sample"] * len(indices)
        vectors.append(outputs_of(embed, scenario.test_set, indices))
        if marks != "none":
            weight = net.head.weight.detach()
            every_class = ClassTable(weight, torch.ones(len(weight), dtype=torch.bool))
            table = _class_means(embed, scenario, client) if marks == "means" else every_class
            classes = table.held.nonzero().flatten()
            labels, kinds = labels + classes.tolist(), kinds + [marks] * len(classes)
            vectors.append(table.values[classes])
        rows += [
            {"client": client, "kind": kind, "class": label, "name": names[label]}
            for kind, label in zip(kinds, labels, strict=True)
        ]
    return placed(rows, torch.cat(vectors).float(), unit, result.numbers["seed"])


def placed(rows: Rows, z: Tensor, unit: bool, seed: int) -> Rows:
    """Add to rows the places x, y of their vectors z [n, d] by t-SNE. unit: scale the vectors to length 1 before."""
    plane = plane_of(normalize(z) if unit else z, seed)
    return [row | {"x": float(x), "y": float(y)} for row, (x, y) in zip(rows, plane, strict=True)]


def relations(result: RunData) -> Rows:
    """Compute FedDW's two matrices of a model.

    - SL: mean softmax output over the training samples of each class i (its Eq. 4-7, here of the final model).
    - CR: softmax of the rows of w w^T, w being the head's weights.

    Returns rows of client, matrix, i, j, value. Those of CR also have the distance |SL - CR|^2 / C^2 over classes with
    samples (Eq. 11), and Pearson's correlation of the values off the diagonal (None where one side is constant).
    """
    scenario, rows = scenario_of(result), Rows()
    for client, model in _models(result, scenario):
        soft_labels = _class_means(lambda x, net=model: net(x).softmax(1), scenario, client)  # type: ignore[misc]
        weight = single_net(result, model).head.weight.detach().double()
        related = class_relations(weight)
        distance = float(inconsistency(related, soft_labels.values, soft_labels.held))
        # The diagonal is large in both matrices and would correlate whatever the classes are.
        off_diagonal = ~torch.eye(len(soft_labels.held), dtype=torch.bool) & soft_labels.held.unsqueeze(1)
        correlation = _correlation(soft_labels.values[off_diagonal], related[off_diagonal])
        rows += _matrix(client, "SL", torch.where(soft_labels.held.unsqueeze(1), soft_labels.values, torch.nan))
        agreement = {"distance": distance, "correlation": correlation}
        rows += [row | agreement for row in _matrix(client, "CR", related)]
    return rows


def norms(result: RunData) -> Rows:
    """Compute the class weight norms of a model and the shares of the classes (FedDW, Fig. 4).

    Returns rows of client, class, name, share (of the client's training samples), norm (|w_c| / sum |w_i| of the head's
    weights) and rank_correlation (Spearman's, of share and norm over the classes; None where one of them is constant).
    """
    from scipy.stats import spearmanr

    scenario, rows = scenario_of(result), Rows()
    counts = scenario.class_counts()
    for client, model in _models(result, scenario):
        class_counts = counts.sum(0) if client is None else counts[client]
        shares = class_counts / max(class_counts.sum(), 1)
        lengths = single_net(result, model).head.weight.detach().double().norm(dim=1)
        relative = (lengths / lengths.sum()).numpy()
        constant = bool(np.ptp(shares) == 0 or np.ptp(relative) == 0)
        correlation = None if constant else float(spearmanr(shares, relative).statistic)
        for label, name in enumerate(scenario.class_names):
            measured = {"share": float(shares[label]), "norm": float(relative[label]), "rank_correlation": correlation}
            rows.append({"client": client, "class": label, "name": name, **measured})
    return rows


def surface(
    result: RunData, client: int | None = None, *, reach: float = 1.0, steps: int = 17, samples: int = 256
) -> Rows:
    """Compute the training loss on a plane through the weights.

    result: a finished run. client: whose personal model; None is the server's. reach: x and y go from -reach to reach;
    0, 0 is the trained model. steps: steps from -reach to reach. samples: at most so many, evenly spread over the
    training data.

    Returns rows of x, y, loss (cross-entropy in nats). The two directions are filter-normalised (Li et al. 2018, arXiv
    1712.09913): random normal numbers, each filter scaled to the length of the net's. Biases and batch norm stay.
    """
    scenario, model = scenario_of(result), of_result(result, client).module
    indices = evenly(_indices(scenario.train, client, 0), samples)
    data = scenario.train_set.gather(indices), scenario.train_set.y[indices]
    return loss_surface(model, data, result.numbers["seed"], reach=reach, steps=steps)


def loss_surface(
    model: nn.Module, data: tuple[Tensor, Tensor], seed: int, *, reach: float = 1.0, steps: int = 17
) -> Rows:
    """Compute the loss of a model, in evaluation mode, on a plane through its weights, as `surface` does.

    The two directions come from the same random numbers for every model of one architecture and seed, so surfaces of
    several models differ by the models and the data alone. The weights are moved, and put back.

    data: x [n, ...] as the module takes it, and labels [n]. reach, steps: as in `surface`.
    """
    x, labels = data
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    with Streams(seed).isolated("surface"):
        first, second = filter_normalised(weights), filter_normalised(weights)
    grid, rows = torch.linspace(-reach, reach, steps).tolist(), Rows()
    with torch.inference_mode():
        for b in grid:
            for a in grid:
                for name, value in model.named_parameters():
                    # Each point starts from the copy: steps from point to point would add up rounding errors.
                    value.data.copy_(weights[name] + a * first[name] + b * second[name])
                rows.append({"x": a, "y": b, "loss": float(cross_entropy(model(x), labels))})
        for name, value in model.named_parameters():
            value.data.copy_(weights[name])
    return rows


def class_accuracies(result: RunData) -> Rows:
    """Compute test accuracy by class.

    Returns rows of client, class, name, samples and accuracy in percent, without classes that have no samples.
    """
    scenario, rows = scenario_of(result), Rows()
    for client, model in _models(result, scenario):
        indices = _indices(scenario.test, client, len(scenario.test_set))
        labels = scenario.test_set.y[indices]
        correct = outputs_of(model, scenario.test_set, indices).argmax(1) == labels
        for label in sorted(set(labels.tolist())):
            in_class = labels == label
            accuracy = 100 * float(correct[in_class].double().mean())
            row = {"client": client, "class": label, "name": scenario.class_names[label]}
            rows.append(row | {"samples": int(in_class.sum()), "accuracy": accuracy})
    return rows


def filter_normalised(weights: Tree) -> Tree:
    """Draw a direction in which each filter (row of a weight of two dimensions or more) is as long as the weights'.

    It is zero for all other tensors. Draws from torch's generator.
    """
    direction = {}
    for name, value in weights.items():
        if value.dim() < 2:
            direction[name] = torch.zeros_like(value)
            continue
        noise = torch.randn_like(value)
        shape = (-1, *(1,) * (value.dim() - 1))
        length = value.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1).clamp(min=1e-12)
        direction[name] = noise * length.view(shape)
    return direction


# -- the run's model and data ------------------------------------------------------------------------------------------
def scenario_of(result: RunData) -> Scenario:
    """Return the data of a run, built again if they are not in memory."""
    return open_result(result, "last").scenario


def _models(result: RunData, scenario: Scenario) -> Iterator[tuple[int | None, nn.Module]]:
    """The server's model (None), or each client's with its number."""
    personal = str(result.numbers["protocol"]).startswith("personal")
    for client in range(scenario.clients) if personal else (None,):
        yield client, of_result(result, client).module


def single_net(result: RunData, model: nn.Module) -> Net:
    """Return the model as a net with a linear head. Raises `ConfigError` for any other."""
    if not isinstance(model, Net) or not isinstance(model.head, nn.Linear):
        raise ConfigError(
            f"{result.numbers['method']} on {result.numbers['model']}: no single registered net with a linear head, so "
            "its features and class weights cannot be drawn; take another method or model"
        )
    return model


def _indices(views: Views, client: int | None, whole: int) -> Tensor:
    """Samples of a client; for the server (None) the first `whole` of the set, or those of all clients if it is 0."""
    if client is not None:
        return views.tensor(client)
    return torch.arange(whole) if whole else torch.from_numpy(views.order)


def evenly(indices: Tensor, limit: int) -> Tensor:
    """At most `limit` of the indices, evenly spaced: all clients and, in sorted data, all classes have some."""
    if len(indices) <= limit:
        return indices
    # At least one: with more clients than samples to draw, a client's share of them is rounded to 0.
    return indices[torch.linspace(0, len(indices) - 1, max(limit, 1)).long()]


def outputs_of(function: Callable[[Tensor], Tensor], data: Dataset, indices: Tensor) -> Tensor:
    """Return the outputs [n, d] of a function of x [B, ...] for the samples `indices` of `data`, batch by batch."""
    with torch.no_grad():
        return torch.cat([function(data.gather(batch)) for batch in torch.split(indices, PASS_BATCH)])


def _class_means(function: Callable[[Tensor], Tensor], scenario: Scenario, client: int | None) -> ClassTable:
    """Means of the outputs over the training samples of each class [C, d], float64."""
    indices = _indices(scenario.train, client, 0)
    labels = one_hot(scenario.train_set.y[indices], scenario.num_classes).double()
    outputs = outputs_of(function, scenario.train_set, indices).double()
    return ClassTable.from_sums(labels.T @ outputs, labels.sum(0))


def plane_of(z: Tensor, seed: int) -> np.ndarray:
    """Embed vectors [n, d] in the plane [n, 2] by t-SNE."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    # Barnes-Hut t-SNE looks at 3 * perplexity neighbours of a vector, which has n - 1.
    perplexity = min(_PERPLEXITY, (len(z) - 1) / 3)
    with threadpool_limits(1):  # its threads wait for each other in tiny steps: minutes on a busy machine
        plane: np.ndarray = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(z.numpy())
    return plane


def _matrix(client: int | None, name: str, values: Tensor) -> Rows:
    return [
        {"client": client, "matrix": name, "i": i, "j": j, "value": value}
        for i, row in enumerate(values.tolist())
        for j, value in enumerate(row)
    ]


def _correlation(a: Tensor, b: Tensor) -> float | None:
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return None
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])
