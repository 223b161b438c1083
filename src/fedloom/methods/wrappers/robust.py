"""Robust means: a mean of uploads that a few bad ones cannot move far. Wrappers over any method with a mean.

Each takes the place of `Method.reduce`. The vectors that it compares are all floating entries of a tree together, or a
row of a class table, over the clients that hold the class. Clients weigh alike: a weight is what a bad one would
overstate.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, Value
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.contexts import Diagnostic, ServerContext, Task
from fedloom.methods.contract.method import WRAPPERS, Method, Uploads
from fedloom.methods.contract.spec import Spec
from fedloom.methods.wrappers.uploads import Changed
from fedloom.methods.wrappers.wrapping import alone, averaged, names_of, wrapped

MEANS = ("median", "trimmed", "krum", "multikrum", "geomedian", "normbound")  # all wrappers of this file


class Faulty(method.Options):
    """Options of Krum."""

    faulty: int = Field(
        1, ge=0, description="f, number of bad clients that a round may have; needs 2 f + 3 participants."
    )


class Kept(Faulty):
    """Options of multi-Krum."""

    kept: int | None = Field(
        None, ge=1, description="Number of uploads that are averaged. Null averages all but the faulty ones."
    )


class TrimmedShare(method.Options):
    """Options of the trimmed mean."""

    share: float = Field(0.2, ge=0, lt=0.5, description="Share of the values that is left out at each end.")


class Steps(method.Options):
    """Options of the geometric median."""

    steps: int = Field(100, ge=1, description="Steps of Weiszfeld's iteration, which starts at the mean.")


class Bound(method.Options):
    """Options of the norm bound."""

    length: float = Field(
        1.0, gt=0, description="Longest change that counts in full, as a 2-norm; longer ones are scaled down to it."
    )


def median(rows: Tensor) -> Tensor:
    """Compute the median of each coordinate: rows [m, p] -> [p]. Yin et al., ICML 2018, arXiv 1803.01498.

    For an even number of rows it is the mean of the middle two.

    Example:
        >>> median(torch.tensor([[1.0, 5.0], [2.0, 6.0], [90.0, 7.0]]))
        tensor([2., 6.])
    """
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """Compute the mean of each coordinate without its largest and smallest values (Yin et al., ICML 2018, 1803.01498).

    Args:
        rows: uploads of m clients [m, p]; the result is [p].
        share: share of the rows that is left out at each end.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [90.0]]), share=0.25)
        tensor([2.5000])
    """
    dropped = int(share * len(rows) + 1e-9)
    return rows.sort(0).values[dropped : len(rows) - dropped].mean(0)


def krum_scores(rows: Tensor, faulty: int) -> Tensor:
    """Sum the squared distances of each row to its m - f - 2 nearest neighbours: rows [m, p] -> [m]."""
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square().sort(1).values
    return distances[:, 1 : max(2, len(rows) - faulty - 1)].sum(1)


def krum(rows: Tensor, faulty: int) -> Tensor:
    """Choose the row that is nearest to its neighbours (Blanchard et al., NeurIPS 2017, arXiv 1703.02757).

    Args:
        rows: uploads of m clients [m, p]; the result is [p].
        faulty: number of bad rows that it withstands.

    Example:
        >>> krum(torch.tensor([[1.0], [1.2], [1.1], [1.3], [90.0]]), faulty=1)
        tensor([1.2000])
    """
    return rows[int(krum_scores(rows, faulty).argmin())]


def multi_krum(rows: Tensor, faulty: int, count: int | None) -> Tensor:
    """Average the `count` best rows by Krum's score: rows [m, p] -> [p]. None takes all but the faulty ones.

    Blanchard et al., NeurIPS 2017, arXiv 1703.02757.

    Example:
        >>> multi_krum(torch.tensor([[1.0], [2.0], [1.5], [1.5], [90.0]]), faulty=1, count=None)
        tensor([1.5000])
    """
    count = count or max(1, len(rows) - faulty)
    return rows[krum_scores(rows, faulty).argsort(stable=True)[:count]].mean(0)


def geometric_median(rows: Tensor, steps: int) -> Tensor:
    """Find the point with the least sum of distances to the rows (Pillutla et al., IEEE TSP 2022, arXiv 1912.13445).

    Args:
        rows: uploads of m clients [m, p]; the result is [p].
        steps: steps of Weiszfeld's iteration.

    Example:
        >>> geometric_median(torch.tensor([[0.0], [0.0], [90.0]]), steps=100).round(decimals=3)
        tensor([0.])
    """
    point = rows.mean(0)
    for _ in range(steps):
        weights = 1 / (rows - point).norm(dim=1).clamp(min=1e-12)
        point = (rows * weights[:, None]).sum(0) / weights.sum()
    return point


class Robust(Method):
    """Base of robust means: `rule` in the place of the mean. Refuses methods without a mean."""

    word: ClassVar[str]
    RuleOptions: ClassVar[type[method.Options]] = method.Options

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.robust: Any = names_of(self, self.word).options(self.RuleOptions, self.options)
        self.replaced = averaged(self, self.word)
        self.spec = each_needed(self.spec, self.replaced)

    @abstractmethod
    def rule(self, rows: Tensor) -> Tensor:
        """Reduce the vectors of the uploads, rows [m, p], to one [p] instead of their mean."""

    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        needed = 2 * self.robust.faulty + 3 if isinstance(self.robust, Faulty) else 1
        if participants < needed:
            raise ConfigError(
                f"{self.name()}: faulty = {self.robust.faulty} needs {needed} participants a round, here are "
                f"{participants}; lower {self.word}_faulty, or raise participation"
            )
        return super().examine(tasks, participants)

    def reduce(self, key: str, values: Iterable[Value], weights: Iterable[float] | Tensor) -> Value:
        if key not in self.replaced:
            return super().reduce(key, values, weights)
        return applied(self.rule, list(values))


def each_needed(spec: Spec, names: set[str]) -> Spec:
    """The spec of a method whose server now sees every client's own of these."""
    return replace(spec, sends={n: replace(s, per_client=True) if n in names else s for n, s in spec.sends.items()})


def applied(rule: Callable[[Tensor], Tensor], values: Sequence[Value]) -> Value:
    """A rule for vectors [m, p] -> [p], applied to trees, class tables or tensors; integer entries are the first's."""
    example = values[0]
    if isinstance(example, dict):
        names = [name for name, value in example.items() if value.is_floating_point()]
        aggregated = rule(torch.stack([flat(value, names) for value in values]))  # type: ignore[arg-type]
        parts = iter(torch.split(aggregated, [example[name].numel() for name in names]))
        fresh = {name: next(parts).view(example[name].shape).to(example[name].dtype) for name in names}
        return {name: fresh[name] if name in fresh else value.clone() for name, value in example.items()}
    if isinstance(example, ClassTable):
        stacked = ClassTable.stack(values).to(torch.float64)  # type: ignore[arg-type]
        rows = torch.zeros_like(stacked.values[0])
        for label, held in enumerate(stacked.held.T):
            if held.any():
                rows[label] = rule(stacked.values[held, label])
        return ClassTable(rows, stacked.held.any(0))
    if isinstance(example, Tensor):
        stacked_rows = torch.stack([value.double().flatten() for value in values])  # type: ignore[union-attr]
        return rule(stacked_rows).view(example.shape)
    raise TypeError(f"{type(example).__name__}: only trees, class tables and tensors have a robust mean")


def flat(tree: Tree, names: Sequence[str]) -> Tensor:
    """Some entries of a tree as one float64 vector."""
    return torch.cat([tree[name].flatten().double() for name in names])


class NormBound(Method):
    """Changes of the server's trees longer than `length` are scaled down to it, then averaged as ever. Sun et al.,
    2019, 1911.07963. What is no tree of the server's goes through as it is."""

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.bound = names_of(self, "normbound").options(Bound, self.options)
        self.bounded = averaged(self, "normbound")
        self.spec = each_needed(self.spec, self.bounded)

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        def one(client: int, upload: Record) -> Record:
            return {key: self._bounded(key, value, server) for key, value in upload.items()}

        return super().aggregate(server, Changed(uploads, one), ctx)

    def _bounded(self, key: str, value: Value, server: Record) -> Value:
        old = server.get(key)
        if key not in self.bounded or not isinstance(value, dict) or not isinstance(old, dict):
            return value
        if self.spec.sends[key].form == "change":
            old = {name: torch.zeros_like(entry) for name, entry in value.items()}
        return bounded(old, value, self.bound.length)


def bounded(old: Tree, new: Tree, length: float) -> Tree:
    """`new`, its change of floating entries since `old` no longer than `length`."""
    names = [name for name, value in new.items() if value.is_floating_point() and name in old]
    scale = float((length / (flat(new, names) - flat(old, names)).norm().clamp(min=1e-300)).clamp(max=1))
    if scale == 1:
        return new
    return {n: v if n not in names else (old[n] + scale * (v - old[n])).to(v.dtype) for n, v in new.items()}


class Median(Robust):
    """The median of each coordinate."""

    word = "median"

    def rule(self, rows: Tensor) -> Tensor:
        return median(rows)


class Trimmed(Robust):
    """The mean of each coordinate without its extremes."""

    word, RuleOptions = "trimmed", TrimmedShare

    def rule(self, rows: Tensor) -> Tensor:
        return trimmed_mean(rows, self.robust.share)


class Krum(Robust):
    """The upload nearest to its neighbours."""

    word, RuleOptions = "krum", Faulty

    def rule(self, rows: Tensor) -> Tensor:
        return krum(rows, self.robust.faulty)


class MultiKrum(Robust):
    """The mean of the uploads nearest to their neighbours."""

    word, RuleOptions = "multikrum", Kept

    def rule(self, rows: Tensor) -> Tensor:
        return multi_krum(rows, self.robust.faulty, self.robust.kept)


class GeometricMedian(Robust):
    """The point with the least sum of distances."""

    word, RuleOptions = "geomedian", Steps

    def rule(self, rows: Tensor) -> Tensor:
        return geometric_median(rows, self.robust.steps)


def _put_over(kind: type[Method], base: type[Method], word: str, options: type[method.Options]) -> type[Method]:
    """`base+word`. Raises `ConfigError` if there is another mean already, robust or with noise."""
    alone(base, word, MEANS, "a robust mean", "would find no mean to replace")
    alone(base, word, ("dp",), "a mean with noise", "would replace it, and the noise with it")
    return wrapped(kind, base, word, options)


def _register(kind: type[Robust]) -> None:
    WRAPPERS.register(kind.word)(lambda base: _put_over(kind, base, kind.word, kind.RuleOptions))


for _kind in (Median, Trimmed, Krum, MultiKrum, GeometricMedian):
    _register(_kind)


@WRAPPERS.register("normbound")
def with_norm_bound(base: type[Method]) -> type[Method]:
    """`base` with bounded changes."""
    return _put_over(NormBound, base, "normbound", Bound)
