"""Keeps the client models of the rounds that `checkpoint.keep_clients` names, in the run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.records import wire_size
from fedloom.core.text import bytes_text, listed
from fedloom.engine import Federation
from fedloom.engine.observed_round import ObservedRound, RoundObserver
from fedloom.methods import Method
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.client_models import KeptRound, bytes_of, kept_rounds, save

_MIB = 1 << 20


class ClientModelKeeper:
    """Looks at the named rounds of a federation and stores them; it changes nothing.

    Args:
        config: the config of the run.
        federation: the federation, whose observer this becomes. One that it has already goes on to observe.
        folder: the run's folder of client models; None if the run has no folder.
        note: called with a sentence for each round that is kept or left out.

    Raises `ConfigError` for a run without a folder, and if the models would take more than the config allows.
    """

    def __init__(self, config: RunConfig, federation: Federation, folder: Path, note: Callable[[str], None]) -> None:
        self._federation, self._folder, self._note = federation, folder, note
        self._fingerprint, self._rounds = config.fingerprint(), frozenset(config.checkpoint.keep_clients)
        self._limit, self._bytes = config.checkpoint.keep_clients_mib * _MIB, 0
        self._inner: RoundObserver | None = federation.observer
        self._observed: ObservedRound | None = None
        self._refuse_too_many(federation)
        federation.observer = self

    def _refuse_too_many(self, federation: Federation) -> None:
        models = max(wire_size({"model": task.init}) for task in federation.tasks)
        expected = len(self._rounds) * (federation.clients_per_round + 2) * models
        if expected > self._limit:
            raise ConfigError(
                f"checkpoint.keep_clients: {len(self._rounds)} rounds of {federation.clients_per_round} clients take "
                f"about {bytes_text(expected)}, above checkpoint.keep_clients_mib = {self._limit // _MIB}; name fewer "
                "rounds, or raise it"
            )

    def resume(self, last: int) -> None:
        """Count what is kept already, and report named rounds that are over and were not kept.

        Args:
            last: the last finished round.
        """
        kept = [round_ for round_ in kept_rounds(self._folder) if round_ <= last]  # later ones are written again
        self._bytes = sum(bytes_of(self._folder, round_) for round_ in kept)
        missing = sorted(self._rounds.intersection(range(1, last + 1)).difference(kept))
        if missing:
            rounds = f"round {missing[0]}, which is" if len(missing) == 1 else f"rounds {listed(missing)}, which are"
            self._note(
                f"checkpoint.keep_clients: nothing is kept of {rounds} over and ran without it; run again with --fresh"
            )

    def noting(self, method: Method) -> Method:
        return method if self._inner is None else self._inner.noting(method)

    def observe(self, observed: ObservedRound) -> None:
        if self._inner is not None:
            self._inner.observe(observed)
        self._observed = observed if observed.ctx.round in self._rounds else None

    def store(self) -> float:
        """Store the round that was observed last, with the states that its participants keep, if it is a named one.

        Returns the seconds that it took.
        """
        observed, self._observed = self._observed, None
        if observed is None:
            return 0.0
        began, round_, states = time.perf_counter(), observed.ctx.round, self._federation.states
        kept = KeptRound(
            round_,
            observed.before,
            observed.after,
            observed.uploads,
            {client: states[client] for client in observed.uploads if client in states},
        )
        size = sum(map(wire_size, [kept.before, kept.after, *kept.uploads.values(), *kept.states.values()]))
        if self._bytes + size > self._limit:
            self._note(
                f"client models of round {round_} are not kept: {bytes_text(size)} more would be above "
                f"checkpoint.keep_clients_mib = {self._limit // _MIB}"
            )
        else:
            self._bytes += save(self._folder, kept, self._fingerprint)
            total = bytes_text(self._bytes)
            self._note(f"client models of round {round_} are kept: {len(kept.uploads)} clients, {total} by now")
        return time.perf_counter() - began


def client_model_keeper(
    config: RunConfig, federation: Federation, folder: Path | None, note: Callable[[str], None]
) -> ClientModelKeeper | None:
    """Make the keeper of a run; None if its config names no rounds.

    Args:
        config: the config of the run.
        federation: the federation.
        folder: the run's folder of client models; None if the run has no folder.
        note: called with a sentence for each round that is kept or left out.

    Raises `ConfigError` where client models cannot be kept.
    """
    if not config.checkpoint.keep_clients:
        return None
    if federation.scenario.remote:
        raise ConfigError(
            "checkpoint.keep_clients: stores what single clients send, so it is for simulations; leave it out here"
        )
    if folder is None:
        raise ConfigError("checkpoint.keep_clients: models are kept in a run folder; give the run one (--out, out=...)")
    return ClientModelKeeper(config, federation, folder, note)
