"""Differential privacy of clients, `+dp`: a wrapper over any method whose server needs nothing but means.

DP-FedAvg, McMahan et al., ICLR 2018, arXiv 1710.06963, Algorithm 1, with fixed denominators and equal weights: the
trusted server cuts each client's contribution to a length, sums, and adds Gaussian noise once. Everything later, in the
method or in wrappers, works on the noisy values alone. Class tables of single clients: `noisy_uploads.py`."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from torch import Tensor

import fedloom.methods as fm
from fedloom.core.console import quiet_logger
from fedloom.core.errors import MissingPackageError
from fedloom.core.records import Value
from fedloom.methods.contract.means import RECORDED, ByNumber
from fedloom.methods.contract.method import LATER
from fedloom.methods.wrappers.noisy_uploads import NoisyUploads
from fedloom.methods.wrappers.robust import MEANS
from fedloom.methods.wrappers.wrapping import alone

Sampling = Literal["poisson", "fixed"]


def epsilon(
    noise: float, releases: int, rounds: int, drawn: int, clients: int, sampling: Sampling, delta: float
) -> float:
    """Return epsilon at `delta` after `rounds` of `releases` Gaussian releases each; `noise` is the standard deviation
    over the longest contribution. "poisson" `sampling` draws each client with probability drawn / clients, and
    neighbours differ by one client. "fixed" draws exactly `drawn` of `clients`, and neighbours replace one, which moves
    a sum twice as far."""
    if not rounds or not releases:
        return 0.0
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld, rdp

    noise /= math.sqrt(releases)  # several Gaussian releases of the same clients are one with less noise
    orders, spent = _each_round(noise, drawn, clients, sampling)
    bound = float(rdp.compute_epsilon(orders, rounds * spent, delta)[0])
    if sampling == "fixed" and drawn < clients:
        return bound
    # privacy losses on a grid: rounded up, so an upper bound too, and far tighter than that of Renyi divergence
    event = PoissonSampledDpEvent(drawn / clients, GaussianDpEvent(noise if sampling == "poisson" else noise / 2))
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    step = max(bound / 5000, 1e-5 * (10 / noise + 1 / noise**2))  # not finer than losses spread, where bounds are tiny
    accountant = pld.PLDAccountant(relation, value_discretization_interval=step)
    return min(bound, float(accountant.compose(event, rounds).get_epsilon(delta)))


@functools.lru_cache(maxsize=64)
def _each_round(noise: float, drawn: int, clients: int, sampling: Sampling) -> tuple[Any, Any]:
    import dp_accounting
    from dp_accounting import GaussianDpEvent, NeighboringRelation, rdp

    event: Any
    if sampling == "poisson":
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        event = dp_accounting.PoissonSampledDpEvent(drawn / clients, GaussianDpEvent(noise))
    else:
        relation = NeighboringRelation.REPLACE_ONE
        event = dp_accounting.SampledWithoutReplacementDpEvent(clients, drawn, GaussianDpEvent(noise / 2))
    with quiet_logger("absl"):  # a word on every order that it leaves out: the bound holds without them
        accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    return accountant.orders, accountant.rdp


_LOUD = 10.0  # noise over the longest mean change, from which accuracy falls in our measurements
_OWN = ("rounds", "releases")  # entries in the server's state
_LARGE = 0.01  # a delta above it is reported


class Options(fm.Options):
    """Options of differential privacy."""

    clip: float = fm.option(1.0, "Longest change of a client's trees that counts in full, as a 2-norm.", gt=0)
    table_clip: float = fm.option(
        1.0, "Longest change of a client's class tables that counts in full, as a 2-norm.", gt=0
    )
    row_clip: float | None = fm.option(
        None,
        "Longest row of a class table that counts in full, as a 2-norm: rows are cut one by one before the tables. "
        "Null cuts the tables alone.",
        gt=0,
        json_schema_extra=LATER,
    )
    noise: float = fm.option(1.0, "z, standard deviation of the noise as a multiple of the clipping length.", ge=0.01)
    delta: float | None = fm.option(None, "delta for which epsilon is reported. Null is 1 / clients.", gt=0, lt=1)
    sampling: Sampling = fm.option(
        "poisson",
        "poisson: each client is drawn independently, with the probability `participation`. fixed: a fixed number is "
        "drawn without replacement, as in any other run, for which a larger epsilon can be shown.",
    )


class DP(fm.Method):
    """Replaces means by means with noise. Server state: rounds with noise so far, and releases in each of them."""

    def __init__(self, options: fm.Options | None = None) -> None:
        super().__init__(options)
        self.dp_names = fm.names_of(self, "dp")
        self.dp = self.dp_names.options(Options, self.options)
        fm.averaged(self, "dp")
        # A federation must not compare sizes before the noise: one client would decide whether another one counts, and
        # weights that are full of noise set honest clients far apart. The clip bounds all uploads anyway.
        sends = {name: replace(sent, spread=math.inf) for name, sent in self.spec.sends.items()}
        self.spec = replace(self.spec, sends=sends, late=False)  # a late upload is outside its round's draw
        self.dp_sees = frozenset(self.spec.sends)  # what wrappers around this one send besides gets no noise
        self._refuse_own_uploads()

    def examine(self, tasks: fm.Tasks, participants: int) -> list[fm.Diagnostic]:
        self._refuse_own_uploads()  # of wrappers around this one, too
        if self.spec.arrivals is not None:
            why = "the budget counts rounds whose clients are drawn at random, and here the fastest come most often"
            raise fm.ConfigError(f"{self.name()}: {why}; take a method with rounds")
        for task in tasks:
            self._refuse_shared_buffers(task)
        for word, unnoised in (("before the first", super().opening()), ("after the last", super().closing())):
            if unnoised is not None:
                raise fm.ConfigError(f"{self.name()}: the round {word} one would send a mean without noise")
        if super().select.__func__ is not fm.Method.select:  # type: ignore[attr-defined]
            raise fm.ConfigError(
                f"{self.name()}: the method chooses its clients, and epsilon is of clients drawn by chance"
            )
        delta = self._target_delta(tasks[0].clients)
        if delta >= 1:
            raise fm.ConfigError(f"{self.name()}: delta = 1 / clients = 1 promises nothing; set dp_delta")
        diagnostics = super().examine(tasks, self._shown(tasks, participants))
        if delta > _LARGE:
            message = f"delta = {delta:g}: epsilon leaves out events of that chance; set dp_delta far below 1 / clients"
            diagnostics = [*diagnostics, fm.Diagnostic("dp.large_delta", message, delta)]
        diagnostics = [*diagnostics, *self._loud_noise(tasks[0], participants)]
        if find_spec("dp_accounting") is None:  # last, so that other refusals are the same in every environment
            raise MissingPackageError(f"{self.name()}: the package dp-accounting is not installed; install fedloom[dp]")
        return diagnostics

    def _loud_noise(self, task: fm.Task, participants: int) -> list[fm.Diagnostic]:
        """Warn if the noise in the mean of the weights is far longer than any mean change may be."""
        names = task.names(fm.TRAINABLE) - self.private_names(task) - task.frozen
        weights = sum(task.init[name].numel() for name in names) if "model" in self.noised() else 0
        ratio = self.dp.noise * math.sqrt(weights) / participants
        if ratio < _LOUD:
            return []
        message = (
            f"the noise of a round, over {weights:,} weights and {participants} clients, is about {ratio:.0f} times as "
            "long as the longest mean change (dp_clip): accuracy will suffer; more clients a round, a smaller net or "
            "less dp_noise helps"
        )
        return [fm.Diagnostic("dp.loud_noise", message, ratio)]

    def _refuse_shared_buffers(self, task: fm.Task) -> None:
        private_names = self.private_names(task)
        if statistics := sorted(task.names(frozenset({fm.Role.BN_STAT})) - private_names):
            raise fm.ConfigError(
                f"{self.name()}: batch norm's statistics are shared ({statistics[0]}, ...), and noise would make "
                "variances negative; take a net without batch norm, or a method that keeps it private, as fedbn"
            )
        shared_buffers = sorted(task.names(frozenset({fm.Role.BUFFER})) - private_names)
        if buffers := [name for name in shared_buffers if task.init[name].is_floating_point()]:
            raise fm.ConfigError(
                f"{self.name()}: buffers are shared ({buffers[0]}, ...), and noise would ruin them; take a net whose "
                "modules keep no statistics, and register constants with persistent=False"
            )

    def _shown(self, tasks: fm.Tasks, participants: int) -> int:
        own_tables = any(sent.dp == "noise" and sent.per_client for sent in self.spec.sends.values())
        return tasks[0].clients if own_tables and self.dp.sampling == "poisson" else participants

    def _refuse_own_uploads(self) -> None:
        per_client = [name for name, sent in self.spec.sends.items() if sent.per_client and sent.dp == "refuse"]
        if per_client:
            raise fm.ConfigError(
                f"{self.name()}: the server needs each client's own {', '.join(per_client)}, which noise on a mean "
                "does not hide; dp takes methods of which the server needs nothing but means and class tables"
            )

        unseen = sorted(self.spec.sends.keys() - self.dp_sees)
        if unseen:
            raise fm.ConfigError(
                f"{self.name()}: {', '.join(unseen)} would reach the server without noise; name dp after the wrapper "
                "that sends it"
            )

        sliced = [name for name, sent in self.spec.sends.items() if sent.sliced]
        if sliced:
            raise fm.ConfigError(
                f"{self.name()}: each client sends other entries of {', '.join(sliced)}, and how many clients sent a "
                "number would be told without noise; dp takes methods whose clients send trees of one shape"
            )

    def pack(
        self, upload: fm.Record, state: fm.Record, received: fm.Record, before: fm.Record, ctx: fm.ClientContext
    ) -> tuple[fm.Record, fm.Record]:
        # which labels a client records would be told without noise
        rest = {name: value for name, value in upload.items() if name != RECORDED}
        return super().pack(rest, state, received, before, ctx)

    def noised(self) -> set[str]:
        return {name for name, sent in self.spec.sends.items() if not sent.per_client}

    def select(self, server: fm.Record, count: int, ctx: fm.ServerContext) -> Sequence[int]:
        if self.dp.sampling == "fixed":
            return super().select(server, count, ctx)
        # where chance draws no client, one trains and its upload does not count
        stand_in = ctx.task.streams.numpy("dp.stand_in", ctx.round)
        return self._drawn_by_chance(count, ctx) or [int(stand_in.integers(ctx.task.clients))]

    def _drawn_by_chance(self, count: int, ctx: fm.ServerContext) -> list[int]:
        clients = ctx.task.clients
        chances = ctx.task.streams.numpy("dp.participants", ctx.round).random(clients)
        return [int(client) for client in np.flatnonzero(chances < count / clients)]

    def server_init(self, ctx: fm.ServerContext) -> fm.Record:
        return super().server_init(ctx) | {self.dp_names.entry(name): 0 for name in _OWN}

    def down(self, server: fm.Record, client: int, ctx: fm.ServerContext) -> fm.Record:
        return super().down(self._without_ledger(server), client, ctx)

    def aggregate(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> fm.Record:
        among, by_chance = ctx.participants or len(uploads), self.dp.sampling == "poisson" and ctx.participants
        drawn = set(self._drawn_by_chance(among, ctx) if by_chance else uploads)
        round_ = NoisyUploads(self.dp, self.spec.sends, uploads, server, ctx, drawn, among)
        next_server = super().aggregate(self._without_ledger(server), round_, ctx)
        rounds, releases = (self.dp_names.entry(name) for name in _OWN)
        # a round without class tables must not lower the number that epsilon is computed from
        max_releases = max(int(fm.get_number(server, releases)), round_.releases)
        return next_server | {rounds: int(fm.get_number(server, rounds)) + 1, releases: max_releases}

    def mean(
        self, uploads: fm.Uploads, key: str = "model", weights: fm.Weights = "samples", within: fm.Tree | None = None
    ) -> Any:
        if key not in self.noised():
            return super().mean(uploads, key, weights, within)
        if not isinstance(uploads, NoisyUploads):
            raise fm.ConfigError(f"{self.name()}: a mean of other uploads of {key} than a round's has no noise")
        return uploads.noisy(key)

    def reduce(self, key: str, values: Iterable[Value], weights: Iterable[float] | Tensor | ByNumber) -> Value:
        if key in self.noised():
            raise fm.ConfigError(f"{self.name()}: {key} is put together outside of Method.mean, where noise is added")
        return super().reduce(key, values, weights)

    def predictors(self, server: fm.Record, state: fm.Record | None, ctx: fm.ServerContext) -> dict[str, fm.Predictor]:
        return super().predictors(self._without_ledger(server), state, ctx)

    def diagnostics(self, server: fm.Record, uploads: fm.Uploads, ctx: fm.ServerContext) -> list[fm.Diagnostic]:
        return []

    def figures(self, server: fm.Record, ctx: fm.ServerContext) -> Mapping[str, float]:
        rounds, releases = (int(fm.get_number(server, self.dp_names.entry(name))) for name in _OWN)
        clients, dp = ctx.task.clients, self.dp
        delta = self._target_delta(clients)
        spent = epsilon(dp.noise, releases, rounds, ctx.participants or clients, clients, dp.sampling, delta)
        return {**super().figures(self._without_ledger(server), ctx), "epsilon": spent, "delta": delta}

    def _target_delta(self, clients: int) -> float:
        return 1 / clients if self.dp.delta is None else self.dp.delta

    def _without_ledger(self, server: fm.Record) -> fm.Record:
        return self.dp_names.without(server, *_OWN)


@fm.WRAPPERS.register("dp")
def with_dp(base: type[fm.Method]) -> type[fm.Method]:
    """Return `base` with noise on its means. Raises `ConfigError` if it has a robust mean, or this, already."""
    alone(base, "dp", MEANS, "a robust mean", "would find no mean to add noise to")
    return fm.wrapped(DP, base, "dp", Options)
