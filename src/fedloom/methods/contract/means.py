"""The mean of upload entries of every kind, and what methods require of a net's body and head."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, Value, get_number, get_tensor, get_tree
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree, select, weighted_mean
from fedloom.methods.contract.contexts import Tasks
from fedloom.methods.contract.phases import TRAINABLE
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import Role


@dataclass(frozen=True, slots=True)
class ByNumber:
    """Weights of trees, one tree for each: every number of every entry has a float64 weight of 0 or more."""

    trees: Iterable[Tree]


class Slices:
    """Trees that hold leading slices of the entries of `within`, as whole trees with weights by number."""

    def __init__(self, within: Tree) -> None:
        self._within = within
        self._held = {name: torch.zeros(value.shape, dtype=torch.bool) for name, value in within.items()}

    def whole(
        self, values: Iterable[Value], weights: Iterable[float] | Iterable[Tree] | Tensor
    ) -> tuple[Iterator[Tree], ByNumber]:
        """Return the trees with zeros outside their slices, and their weights, which are zero there. Both are read one
        by one, and none is kept in memory. `weights` has a number for each tree, or a tree that broadcasts to its
        entries. Raises `ValueError` for a tree with other names than `within`, or with an entry that is no slice."""
        pairs = (self._whole(value, weight) for value, weight in zip(values, weights, strict=True))
        # both are read in turn, so `tee` never holds more than one pair
        first, second = itertools.tee(pairs)
        return (value for value, _ in first), ByNumber(weight for _, weight in second)

    def filled(self, mean: Value) -> Tree:
        """Return the mean, and the numbers of `within` where no tree had a weight."""
        assert isinstance(mean, dict)
        return {
            name: torch.where(self._held[name], mean[name], value) if value.is_floating_point() else mean[name]
            for name, value in self._within.items()
        }

    def _whole(self, value: Value, weight: float | Tree | Tensor) -> tuple[Tree, Tree]:
        if not isinstance(value, dict) or value.keys() != self._within.keys():
            raise ValueError("a mean of slices needs trees with the entries of the whole tree")
        tree, weights = Tree(), Tree()
        for name, entry in value.items():
            whole = self._within[name]
            if entry.dim() != whole.dim() or any(a > b for a, b in zip(entry.shape, whole.shape, strict=True)):
                raise ValueError(f"{name} {tuple(entry.shape)} is no slice of {tuple(whole.shape)}")
            part = tuple(slice(size) for size in entry.shape)
            tree[name] = torch.zeros_like(whole)
            tree[name][part] = entry
            weights[name] = torch.zeros(whole.shape, dtype=torch.float64)
            by_number = weight.get(name, 1.0) if isinstance(weight, dict) else weight
            weights[name][part] = by_number.double() if isinstance(by_number, Tensor) else by_number
            self._held[name] |= weights[name] > 0
        return tree, weights


def _mean_by_number(trees: Iterable[Tree], weights: Iterable[Tree]) -> Tree:
    """Return sum_k weights_k trees_k / sum_k weights_k, number by number; 0 where all weights are 0."""
    first, sums, totals = Tree(), Tree(), Tree()
    for tree, weight in zip(trees, weights, strict=True):
        if not first:
            first = tree
            sums = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in tree.items()}
            totals = {name: torch.zeros_like(value) for name, value in sums.items()}
        for name, value in tree.items():
            sums[name] += weight[name] * value.double()
            totals[name] += weight[name]
    means = {name: sums[name] / torch.where(total > 0, total, 1.0) for name, total in totals.items()}
    # batch norm's counters have no mean: those of the first upload stay
    return {n: means[n].to(v.dtype) if v.is_floating_point() else v.clone() for n, v in first.items()}


def mean_of(values: Iterable[Value], weights: Iterable[float] | Tensor | ByNumber) -> Value:
    """Average trees, class tables or tensors, in their order and in float64. Trees keep their dtypes (`weighted_mean`)
    and may come one by one. Each row of class tables [C, d] is the mean over the clients that hold the class, with one
    weight for each table, or for each table and class [m, C]. Raises `TypeError` for other values, `ValueError` for
    none."""
    iterator = iter(values)
    first = next(iterator, None)
    if first is None:
        raise ValueError("mean of nothing: at least one client must have sent this")
    all_values = itertools.chain([first], iterator)
    if isinstance(weights, ByNumber):
        return _mean_by_number(all_values, weights.trees)  # type: ignore[arg-type]
    if isinstance(first, dict):
        return weighted_mean(all_values, weights)  # type: ignore[arg-type]
    if isinstance(first, ClassTable):
        if not isinstance(weights, Tensor):
            weights = torch.tensor(list(weights), dtype=torch.float64)
        return ClassTable.stack(list(all_values)).to(torch.float64).mean_over_clients(weights)  # type: ignore[arg-type]
    if isinstance(first, Tensor):
        trees = ({"": tensor.double()} for tensor in all_values)  # type: ignore[union-attr]
        return weighted_mean(trees, weights)[""]
    raise TypeError(f"mean of {type(first).__name__}: only trees, class tables and tensors have one")


RECORDED = "recorded"  # of several labels, the entry of an upload that counts the samples which record each [L], int64


def with_label_counts(upload: Record, labels: Tensor, samples: int) -> Record:
    """Return an upload with trees, whose heads have a row for each of several `labels` [n, L], with their counts."""
    if labels.dim() == 1 or not any(isinstance(value, dict) for value in upload.values()):
        return upload
    return {"samples": samples} | upload | {RECORDED: (labels >= 0).sum(0).cpu()}


def recorded_shares(uploads: Mapping[int, Record]) -> Tensor | None:
    """Return the share of each client's samples that record each label [m, L], float64; None of a single label."""
    if RECORDED not in next(iter(uploads.values()), {}):
        return None
    counts = [(get_tensor(upload, RECORDED).double(), get_number(upload, "samples")) for upload in uploads.values()]
    return torch.stack([recorded / samples for recorded, samples in counts])


def label_rows(tree: Tree, labels: int) -> list[str]:
    """Return the names of the entries of `tree` that are linear heads, with a row for each of the `labels`."""
    heads = (name for name in tree if f".{name}".endswith((".head.weight", ".head.bias")))
    return [name for name in heads if len(tree[name]) == labels]


def mean_by_label(
    uploads: Mapping[int, Record], key: str, weights: Iterable[float] | Tensor, reduce: Callable[..., Any] = mean_of
) -> Any:
    """Return the mean of an entry by `reduce`. Of several labels, each row of a head is that of the clients that record
    its label, by `weights` times the share of samples that do; without any, it is that of all clients."""
    if (shares := recorded_shares(uploads)) is None or isinstance(weights, Tensor):
        return reduce((upload[key] for upload in uploads.values()), weights)
    weights = list(weights)
    mean = reduce((upload[key] for upload in uploads.values()), weights)
    names = label_rows(mean, shares.shape[1]) if isinstance(mean, dict) else []
    if not names or bool((shares == 1).all()):
        return mean
    # a weight of 0 leaves a client out, because 0 * NaN, of one that diverged, would be NaN
    counted = [
        (select(get_tree(upload, key), names), weight * share)
        for upload, weight, share in zip(uploads.values(), weights, shares, strict=True)
        if weight > 0
    ]
    slices = Slices(select(mean, names))
    row_weights = [{n: by_row.view(-1, *(1,) * (v.dim() - 1)) for n, v in rows.items()} for rows, by_row in counted]
    return mean | slices.filled(reduce(*slices.whole((rows for rows, _ in counted), row_weights)))


def keep_unrecorded(before: Record, after: Record, uploads: Mapping[int, Record]) -> Record:
    """Return the server's state `after` a round with the heads' rows of `before` for labels that no client records."""
    shares = recorded_shares(uploads)
    if shares is None or (recorded := shares.any(0)).all():
        return after
    result = dict(after)
    for key, tree in after.items():
        old = before.get(key)
        if isinstance(tree, dict) and isinstance(old, dict):
            rows = {name: tree[name].clone() for name in label_rows(tree, len(recorded)) if name in old}
            for name, value in rows.items():
                value[~recorded] = old[name][~recorded]
            result[key] = tree | rows
    return result


def require(tasks: Tasks, method: str, spec: Spec) -> None:
    """Raise `ConfigError`, in the name of `method`, unless the nets of all `tasks` have what `spec` asks for."""
    splits = (Role.HEAD in spec.private) != (Role.BODY in spec.private)
    heads = [{name: task.init[name].shape for name in task.init if task.roles[name] is Role.HEAD} for task in tasks]
    for task, head in zip(tasks, heads, strict=True):
        if (splits or "trained_head" in spec.requires) and not head.keys() - task.frozen:
            raise ConfigError(
                f"{method} treats the head apart from the rest; this model has none at its end, or a frozen one"
            )
        if "trained_body" in spec.requires and not task.names(TRAINABLE - {Role.HEAD}) - task.frozen:
            raise ConfigError(
                f"{method} trains the body apart from the head; this model is a head alone, or all of its body is "
                "frozen"
            )
        if "linear_head" in spec.requires:
            weight = {"head.weight": (task.num_classes, task.feature_dim)}
            needs = f"{method} needs a head of one linear layer that trains"
            if {name: shape for name, shape in head.items() if name != "head.bias"} != weight:
                names = sorted(head.keys() - {"head.bias"})
                raise ConfigError(
                    f"{needs}, " + (f"this net's has {names}" if names else "this net has none, or it is frozen")
                )
            if "head.weight" in task.frozen:
                raise ConfigError(f"{needs}, this net's is frozen")
            if "head.bias" in head and not spec.head_bias:
                raise ConfigError(f"{method} needs a head without bias; set net.head.bias = None, or head_bias to true")
    for group, (task, head) in enumerate(zip(tasks, heads, strict=True)):
        shapes, first_shapes = ([tuple(shape) for shape in h.values()] for h in (head, heads[0]))
        if "same_heads" in spec.requires and shapes != first_shapes:
            raise ConfigError(
                f"{method} shares the head: that of group {group} has the shapes {shapes}, that of group 0 "
                f"{first_shapes}; choose models with the same feature width"
            )
        if "same_width" in spec.requires and task.feature_dim != tasks[0].feature_dim:
            raise ConfigError(
                f"{method} compares features: those of group {group} have {task.feature_dim} entries, those of group 0 "
                f"{tasks[0].feature_dim}; choose models with the same feature width"
            )
