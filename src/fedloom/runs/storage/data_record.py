"""Records of the data and the machine of a run: digests in scenario.json, hardware and versions in env.json.
Two runs with the same keys of a source had the same data if the digests of the source are equal; two with the same
scenario and seed if the digests of what was dealt are. A file that changes under its path changes both."""

import functools
import json
import os
import platform
import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedloom._version import __version__
from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_digest
from fedloom.runs.storage import folders
from fedloom.runs.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedloom.data import Scenario
    from fedloom.runs.config.run_config import RunConfig


KEY = "data"
_SCENARIO = "scenario.json"
_DIGITS = 16


class OtherDataError(RunFolderError):
    """Data that are not those of an earlier run under the same name."""


def data_record_of(config: "RunConfig", scenario: "Scenario") -> dict[str, Any] | None:
    """Return the record of the data in scenario.json; None where nodes keep their samples to themselves."""
    if scenario.remote:
        return None
    source, partition = config.scenario.parts()
    keys = {"source": config.scenario.source} | source.model_dump(mode="json")
    seed = config.seed if config.scenario.seed is None else config.scenario.seed
    paths = {value for part in (source, partition) for _, value in part if isinstance(value, Path)}
    return {
        "source": keys,
        "source_digest": scenario.source_digest,
        "scenario": json_digest({**config.scenario.resolved(), "seed": seed})[:_DIGITS],
        "dealt_digest": scenario.dealt_digest(),
        "files": sorted(map(str, paths)),
    }


def refuse_other_data(folder: RunFolder, record: Mapping[str, Any] | None) -> None:
    """Raise `OtherDataError` if the data (`record`) are not those of the folder's run, or of other runs beside it."""
    earlier = (folder.read_json(_SCENARIO) or {}).get(KEY)
    neighbours = ((path, read_record(path)) for path in _runs_beside(folder.path))
    for path, earlier_record in [(folder.path, earlier), *neighbours]:
        refuse_changed(path, earlier_record, record)


def refuse_changed(run: Path, earlier: Any, record: Any) -> None:
    """Raise `OtherDataError` if `record` differs from `earlier`, the record in the folder `run`."""
    if name := _changed_data(earlier, record):
        raise OtherDataError(
            f"{name}: not the data that the run in {run} was dealt (a digest of them is kept there); put the file "
            "back, or train in another folder (out=...)"
        )


def refuse_mixed_data(records: Iterable[tuple[str, Any]]) -> None:
    """Raise `OtherDataError` for runs of one source on different data."""
    first: dict[str, tuple[str, Any]] = {}
    for run, record in records:
        for kind, key in (_keys(record) or {}).items():
            earlier_run, earlier = first.setdefault(f"{kind} {key}", (run, record))
            if name := _changed_data(earlier, record):
                remedy = "run one of them again, or keep them in separate folders"
                raise OtherDataError(f"{name}: {earlier_run} and {run} had different data under this name; {remedy}")


def read_record(run: Path) -> Any:
    """The record in a run folder; None without one, and where its file is damaged (said when runs are joined)."""
    try:
        stat = (run / _SCENARIO).stat()
    except OSError:
        return None
    return _read(run / _SCENARIO, (stat.st_mtime_ns, stat.st_size))


def _changed_data(earlier: Any, record: Any) -> str | None:
    """The name of the data that differ between two records that should have the same: the files that keys name, else
    the source. None where none do, and where one of the runs is of a version that kept no record."""
    keys_before, keys = _keys(earlier), _keys(record)
    if keys_before is None or keys is None:
        return None
    for kind, digest in (("source", "source_digest"), ("scenario", "dealt_digest")):
        if keys_before[kind] == keys[kind] and earlier[digest] and record[digest] and earlier[digest] != record[digest]:
            files = record.get("files")
            named = ", ".join(map(str, files)) if isinstance(files, list) else ""
            return named or f"source {record['source'].get('source')}"
    return None


def _keys(record: Any) -> dict[str, str] | None:
    """The keys by which a record is compared with others; None for a malformed record."""
    match record:
        case {"source": dict() as source, "scenario": str() as scenario, "source_digest": str(), "dealt_digest": str()}:
            return {"source": json.dumps(source, sort_keys=True), "scenario": scenario}
    return None


def _runs_beside(run: Path) -> Iterator[Path]:
    """Yield the other runs of the comparison or study that a run folder is in, with the trials of a study."""
    # a trial lies one folder deeper than a cell: study/trials/run
    for root in (run.parent, run.parent.parent):
        if folders.folder_kind(root) in ("comparison", "study"):
            for scenario in sorted([*root.glob(f"*/{_SCENARIO}"), *root.glob(f"trials/*/{_SCENARIO}")]):
                if scenario.parent != run:
                    yield scenario.parent
            return


@functools.lru_cache(maxsize=4096)  # every cell of a study asks for the records of all
def _read(path: Path, changed_at: tuple[int, int]) -> Any:
    # `changed_at` is part of the cache's key alone: a file that has changed is read again.
    try:
        return (RunFolder(path.parent).read_json(path.name) or {}).get(KEY)
    except RunFolderError:
        return None


_PACKAGES = ("torch", "numpy", "scikit-learn", "safetensors", "pydantic")


def describe_environment() -> dict[str, Any]:
    """Versions of the packages that decide numbers, the system, the processor and the number of its cores."""
    versions = {"fedloom": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    processor = _proc_value("/proc/cpuinfo", "model name")
    processor = (platform.processor() or platform.machine()) if processor is None else processor
    return {"versions": versions, "system": platform.system(), "processor": processor, "cores": os.cpu_count()}


def on_kept_device(config: "RunConfig", folder: RunFolder) -> "RunConfig":
    """Return the config with the kind of device on which the folder's unfinished run began; others have other bits."""
    # version 0.1 knew no auto and kept the device in the config alone
    stored = (folder.read_config() or {}).get("engine", {}).get("device", "auto")
    name = str((folder.read_json("env.json") or {}).get("device", stored))
    # env.json names the model, as "cuda (NVIDIA H200)", and a config may name the card, as "cuda:1".
    kind, asked_kind = (re.split("[ :]", text)[0] for text in (name, config.engine.device))
    if kind in ("auto", asked_kind):
        return config
    if asked_kind != "auto":
        raise RunFolderError(
            f"{folder.path}: its run began on {kind}, and a resumed run stays on its kind of device; continue with "
            f"engine.device={kind}, or start again with existing='fresh'"
        )
    import torch

    if kind == "cuda" and not torch.cuda.is_available():
        detail = "continue where there is one, or start again with existing='fresh'"
        raise RunFolderError(f"{folder.path}: its run began on {name}, and torch finds no GPU here; {detail}")
    return config.model_copy(update={"engine": config.engine.model_copy(update={"device": kind})})


def environment_line(machine: Mapping[str, Any]) -> str:
    """Return an environment in one line: processor, cores and the versions that decide numbers."""
    versions = machine["versions"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, Python {versions['python']}, torch {versions['torch']}, "
        f"fedloom {versions['fedloom']}"
    )


def peak_memory_mb() -> float:
    """Return the largest resident size of this process so far, in MiB."""
    # from /proc where there is one: `getrusage` starts from the size of the process that started this one
    if size := _proc_value("/proc/self/status", "VmHWM"):
        return round(int(size.split()[0]) / 1024, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 if platform.system() == "Linux" else 1024**2), 1)


def _proc_value(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)
