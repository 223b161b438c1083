"""Differential privacy of clients, `+dp`: a wrapper over any method whose server needs nothing but means.

DP-FedAvg, McMahan et al., ICLR 2018, arXiv 1710.06963, Algorithm 1, with fixed denominators and equal weights: the
server, which is trusted, cuts each client's contribution to a length, sums, and adds Gaussian noise once.

Two parts are cut, each to a length of its own: the change of all trees together, and the rows of all class tables
together. A third part of a table is told with noise, too: how many clients hold each class. All that happens later,
in the method or in wrappers, works on these sums alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record, Value, get_number
from fedloom.core.tables import ClassTable
from fedloom.core.trees import Tree
from fedloom.methods.contract import method
from fedloom.methods.contract.contexts import Diagnostic, ServerContext, Task
from fedloom.methods.contract.means import ByNumber
from fedloom.methods.contract.method import WRAPPERS, Method, Uploads, Weights
from fedloom.methods.contract.optional_hooks import OptionalHooks
from fedloom.methods.contract.phases import Predictor
from fedloom.methods.wrappers.accountant import Sampling, epsilon, require_accountant
from fedloom.methods.wrappers.robust import MEANS
from fedloom.methods.wrappers.wrapping import alone, averaged, names_of, wrapped
from fedloom.nets.roles import Role

_OWN = ("rounds", "releases")  # entries in the server's state
_LARGE = 0.01  # a delta above it is reported


class Options(method.Options):
    """Options of differential privacy."""

    clip: float = Field(1.0, gt=0, description="Longest change of a client's trees that counts in full, as a 2-norm.")
    table_clip: float = Field(
        1.0, gt=0, description="Longest change of a client's class tables that counts in full, as a 2-norm."
    )
    noise: float = Field(
        1.0, ge=0.01, description="z, standard deviation of the noise as a multiple of the clipping length."
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="delta for which epsilon is reported. Null is 1 / clients."
    )
    sampling: Sampling = Field(
        "poisson",
        description="poisson: each client is drawn independently, with the probability `participation`. fixed: a "
        "fixed number is drawn without replacement, as in any other run, for which a larger epsilon can "
        "be shown.",
    )


class DP(Method):
    """Means with noise in the place of means. Server state: rounds with noise so far, and releases in each of them.

    Example:
        >>> from fedloom.methods import METHODS
        >>> method = METHODS.get("fedavg+dp").configured("sound", {"dp_clip": 0.5})
        >>> method.dp.clip, method.dp.noise
        (0.5, 1.0)
    """

    def __init__(self, options: BaseModel | None = None) -> None:
        super().__init__(options)
        self.dp_names = names_of(self, "dp")
        self.dp = self.dp_names.options(Options, self.options)
        averaged(self, "dp")
        self._refuse_own_uploads()

    # -- before the run --------------------------------------------------------------------------------------
    def examine(self, tasks: Sequence[Task], participants: int) -> list[Diagnostic]:
        self._refuse_own_uploads()  # of wrappers around this one, too
        for task in tasks:
            if statistics := sorted(task.names(frozenset({Role.BN_STAT})) - self.private_names(task)):
                raise ConfigError(
                    f"{self.name()}: batch norm's statistics are shared ({statistics[0]}, ...), and noise would make "
                    "variances negative; take a net without batch norm, or a method that keeps it private, as fedbn"
                )
        for word, unnoised in (("before the first", super().opening()), ("after the last", super().closing())):
            if unnoised is not None:
                raise ConfigError(f"{self.name()}: the round {word} one would send a mean without noise")
        if super().select.__func__ is not OptionalHooks.select:  # type: ignore[attr-defined]
            raise ConfigError(
                f"{self.name()}: the method chooses its clients, and epsilon is of clients drawn by chance"
            )
        if self._target_delta(tasks[0].clients) >= 1:
            raise ConfigError(f"{self.name()}: delta = 1 / clients = 1 promises nothing; set dp_delta")
        diagnostics = [*super().examine(tasks, participants), *self._large_delta(tasks[0].clients)]
        require_accountant(self.name())  # last: what the method refuses, it refuses in every environment
        return diagnostics

    def _large_delta(self, clients: int) -> list[Diagnostic]:
        delta = self._target_delta(clients)
        if delta <= _LARGE:
            return []
        message = f"delta = {delta:g}: epsilon leaves out events of that chance; set dp_delta far below 1 / clients"
        return [Diagnostic("dp.large_delta", message, delta)]

    def _refuse_own_uploads(self) -> None:
        per_client = [name for name, sent in self.spec.sends.items() if sent.per_client]
        if per_client:
            raise ConfigError(
                f"{self.name()}: the server needs each client's own {', '.join(per_client)}, which noise on a mean "
                "does not hide; dp takes methods of which the server needs nothing but means"
            )

        sliced = [name for name, sent in self.spec.sends.items() if sent.sliced]
        if sliced:
            raise ConfigError(
                f"{self.name()}: each client sends other entries of {', '.join(sliced)}, and how many clients sent a "
                "number would be told without noise; dp takes methods whose clients send trees of one shape"
            )

    def noised(self) -> set[str]:
        """Return the upload entries of which the server gets the mean with noise."""
        return {name for name, sent in self.spec.sends.items() if not sent.per_client}

    # -- who takes part --------------------------------------------------------------------------------------
    def select(self, server: Record, count: int, ctx: ServerContext) -> Sequence[int]:
        if self.dp.sampling == "fixed":
            return super().select(server, count, ctx)
        return self._drawn_by_chance(count, ctx) or [self._stand_in(ctx)]

    def _drawn_by_chance(self, count: int, ctx: ServerContext) -> list[int]:
        """Draw the clients of a round, each with probability count / clients. There may be none."""
        clients = ctx.task.clients
        chances = ctx.task.streams.numpy("dp.participants", ctx.round).random(clients)
        return [int(client) for client in np.flatnonzero(chances < count / clients)]

    @staticmethod
    def _stand_in(ctx: ServerContext) -> int:
        """Choose the client that trains in a round for which nobody was drawn. Its upload does not count."""
        return int(ctx.task.streams.numpy("dp.stand_in", ctx.round).integers(ctx.task.clients))

    # -- server ----------------------------------------------------------------------------------------------
    def server_init(self, ctx: ServerContext) -> Record:
        return super().server_init(ctx) | {self.dp_names.entry(name): 0 for name in _OWN}

    def down(self, server: Record, client: int, ctx: ServerContext) -> Record:
        return super().down(self._without_ledger(server), client, ctx)

    def aggregate(self, server: Record, uploads: Uploads, ctx: ServerContext) -> Record:
        among = ctx.participants or len(uploads)
        drawn = (
            set(self._drawn_by_chance(among, ctx))
            if self.dp.sampling == "poisson" and ctx.participants
            else set(uploads)
        )
        round_ = _Round(self, uploads, server, ctx, drawn, among)
        next_server = super().aggregate(self._without_ledger(server), round_, ctx)
        rounds, releases = (self.dp_names.entry(name) for name in _OWN)
        max_releases = max(int(get_number(server, releases)), round_.releases())
        return next_server | {rounds: int(get_number(server, rounds)) + 1, releases: max_releases}

    def mean(
        self, uploads: Uploads, key: str = "model", weights: Weights = "samples", within: Tree | None = None
    ) -> Any:
        if key not in self.noised():
            return super().mean(uploads, key, weights, within)
        if not isinstance(uploads, _Round):
            raise ConfigError(f"{self.name()}: a mean of other uploads of {key} than a round's has no noise")
        return uploads.noisy(key)

    def reduce(self, key: str, values: Iterable[Value], weights: Iterable[float] | Tensor | ByNumber) -> Value:
        if key in self.noised():
            raise ConfigError(f"{self.name()}: {key} is put together outside of Method.mean, where noise is added")
        return super().reduce(key, values, weights)

    def predictors(self, server: Record, state: Record | None, ctx: ServerContext) -> dict[str, Predictor]:
        return super().predictors(self._without_ledger(server), state, ctx)

    def diagnostics(self, server: Record, uploads: Uploads, ctx: ServerContext) -> list[Diagnostic]:
        """Report nothing, because diagnostics of the method can reveal single clients' uploads."""
        return []

    def figures(self, server: Record, ctx: ServerContext) -> Mapping[str, float]:
        """epsilon and delta of all rounds so far."""
        rounds, releases = (int(get_number(server, self.dp_names.entry(name))) for name in _OWN)
        clients, dp = ctx.task.clients, self.dp
        delta = self._target_delta(clients)
        spent = epsilon(dp.noise, releases, rounds, ctx.participants or clients, clients, dp.sampling, delta)
        return {**super().figures(self._without_ledger(server), ctx), "epsilon": spent, "delta": delta}

    def _target_delta(self, clients: int) -> float:
        return 1 / clients if self.dp.delta is None else self.dp.delta

    def _without_ledger(self, server: Record) -> Record:
        return self.dp_names.without(server, *_OWN)


class _Round(Mapping[int, Record]):
    """The uploads of a round, and their means with noise. Of clients, the method inside may count m alone."""

    def __init__(
        self, method: DP, uploads: Uploads, server: Record, ctx: ServerContext, drawn: set[int], among: int
    ) -> None:
        self._method, self._uploads, self._server, self._ctx = method, uploads, server, ctx
        self._drawn, self._among = drawn, among
        self._first = uploads[next(iter(uploads))]  # what kinds of values clients send
        self._scales: dict[tuple[int, bool], float] = {}

    def __getitem__(self, client: int) -> Record:
        return self._uploads[client]

    def __iter__(self) -> Iterator[int]:
        return iter(self._uploads)

    def __len__(self) -> int:
        """Return m, because the true number would reveal single clients."""
        return self._among

    def releases(self) -> int:
        """Sums that get noise: of trees, of rows, and of who holds a class."""
        tables, others = self._keys(tables=True), self._keys(tables=False)
        return 2 * bool(tables) + bool(others)

    def noisy(self, key: str) -> Value:
        """The mean with noise of what clients sent as `key`."""
        first = self._first[key]
        rng = self._ctx.task.streams.numpy(f"dp.{key}", self._ctx.round)
        if isinstance(first, ClassTable):
            return self._table(key, first, rng)
        mean = self._tree(key, _as_tree(first), rng)
        return mean if isinstance(first, dict) else mean[""]

    def _tree(self, key: str, like: Tree, rng: np.random.Generator) -> Tree:
        """Return the server's tree, plus (sum of cut changes + noise) / m. Counters stay as they were, because they
        would have no noise."""
        reference = self._had(key, like)
        sums = {name: torch.zeros(value.shape, dtype=torch.float64) for name, value in reference.items()}
        for client in self._counted():
            scale = self._scale(client, tables=False)
            uploaded = _as_tree(self._uploads[client][key])
            for name in sums if scale else ():
                sums[name] += scale * (uploaded[name].double() - reference[name].double())
        std, noisy = self._method.dp.noise * self._method.dp.clip, dict(reference)
        for name, total in sums.items():
            if like[name].is_floating_point():
                change = (total + std * _normal(total.shape, rng)) / self._among
                noisy[name] = (reference[name].double() + change).to(like[name].dtype)
        return noisy

    def _table(self, key: str, like: ClassTable, rng: np.random.Generator) -> ClassTable:
        """Rows: the sum of cut rows over the number of holders, both with noise. A class is held if that number rounds
        to 1 or more."""
        rows, holders = torch.zeros_like(like.values, dtype=torch.float64), torch.zeros(like.held.shape).double()
        for client in self._counted():
            table = cast(ClassTable, self._uploads[client][key])
            if scale := self._scale(client, tables=True):
                rows += scale * table.values.double()
            holders += table.held.double()
        dp, tables = self._method.dp, [cast(ClassTable, self._first[k]) for k in self._keys(tables=True)]
        max_length = float(
            np.sqrt(sum(table.held.numel() for table in tables))
        )  # length of a client that holds all classes
        rows += dp.noise * dp.table_clip * _normal(rows.shape, rng)
        holders += dp.noise * max_length * _normal(holders.shape, rng)
        return ClassTable.from_sums(rows, torch.where(holders >= 0.5, holders.clamp(min=1), 0))

    def _scale(self, client: int, tables: bool) -> float:
        """Return the factor that cuts a client's trees, or its tables, to the allowed length; 0 if not finite."""
        if (client, tables) not in self._scales:
            upload, square = self._uploads[client], 0.0
            for key in self._keys(tables):
                value = upload[key]
                if isinstance(value, ClassTable):
                    square += float(value.values.double().square().sum())
                else:
                    uploaded = _as_tree(value)
                    reference = self._had(key, uploaded)
                    square += sum(
                        float((uploaded[n].double() - reference[n].double()).square().sum())
                        for n in _floating(uploaded)
                    )
            length = self._method.dp.table_clip if tables else self._method.dp.clip
            self._scales[client, tables] = min(1.0, length / max(square**0.5, 1e-300)) if np.isfinite(square) else 0.0
        return self._scales[client, tables]

    def _had(self, key: str, like: Tree) -> Tree:
        """The entries that changes are counted from: the server's, or zero for what is a change itself."""
        had = self._server.get(key)
        whole = isinstance(had, dict) and self._method.spec.sends[key].form == "whole"
        server_tree: Tree = cast(Tree, had) if whole else {}
        return {
            name: server_tree[name] if name in server_tree else torch.zeros_like(value) for name, value in like.items()
        }

    def _keys(self, tables: bool) -> list[str]:
        first = self._first
        return [k for k in sorted(self._method.noised()) if k in first and isinstance(first[k], ClassTable) == tables]

    def _counted(self) -> Iterator[int]:
        return (client for client in self._uploads if client in self._drawn)


def _as_tree(value: Value) -> Tree:
    return value if isinstance(value, dict) else {"": cast(Tensor, value)}


def _floating(tree: Tree) -> list[str]:
    return [name for name, value in tree.items() if value.is_floating_point()]


def _normal(shape: torch.Size, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(tuple(shape)))


@WRAPPERS.register("dp")
def with_dp(base: type[Method]) -> type[Method]:
    """`base` with means that keep clients private. Raises `ConfigError` if it has a robust mean, or this, already."""
    alone(base, "dp", MEANS, "a robust mean", "would find no mean to add noise to")
    return wrapped(DP, base, "dp", Options)
