"""Checkpoints: a federation between two rounds, on disk, in folders that are complete or absent.
checkpoint/round-000012/ holds meta.json, server.safetensors and the client states (`state_archive.py`). Equal
federations have the same sha256, whenever checkpoints were written. Checkpoints may be shared, and checksums do not
protect against states that were changed on purpose, so a run also checks the states before it resumes."""

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from fedloom._version import __version__
from fedloom.core.errors import CheckpointError, ClientError, ConfigError, RunFolderError
from fedloom.core.files import json_digest
from fedloom.core.records import Record, RecordError, Value
from fedloom.core.tables import ClassTable
from fedloom.engine import Federation
from fedloom.runs.storage import folders, state_archive
from fedloom.runs.storage.log import START, LogPosition, MetricsLog
from fedloom.runs.storage.run_folder import RunFolder

_FORMAT = 2
_SERVER, _CLOCK = "server.safetensors", "clock.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A federation between two rounds; `path` and `sha256` (of the content) are set if it is on disk. The `clock` has
    virtual time and uploads that are on their way; it is empty without."""

    round: int
    server: Record
    states: Mapping[int, Record]
    metrics: LogPosition = START
    path: Path | None = None
    sha256: str = ""
    clock: Record = field(default_factory=dict)


def save(
    folder: Path,
    checkpoint: Checkpoint,
    fingerprint: str,
    keep: int,
    *,
    previous: Path | None = None,
    changed: Collection[int] = (),
    best_round: int | None = None,
    for_rewind: bool = False,
) -> tuple[Path, str]:
    """Write a checkpoint of the state into `folder`, delete all but the newest `keep` and that of `best_round`, and
    return its folder and sha256. Other states than those of `changed` clients are shared with `previous`. `for_rewind`
    also keeps some older ones. Raises `OSError`, leaving the older checkpoints usable."""
    target = folders.round_folder(folder, checkpoint.round)
    with folders.written_whole(target) as partial:
        server = state_archive.write_record(partial / _SERVER, checkpoint.server)
        index = state_archive.write(partial, checkpoint.round, checkpoint.states, changed, previous)
        content = {"format": _FORMAT, "version": __version__, "fingerprint": fingerprint, "round": checkpoint.round}
        content |= {"server": server, "clients": state_archive.content_digest(index)}
        if checkpoint.clock:
            content["clock"] = state_archive.write_record(partial / _CLOCK, checkpoint.clock)
        # without the metrics: their seconds differ between equal runs, and equal runs have equal checkpoints
        sha256, digest = json_digest(content), folders.file_digest(partial / state_archive.INDEX)
        meta = content | {"sha256": sha256, "metrics": checkpoint.metrics._asdict(), "index": digest}
        state_archive.write_meta(partial, meta)
    stored = folders.finished_folders(folder)
    stale = [old for old in stored if folders.round_of(old) <= checkpoint.round][:-keep]
    for old in stored:
        round_ = folders.round_of(old)
        kept = round_ == best_round or (for_rewind and is_kept_for_rewind(round_, checkpoint.round))
        # newer ones could not be used when the run resumed, so it went back
        if round_ > checkpoint.round or (old in stale and not kept):
            shutil.rmtree(old, ignore_errors=True)  # the next save tries again
    return target, sha256


def is_kept_for_rewind(round_: int, newest: int) -> bool:
    """Whether the checkpoint of a round is kept for a run that may be taken back: those of the rounds that a power of
    two divides, up to twice that power ago. So about 2 log2(rounds) stay.

        >>> [round_ for round_ in range(1, 33) if is_kept_for_rewind(round_, newest=33)]
        [16, 24, 28, 30, 31, 32]
    """
    return newest - round_ <= 2 * (round_ & -round_)


def checkpoints_by_round(folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by round, ascending."""
    paths = (path for path in folders.finished_folders(folder) if path.is_dir() and not path.is_symlink())
    return {folders.round_of(path): path for path in paths}


def load_latest(
    folder: Path, fingerprint: str, warn: Callable[[str], None], log: MetricsLog | None = None
) -> Checkpoint | None:
    """Return the newest checkpoint of a `folder`, or None if there is none. One that is damaged, or whose metrics are
    not in the `log`, is reported by `warn` and the one before is taken. Raises `CheckpointError` if none is usable."""
    unusable: list[tuple[str, str]] = []
    for path in reversed(folders.finished_folders(folder)):
        try:
            checkpoint = _load(path, fingerprint)
            if log is None or log.starts_with(checkpoint.metrics):
                break
            unusable.append((path.name, f"does not fit {log.path.name}, where rows were lost or changed"))
        except state_archive.DAMAGE as error:
            unusable.append((path.name, f"is damaged ({error})"))
    else:
        if unusable:
            name, why = unusable[0]
            remedy = "put the files back, or delete the run folder and run again"
            raise CheckpointError(f"{folder}: none of {len(unusable)} checkpoints can be used ({name} {why}); {remedy}")
        return None
    for name, why in unusable:
        warn(f"checkpoint {name} {why}; falling back to the one before it")
    return checkpoint


def load_round(folder: Path, round_: int, fingerprint: str) -> Checkpoint | None:
    """Return the checkpoint of `round_`, None if `folder` has none. Raises `CheckpointError` if it cannot be used."""
    path = folders.round_folder(folder, round_)
    if not path.is_dir():
        return None
    try:
        return _load(path, fingerprint)
    except state_archive.DAMAGE as error:
        raise CheckpointError(f"{path}: damaged ({error}); run again with existing='fresh'") from None


def _load(path: Path, fingerprint: str) -> Checkpoint:
    meta = state_archive.read_meta(path, _FORMAT, fingerprint)
    metrics = LogPosition(**meta["metrics"])
    if type(metrics.size) is not int or metrics.size < 0:
        raise ValueError("meta.json: need a whole number for the size of the metrics")
    server = state_archive.read_record(path / _SERVER, meta["server"])
    states = state_archive.read_states(path, meta["index"])
    clock = state_archive.read_record(path / _CLOCK, meta["clock"]) if "clock" in meta else {}
    return Checkpoint(meta["round"], server, states, metrics, path, meta["sha256"], clock)


_FILES_OF_A_FINISHED_RUN = ("summary.json", "metrics.parquet", "predictions.parquet", "report.html")


def rewind(path: Path, round_: int) -> list[int]:
    """Delete the checkpoints after `round_` in a run folder, and the files that a finished run wrote at its end; return
    the deleted rounds. Raises `ConfigError` if this round has no checkpoint, `RunFolderError` if there is no run."""
    if not (path / "config.yaml").is_file():
        raise RunFolderError(f"{path}: holds no run; name the folder of a run")
    folder = RunFolder(path)
    folder.open()
    try:
        folder.check_files()
        checkpoints = checkpoints_by_round(folder.checkpoints)
        if round_ not in checkpoints:
            rounds = ", ".join(map(str, checkpoints)) or "none"
            raise ConfigError(f"--from-round {round_}: {path} has no checkpoint of that round; it has rounds {rounds}")
        # First, because a run without a summary is unfinished, and resumes whether or not the rest has been deleted.
        for name in _FILES_OF_A_FINISHED_RUN:
            (path / name).unlink(missing_ok=True)
        later = [number for number in checkpoints if number > round_]
        for number in reversed(later):  # whatever interrupts this leaves a run that resumes
            shutil.rmtree(checkpoints[number])
        for kept in folders.finished_folders(folder.client_models):
            if folders.round_of(kept) > round_:
                shutil.rmtree(kept)
        return later
    finally:
        folder.close()


_ADVICE = "put the file back, or delete the run folder and run again"


def restore(federation: Federation, start: Checkpoint) -> None:
    """Go on from a checkpoint. Raises `CheckpointError` if a state is not like that with which the method begins."""
    if why := find_misfit(start.server, federation.server):
        raise CheckpointError(f"{start.path}: the server's state does not fit this config ({why}); {_ADVICE}")
    begun: dict[int, Record] = {}
    for client, state in start.states.items():
        if not 0 <= client < federation.scenario.clients:
            problem = f"holds a state of client {client}, whom the run does not have; {_ADVICE}"
            raise CheckpointError(f"{start.path}: {problem}")
        # one fresh state per architecture is compared with all, because it may be costly to make
        group = federation.task_of(client).group
        if group not in begun:
            begun[group] = federation.method.client_init(federation.client_context(client, start.round))
        if why := find_misfit(state, begun[group]):
            problem = f"the state of client {client} does not fit this config ({why}); {_ADVICE}"
            raise CheckpointError(f"{start.path}: {problem}")
        federation.states[client] = state
    if federation.clock is not None and start.clock:
        try:
            federation.clock.restore(start.clock)
        except (RecordError, LookupError, ValueError) as error:
            raise misfit_error(start, error) from None
    federation.round, federation.server = start.round, start.server
    federation.states.changed.clear()


@contextlib.contextmanager
def report_misfits(start: Checkpoint | None, federation: Federation) -> Iterator[None]:
    """Turn lookups that fail in the first round after `start` into a `CheckpointError`: its states are incomplete."""
    try:
        yield
    except (ClientError, RecordError, LookupError) as error:
        cause = error.__cause__ if isinstance(error, ClientError) else error
        first = isinstance(error, RecordError) or (start is not None and federation.round == start.round)
        if start is None or not first or not isinstance(cause, RecordError | LookupError):
            raise
        raise misfit_error(start, cause) from error


def misfit_error(checkpoint: Checkpoint, cause: BaseException) -> CheckpointError:
    """Return the error for a checkpoint whose states lack entries that the method or its nets read."""
    why = f"{type(cause).__name__}: {cause}" if not isinstance(cause, RecordError) else cause
    return CheckpointError(f"{checkpoint.path}: does not fit this config ({why}); {_ADVICE}")


def find_misfit(record: Record, begun: Record) -> str | None:
    """Describe the first entry of `record` whose type, names or shapes differ from those with which the method has
    `begun`; None if all fit. Entries may come and go, and the first axis of tables and tensors may grow."""
    for name, value in record.items():
        if name in begun and _layout(value) != _layout(begun[name]):
            return f"'{name}' is {_description(value)}, not {_description(begun[name])}"
    return None


def _layout(value: Value) -> object:
    if isinstance(value, dict):
        return {key: (tuple(tensor.shape), tensor.dtype) for key, tensor in value.items()}
    if isinstance(value, ClassTable):
        return "table", value.values.dim(), tuple(value.values.shape[-2:])
    return ("tensor", value.dim()) if isinstance(value, Tensor) else "scalar"


def _description(value: Value) -> str:
    if isinstance(value, dict):
        entries = sum(tensor.numel() for tensor in value.values())
        return f"a tree of {len(value)} tensors with {entries} entries ({', '.join(value)[:60]})"
    if isinstance(value, ClassTable):
        return f"a table of shape {tuple(value.values.shape)}"
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
