"""What trained models show, measured from finished runs as tidy rows: features, class relations, norms, surfaces.

The model is the server's, or every client's where the run's protocol tests personal ones. Data are those of the run,
not augmented. Every function takes a `Result` with its folder, or the one that `fl.run` gave, and raises what
`Result.model` raises. `fedloom.report.figures` draws the rows.
"""

from __future__ import annotations

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
from fedloom.study.opened import Memory
from fedloom.study.rebuilt import config_of
from fedloom.study.results import Result

Row = dict[str, Any]
_PERPLEXITY = 30.0


def points(
    result: Result,
    *,
    space: Literal["features", "scores"] = "features",
    unit: bool = False,
    marks: Literal["none", "weights", "means"] = "none",
    samples: int = 1000,
) -> list[Row]:
    """Test samples in the plane by t-SNE (van der Maaten and Hinton 2008): client, kind, class, name, x, y.

    space: what enters the head, or the class scores. unit: vectors scaled to length 1 before. marks: also the head's
    weight vectors, or the means of each class over the training samples, as rows of this kind; they are embedded with
    the samples. samples: how many at most, evenly spread over the test data, those of all clients together.

    The perplexity is 30, or a third of the number of vectors. The run's seed fixes the picture.
    """
    scenario, made, vectors = _scenario(result), list[Row](), list[Tensor]()
    names = scenario.class_names
    members = list(_members(result, scenario))
    for client, module in members:
        net = _one_net(result, module)
        values: Callable[[Tensor], Tensor] = net.features if space == "features" else net
        chosen = _spread(_held(scenario.test, client, len(scenario.test_set)), samples // len(members))
        labels, kinds = scenario.test_set.y[chosen].tolist(), ["sample"] * len(chosen)
        vectors.append(_passed(values, scenario.test_set, chosen))
        if marks != "none":
            table = _marks(net, values, scenario, client, marks)
            held = table.held.nonzero().flatten()
            labels, kinds = labels + held.tolist(), kinds + [marks] * len(held)
            vectors.append(table.values[held])
        made += [
            {"client": client, "kind": kind, "class": label, "name": names[label]}
            for kind, label in zip(kinds, labels, strict=True)
        ]
    z = torch.cat(vectors).float()
    plane = _tsne(normalize(z) if unit else z, result.numbers["seed"])
    return [row | {"x": float(x), "y": float(y)} for row, (x, y) in zip(made, plane, strict=True)]


def relations(result: Result) -> list[Row]:
    """FedDW's two matrices of a model: client, matrix, i, j, value, distance, correlation.

    SL: mean softmax output over the training samples of each class i (its Eq. 4-7, here of the final model). CR:
    softmax of the rows of w w^T, w the head's weights. With CR: distance |SL - CR|^2 / C^2 over classes that somebody
    holds (Eq. 11), and Pearson's correlation of the values off the diagonal (None where one side is constant).
    """
    scenario, made = _scenario(result), list[Row]()
    for client, module in _members(result, scenario):
        soft = _class_means(lambda x, net=module: net(x).softmax(1), scenario, client)  # type: ignore[misc]
        weight = _one_net(result, module).head.weight.detach().double()
        related = class_relations(weight)
        distance = float(inconsistency(related, soft.values, soft.held))
        apart = ~torch.eye(len(soft.held), dtype=torch.bool) & soft.held.unsqueeze(1)
        correlation = _correlation(soft.values[apart], related[apart])
        made += _matrix(client, "SL", torch.where(soft.held.unsqueeze(1), soft.values, torch.nan))
        against = {"distance": distance, "correlation": correlation}
        made += [row | against for row in _matrix(client, "CR", related)]
    return made


def norms(result: Result) -> list[Row]:
    """Class weight norms of a model beside its data: client, class, name, share, norm, rank_correlation.

    share: of the client's training samples; norm: |w_c| / sum |w_i| of the head's weights (FedDW, Fig. 4).
    rank_correlation: Spearman's, of share and norm over the classes; None where one of them is constant.
    """
    from scipy.stats import spearmanr

    scenario, made = _scenario(result), list[Row]()
    counts = scenario.class_counts()
    for client, module in _members(result, scenario):
        own = counts.sum(0) if client is None else counts[client]
        shares = own / max(own.sum(), 1)
        length = _one_net(result, module).head.weight.detach().double().norm(dim=1)
        relative = (length / length.sum()).numpy()
        flat = bool(np.ptp(shares) == 0 or np.ptp(relative) == 0)
        rank = None if flat else float(spearmanr(shares, relative).statistic)
        made += [
            {
                "client": client,
                "class": number,
                "name": name,
                "share": float(shares[number]),
                "norm": float(relative[number]),
                "rank_correlation": rank,
            }
            for number, name in enumerate(scenario.class_names)
        ]
    return made


def surface(
    result: Result, client: int | None = None, *, reach: float = 1.0, steps: int = 17, samples: int = 256
) -> list[Row]:
    """Training loss on a plane through the weights: x, y, loss (cross-entropy in nats), steps x steps rows.

    The two directions are filter-normalised (Li et al. 2018, arXiv 1712.09913): random normal numbers, each filter
    scaled to the length of the net's own; zero for biases and batch norm, whose statistics stay. x and y go from
    -reach to reach; 0, 0 is the trained model. samples: evenly spread over the training data. client: whose personal
    model; None is the server's.
    """
    scenario, module = _scenario(result), result.model(client)
    chosen = _spread(_held(scenario.train, client, 0), samples)
    x, labels = scenario.train_set.gather(chosen), scenario.train_set.y[chosen]
    trained = {name: value.detach().clone() for name, value in module.named_parameters()}
    with Streams(result.numbers["seed"]).isolated("surface"):
        first, second = filter_normalised(trained), filter_normalised(trained)
    grid, made = torch.linspace(-reach, reach, steps).tolist(), list[Row]()
    with torch.inference_mode():
        for b in grid:
            for a in grid:
                for name, value in module.named_parameters():
                    value.data.copy_(trained[name] + a * first[name] + b * second[name])
                made.append({"x": a, "y": b, "loss": float(cross_entropy(module(x), labels))})
    return made


def class_accuracies(result: Result) -> list[Row]:
    """Test accuracy by class: client, class, name, samples, accuracy in percent; no row for a class without samples."""
    scenario, made = _scenario(result), list[Row]()
    for client, module in _members(result, scenario):
        chosen = _held(scenario.test, client, len(scenario.test_set))
        labels = scenario.test_set.y[chosen]
        right = _passed(module, scenario.test_set, chosen).argmax(1) == labels
        for number in sorted(set(labels.tolist())):
            of_class = labels == number
            told = {"client": client, "class": number, "name": scenario.class_names[number]}
            share = float(right[of_class].double().mean())
            made.append(told | {"samples": int(of_class.sum()), "accuracy": 100 * share})
    return made


def filter_normalised(weights: Tree) -> Tree:
    """A random direction in which each filter (row of a weight of two dimensions or more) is as long as the weights'.

    Zero for all other tensors. Draws from torch's generator.
    """
    made = {}
    for name, value in weights.items():
        if value.dim() < 2:
            made[name] = torch.zeros_like(value)
            continue
        drawn = torch.randn_like(value)
        rows = (-1, *(1,) * (value.dim() - 1))
        length = value.flatten(1).norm(dim=1) / drawn.flatten(1).norm(dim=1).clamp(min=1e-12)
        made[name] = drawn * length.view(rows)
    return made


# -- the run's model and data ------------------------------------------------------------------------------------------
def _scenario(result: Result) -> Scenario:
    memory = result.memory or Memory(config_of(result.config, None))
    return memory.scenario or memory.config.scenario.build(memory.config.seed)


def _members(result: Result, scenario: Scenario) -> Iterator[tuple[int | None, nn.Module]]:
    """The server's model (None), or each client's with its number."""
    personal = str(result.numbers["protocol"]).startswith("personal")
    for client in range(scenario.clients) if personal else (None,):
        yield client, result.model(client)


def _one_net(result: Result, module: nn.Module) -> Net:
    if not isinstance(module, Net) or not isinstance(module.head, nn.Linear):
        raise ConfigError(
            f"{result.numbers['method']} on {result.numbers['model']}: no single registered net with a linear head, so "
            "its features and class weights cannot be drawn; take another method or model"
        )
    return module


def _held(views: Views, client: int | None, whole: int) -> Tensor:
    """Samples of a client; for the server (None) the first `whole` of the set, or those of all clients if it is 0."""
    if client is not None:
        return views.tensor(client)
    return torch.arange(whole) if whole else torch.from_numpy(views.order)


def _spread(indices: Tensor, most: int) -> Tensor:
    """At most so many of the indices, evenly spaced: all clients and, in sorted data, all classes have their share."""
    if len(indices) <= most:
        return indices
    return indices[torch.linspace(0, len(indices) - 1, max(most, 1)).long()]


def _passed(values: Callable[[Tensor], Tensor], data: Dataset, indices: Tensor) -> Tensor:
    """What the model gives for samples [n, d], batch by batch."""
    with torch.no_grad():
        return torch.cat([values(data.gather(part)) for part in torch.split(indices, PASS_BATCH)])


def _class_means(values: Callable[[Tensor], Tensor], scenario: Scenario, client: int | None) -> ClassTable:
    """Means over the training samples of each class [C, d], float64."""
    held = _held(scenario.train, client, 0)
    rows = one_hot(scenario.train_set.y[held], scenario.num_classes).double()
    return ClassTable.from_sums(rows.T @ _passed(values, scenario.train_set, held).double(), rows.sum(0))


def _marks(
    net: Net, values: Callable[[Tensor], Tensor], scenario: Scenario, client: int | None, marks: str
) -> ClassTable:
    if marks == "means":
        return _class_means(values, scenario, client)
    weight = net.head.weight.detach()
    return ClassTable(weight, torch.ones(len(weight), dtype=torch.bool))


def _tsne(z: Tensor, seed: int) -> np.ndarray:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    perplexity = min(_PERPLEXITY, (len(z) - 1) / 3)
    with threadpool_limits(1):  # its threads wait for each other in tiny steps: minutes on a busy machine
        made: np.ndarray = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(z.numpy())
    return made


def _matrix(client: int | None, name: str, values: Tensor) -> list[Row]:
    return [
        {"client": client, "matrix": name, "i": i, "j": j, "value": value}
        for i, row in enumerate(values.tolist())
        for j, value in enumerate(row)
    ]


def _correlation(one: Tensor, other: Tensor) -> float | None:
    if len(one) < 2 or one.std() == 0 or other.std() == 0:
        return None
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])
