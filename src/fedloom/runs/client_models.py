"""Saves and reads the client models of the rounds that `checkpoint.keep_clients` names.
client_models/round-000012/: meta.json (format, version, fingerprint, round, checksums), before.safetensors and
after.safetensors (states of the server), uploads/ and states/ (of the participants, see `state_archive.py`)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError, ConfigError
from fedloom.core.records import Record, wire_size
from fedloom.core.text import bytes_text, listed
from fedloom.engine import Federation
from fedloom.engine.round_report import ObservedRound, RoundObserver
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage import folders, state_archive

_FORMAT, _MIB = 1, 1 << 20
_SERVER_STATES, _BY_CLIENT = ("before", "after"), ("uploads", "states")


@dataclass(frozen=True, slots=True)
class KeptRound:
    """A kept round: the server before and after it, and by client id the uploads as aggregated and private states."""

    round: int
    before: Record
    after: Record
    uploads: Mapping[int, Record]
    states: Mapping[int, Record]


def save_kept_round(folder: Path, kept: KeptRound, fingerprint: str) -> int:
    """Write the round `kept`, whole or not at all, and return the bytes that it takes in `folder`."""
    with folders.written_whole(folders.round_folder(folder, kept.round)) as partial:
        digests = {
            name: state_archive.write_record(partial / f"{name}.safetensors", getattr(kept, name))
            for name in _SERVER_STATES
        }
        for name in _BY_CLIENT:
            (partial / name).mkdir()
            records: Mapping[int, Record] = getattr(kept, name)
            state_archive.write(partial / name, kept.round, records, changed=records, previous=None)
            digests[name] = folders.file_digest(partial / name / state_archive.INDEX)
        meta = {"format": _FORMAT, "version": __version__, "fingerprint": fingerprint, "round": kept.round, **digests}
        state_archive.write_meta(partial, meta)
        return _bytes_in(partial)


def _bytes_in(path: Path) -> int:
    return sum(part.stat().st_size for part in path.rglob("*") if part.is_file())


def kept_rounds(folder: Path) -> tuple[int, ...]:
    """The rounds whose client models are kept, ascending."""
    return tuple(map(folders.round_of, folders.finished_folders(folder)))


def load_kept_round(folder: Path, round_: int, fingerprint: str) -> KeptRound:
    """Return the client models of `round_` in `folder`; `CheckpointError` for damage or another `fingerprint`."""
    path = folders.round_folder(folder, round_)
    try:
        meta = state_archive.read_meta(path, _FORMAT, fingerprint)
        before, after = (state_archive.read_record(path / f"{name}.safetensors", meta[name]) for name in _SERVER_STATES)
        uploads, states = (state_archive.read_states(path / name, meta[name]) for name in _BY_CLIENT)
    except state_archive.DAMAGE as error:
        raise CheckpointError(f"{path}: damaged ({error}); run again with existing='fresh'") from None
    return KeptRound(round_, before, after, uploads, states)


class ClientModelKeeper:
    """Observes a federation, after an observer that it has already, and stores the named rounds. `note` is called with
    a sentence for each. Raises `ConfigError` where client models cannot be kept, or would take more than is allowed."""

    def __init__(
        self, config: RunConfig, federation: Federation, folder: Path | None, note: Callable[[str], None]
    ) -> None:
        if federation.scenario.remote:
            problem = "stores what single clients send, so it is for simulations; leave it out here"
            raise ConfigError(f"checkpoint.keep_clients: {problem}")
        if folder is None:
            remedy = "give the run one (out=...)"
            raise ConfigError(f"checkpoint.keep_clients: models are kept in a run folder; {remedy}")
        self._federation, self._folder, self._note = federation, folder, note
        self._fingerprint, self._rounds = config.fingerprint(), frozenset(config.checkpoint.keep_clients)
        self._limit, self._bytes = config.checkpoint.keep_clients_mib * _MIB, 0
        self._inner: RoundObserver | None = federation.observer
        self._observed: ObservedRound | None = None
        self._refuse_too_many(federation)
        federation.observer = self

    def _refuse_too_many(self, federation: Federation) -> None:
        models = max(wire_size({"model": task.init}) for task in federation.tasks)
        # uploads of a round, and the server before and after it; private states come on top, when they are known
        expected = len(self._rounds) * (federation.clients_per_round + 2) * models
        if expected > self._limit:
            raise ConfigError(
                f"checkpoint.keep_clients: {len(self._rounds)} rounds of {federation.clients_per_round} clients take "
                f"about {bytes_text(expected)}, above checkpoint.keep_clients_mib = {self._limit // _MIB}; name fewer "
                "rounds, or raise it"
            )

    def resume(self, last: int) -> None:
        """Add up the bytes of the rounds already kept, and report named rounds that were missed."""
        kept = [round_ for round_ in kept_rounds(self._folder) if round_ <= last]  # later ones are written again
        self._bytes = sum(_bytes_in(folders.round_folder(self._folder, round_)) for round_ in kept)
        missing = sorted(self._rounds.intersection(range(1, last + 1)).difference(kept))
        if missing:
            rounds = f"round {missing[0]}, which is" if len(missing) == 1 else f"rounds {listed(missing)}, which are"
            remedy = "run again with existing='fresh'"
            self._note(f"checkpoint.keep_clients: nothing is kept of {rounds} over and ran without it; {remedy}")

    def observe(self, observed: ObservedRound) -> None:
        if self._inner is not None:
            self._inner.observe(observed)
        self._observed = observed if observed.ctx.round in self._rounds else None

    def store(self) -> float:
        """Store the round that was observed last if it is a named one, and return the seconds that this took."""
        observed, self._observed = self._observed, None
        if observed is None:
            return 0.0
        began, round_, states = time.perf_counter(), observed.ctx.round, self._federation.states
        # Here and not in `observe`, because a round stores its clients' states after the observers have looked.
        of_participants = {client: states[client] for client in observed.uploads if client in states}
        kept = KeptRound(round_, observed.before, observed.after, observed.uploads, of_participants)
        size = sum(map(wire_size, [kept.before, kept.after, *kept.uploads.values(), *kept.states.values()]))
        if self._bytes + size > self._limit:
            problem = f"{bytes_text(size)} more would be above checkpoint.keep_clients_mib = {self._limit // _MIB}"
            self._note(f"client models of round {round_} are not kept: {problem}")
        else:
            self._bytes += save_kept_round(self._folder, kept, self._fingerprint)
            total = bytes_text(self._bytes)
            self._note(f"client models of round {round_} are kept: {len(kept.uploads)} clients, {total} by now")
        return time.perf_counter() - began
