"""Robust means: a mean of uploads that a few bad ones cannot move far. Wrappers over any method with a mean.

Each takes the place of `Method.reduce`. The vectors that it compares are all floating entries of a tree together, or a
row of a class table, over the clients that hold the class. Clients have equal weights, because
a bad one would overstate its own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

import fedloom.methods as fm
from fedloom.core.records import Value, is_finite
from fedloom.methods.contract.means import ByNumber
from fedloom.methods.wrappers import robust_rules
from fedloom.methods.wrappers.wrapping import Changed, alone

MEANS = ("median", "trimmed", "krum", "multikrum", "bulyan", "geomedian", "normbound")  # all wrappers of this file


class Faulty(fm.Options):
    """Options of Krum and Bulyan."""

    faulty: int = fm.option(
        1, "f, number of bad clients that a round may have; needs 2 f + 3 participants, Bulyan 4 f + 3.", ge=0
    )


class Kept(Faulty):
    """Options of multi-Krum."""

    kept: int | None = fm.option(
        None, "Number of uploads that are averaged. Null averages all except the faulty ones.", ge=1
    )


class TrimmedShare(fm.Options):
    """Options of the trimmed mean."""

    share: float = fm.option(0.2, "Share of the values that is left out at each end.", ge=0, lt=0.5)


class Steps(fm.Options):
    """Options of the geometric median."""

    steps: int = fm.option(100, "Steps of Weiszfeld's iteration, which starts at the mean.", ge=1)


class Bound(fm.Options):
    """Options of the norm bound."""

    length: float = fm.option(
        1.0, "Longest change that counts in full, as a 2-norm; longer ones are scaled down to it.", gt=0
    )


class OverMeans(fm.Method):
    """Base of all wrappers of this file, which change how the server averages. An upload that is not finite is left
    out whole, as if its client were absent."""

    word: ClassVar[str]
    RuleOptions: ClassVar[type[fm.Options]] = fm.Options

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.robust: Any = fm.names_of(self, self.word).options(self.RuleOptions, self.options)
        self.replaced = fm.averaged(self, self.word)
        sends = {n: replace(s, per_client=True) if n in self.replaced else s for n, s in self.spec.sends.items()}
        self.spec = replace(self.spec, sends=sends)  # the server now sees every client's own of these

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        outside = sorted(n for n, sent in self.spec.sends.items() if not sent.per_client and n not in self.replaced)
        if outside:
            raise fm.ConfigError(
                f"{self.name()}: {', '.join(outside)} would reach the server past {self.word}; name {self.word} after "
                "the wrapper that sends it"
            )
        for when, stage in (("before the first", super().opening()), ("after the last", super().closing())):
            if stage is not None and stage.spec.sends:
                raise fm.ConfigError(
                    f"{self.name()}: {self.word} does not act on the round {when} one, in which clients send "
                    f"{', '.join(stage.spec.sends)}; take a method without such a round, as fedavg"
                )
        return super().examine(tasks, participants)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        return super().aggregate(server, finite_uploads(uploads), ctx)

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        finite = finite_uploads(uploads)
        diagnostics, left_out = super().diagnostics(server, finite, ctx), len(uploads) - len(finite)
        if left_out:
            message = (
                f"in round {ctx.round}, {left_out} of {len(uploads)} uploads have numbers that are not finite: "
                f"{self.word} leaves them out"
            )
            diagnostics.append(fm.Diagnostic(f"{self.word}.not_finite", message, float(left_out)))
        return diagnostics


class Robust(OverMeans):
    """Base of robust means: `rule` in the place of the mean. Refuses methods without a mean."""

    by_coordinate: ClassVar[bool] = False  # each coordinate of the result depends on that coordinate alone
    reduction: ClassVar[Callable[..., Tensor]]  # of rows [m, p] to [p]; its other arguments are the options

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        sliced = [name for name in self.replaced if self.spec.sends[name].sliced]
        if sliced and not self.by_coordinate:
            raise fm.ConfigError(
                f"{self.name()}: {self.word} compares whole uploads, and each client sends other entries of "
                f"{', '.join(sliced)}; take median or trimmed, which look at each number by itself"
            )

    def rule(self, rows: Tensor) -> Tensor:
        """Reduce the vectors of the uploads, rows [m, p], to one [p] instead of their mean."""
        return type(self).reduction(rows, **self.robust.model_dump())

    def needed(self) -> int:
        """Return the fewest participants of a round for which the rule withstands the faulty clients."""
        faulty: int | None = getattr(self.robust, "faulty", None)
        return 1 if faulty is None else (4 if self.word == "bulyan" else 2) * faulty + 3

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        needed = self.needed()
        if participants < needed:
            raise fm.ConfigError(
                f"{self.name()}: faulty = {self.robust.faulty} needs {needed} participants a round, here are "
                f"{participants}; lower {self.word}_faulty, or raise participation"
            )
        return super().examine(tasks, participants)

    def reduce(self, key: str, values: Iterable[Value], weights: Iterable[float] | Tensor | ByNumber) -> Value:
        if key not in self.replaced:
            return super().reduce(key, values, weights)
        if isinstance(weights, ByNumber):
            pairs = list(zip(values, weights.trees, strict=True))
            return applied_by_number(self.rule, [value for value, _ in pairs], [weight for _, weight in pairs])  # type: ignore[misc]
        return applied(self.rule, list(values))


def finite_uploads(uploads: fm.Uploads) -> fm.Uploads:
    """Return the uploads whose numbers are all finite; all of them if none is, because then the run has diverged."""
    finite = [client for client, upload in uploads.items() if is_finite(upload)]
    return uploads if len(finite) in (0, len(uploads)) else Changed(uploads, lambda _, upload: upload, finite)


def applied(rule: Callable[[Tensor], Tensor], values: Sequence[Value]) -> Value:
    """Apply a rule for vectors [m, p] -> [p] to trees, class tables or tensors; integer entries are the first's."""
    example = values[0]
    if isinstance(example, dict):
        names = [name for name, value in example.items() if value.is_floating_point()]
        return _unflattened(rule(torch.stack([flat(value, names) for value in values])), example)  # type: ignore[arg-type]
    if isinstance(example, fm.ClassTable):
        stacked = fm.ClassTable.stack(values).to(torch.float64)  # type: ignore[arg-type]
        rows = torch.zeros_like(stacked.values[0])
        for label, held in enumerate(stacked.held.T):
            if held.any():
                # Clients without the class have zeros in its row, which a rule would take for values.
                rows[label] = rule(stacked.values[held, label])
        return fm.ClassTable(rows, stacked.held.any(0))
    if isinstance(example, Tensor):
        stacked_rows = torch.stack([value.double().flatten() for value in values])  # type: ignore[union-attr]
        return rule(stacked_rows).view(example.shape)
    raise TypeError(f"{type(example).__name__}: only trees, class tables and tensors have a robust mean")


def applied_by_number(
    rule: Callable[[Tensor], Tensor], trees: Sequence[fm.Tree], weights: Sequence[fm.Tree]
) -> fm.Tree:
    """Apply a rule of coordinates to trees, each number over those whose `weights` at it are above 0; 0 without any."""
    first = trees[0]
    names = [name for name, value in first.items() if value.is_floating_point()]
    rows = torch.stack([flat(tree, names) for tree in trees])
    held = torch.stack([flat(weight, names) for weight in weights]) > 0
    reduced = torch.zeros_like(rows[0])
    # numbers with the same holders are reduced in one call: widths make few patterns
    patterns, pattern_of = held.unique(dim=1, return_inverse=True)  # type: ignore[no-untyped-call]
    for index, holders in enumerate(patterns.T):
        columns = pattern_of == index
        if holders.any():
            reduced[columns] = rule(rows[holders][:, columns])
    return _unflattened(reduced, first)


def _unflattened(vector: Tensor, like: fm.Tree) -> fm.Tree:
    """The tree whose floating entries `vector` holds one after another; integer entries are those of `like`."""
    sizes = [value.numel() for value in like.values() if value.is_floating_point()]
    parts = iter(torch.split(vector, sizes))
    return {n: next(parts).view_as(v).to(v.dtype) if v.is_floating_point() else v.clone() for n, v in like.items()}


def flat(tree: fm.Tree, names: Sequence[str]) -> Tensor:
    """Return some entries of a tree as one float64 vector."""
    return torch.cat([tree[name].flatten().double() for name in names])


class NormBound(OverMeans):
    """Changes of the server's trees longer than `length` are scaled down to it, then averaged as ever. Sun et al.,
    2019, 1911.07963. Other entries pass unchanged."""

    word, RuleOptions = "normbound", Bound

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        def one(client: int, upload: fm.Record) -> fm.Record:
            return {key: self._bounded(key, value, server) for key, value in upload.items()}

        return super().aggregate(server, Changed(uploads, one), ctx)

    def _bounded(self, key: str, value: Value, server: fm.Record) -> Value:
        old = server.get(key)
        if key not in self.replaced or not isinstance(value, dict) or not isinstance(old, dict):
            return value
        if self.spec.sends[key].form == "change":
            old = {name: torch.zeros_like(entry) for name, entry in value.items()}
        if self.spec.sends[key].sliced:
            old = {n: old[n][tuple(map(slice, entry.shape))] for n, entry in value.items() if n in old}
        return bounded(old, value, self.robust.length)


def bounded(old: fm.Tree, new: fm.Tree, length: float) -> fm.Tree:
    """`new`, its change of floating entries since `old` no longer than `length`."""
    names = [name for name, value in new.items() if value.is_floating_point() and name in old]
    # The smallest norm keeps an upload without any change from a division by zero.
    scale = float((length / (flat(new, names) - flat(old, names)).norm().clamp(min=1e-300)).clamp(max=1))
    # the same object, so that an upload within the bound keeps its bits
    if scale == 1:
        return new
    return {n: v if n not in names else (old[n] + scale * (v - old[n])).to(v.dtype) for n, v in new.items()}


class Trimmed(Robust):
    """The mean of each coordinate without its extremes."""

    word, by_coordinate, RuleOptions = "trimmed", True, TrimmedShare
    reduction = staticmethod(robust_rules.trimmed_mean)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        share, diagnostics = self.robust.share, super().examine(tasks, participants)
        if share and not robust_rules.trimmed_rows(participants, share):
            message = (
                f"{self.word}_share = {share:g} of {participants} participants leaves nobody out: the mean is plain; "
                "the two must multiply to 1 or more"
            )
            diagnostics.append(fm.Diagnostic(f"{self.word}.nobody", message, share * participants))
        return diagnostics


class MultiKrum(Robust):
    """The mean of the uploads nearest to their neighbours."""

    word, RuleOptions, reduction = "multikrum", Kept, staticmethod(robust_rules.multi_krum)

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        kept, most = self.robust.kept, participants - self.robust.faulty
        diagnostics = super().examine(tasks, participants)
        if kept is not None and kept > most:
            raise fm.ConfigError(
                f"{self.name()}: {self.word}_kept = {kept} of {participants} participants would average faulty "
                f"uploads, too; take at most {most}, all but the faulty ones"
            )
        return diagnostics


def _plain(word: str, reduction: Callable[..., Tensor], options: type[fm.Options] = fm.Options) -> type[Robust]:
    """Create the wrapper of a rule that asks nothing of a run but a number of participants."""
    facts = {"word": word, "reduction": staticmethod(reduction), "RuleOptions": options, "__module__": __name__}
    return cast("type[Robust]", type(word.title(), (Robust,), {**facts, "by_coordinate": word == "median"}))


RULES: Sequence[type[OverMeans]] = (
    _plain("median", robust_rules.median),
    Trimmed,
    _plain("krum", robust_rules.krum, Faulty),
    MultiKrum,
    _plain("bulyan", robust_rules.bulyan, Faulty),
    _plain("geomedian", robust_rules.geometric_median, Steps),
    NormBound,
)


def _register(kind: type[OverMeans]) -> None:
    def put_over(base: type[fm.Method]) -> type[fm.Method]:
        alone(base, kind.word, MEANS, "a robust mean", "would find no mean to replace")
        alone(base, kind.word, ("dp",), "a mean with noise", "would replace it, and the noise with it")
        return fm.wrapped(kind, base, kind.word, kind.RuleOptions)

    fm.WRAPPERS.register(kind.word)(put_over)


for _kind in RULES:
    _register(_kind)
