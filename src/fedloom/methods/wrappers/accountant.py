"""The privacy cost of noisy rounds: epsilon at a delta, by the accountant of Google's `dp-accounting`."""

from __future__ import annotations

import functools
from typing import Any, Literal

from fedloom.core.console import quiet_logger
from fedloom.core.errors import MissingPackageError

Sampling = Literal["poisson", "fixed"]


def require_accountant(name: str) -> None:
    """Raises `MissingPackageError` where `dp-accounting` is not installed; `name` needs it."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        raise MissingPackageError(f"{name}: the package dp-accounting is not installed; install fedloom[dp]") from None


def epsilon(
    noise: float, releases: int, rounds: int, drawn: int, clients: int, sampling: Sampling, delta: float
) -> float:
    """Return epsilon at `delta` after rounds of Gaussian releases; 0 for none.

    Args:
        noise: standard deviation over the longest contribution of a client.
        releases: releases of a round.
        rounds: number of rounds.
        drawn: number of clients that a round draws.
        clients: number of all clients.
        sampling: "poisson", each is drawn independently with probability drawn / clients, and neighbours differ by a
            client that is there or not; "fixed", exactly so many are drawn without replacement, and neighbours differ
            by a client that is another one, which moves a sum twice as far.
        delta: probability, in (0, 1), with which the bound may fail.
    """
    if not rounds or not releases:
        return 0.0
    from dp_accounting import rdp

    orders, spent = _each_round(noise, releases, drawn, clients, sampling)
    return float(rdp.compute_epsilon(orders, rounds * spent, delta)[0])


@functools.lru_cache(maxsize=64)
def _each_round(noise: float, releases: int, drawn: int, clients: int, sampling: Sampling) -> tuple[Any, Any]:
    """The orders of Renyi divergence, and what a round spends of each."""
    import dp_accounting
    from dp_accounting import NeighboringRelation, rdp

    event: Any
    if sampling == "poisson":
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        round_ = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise)] * releases)
        event = dp_accounting.PoissonSampledDpEvent(drawn / clients, round_)
    else:
        relation = NeighboringRelation.REPLACE_ONE
        round_ = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(noise / 2)] * releases)
        event = dp_accounting.SampledWithoutReplacementDpEvent(clients, drawn, round_)
    with quiet_logger("absl"):  # a word on every order that it leaves out: the bound holds without them
        accountant = rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    return accountant.orders, accountant.rdp
