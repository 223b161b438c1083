"""The version of fedloom that made a run; runs of several versions are not mixed by accident. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError, short_repr
from fedloom.core.text import counted, listed
from fedloom.runs.storage.data_record import KEY, refuse_mixed_data
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder


def version_of(run: Path) -> str | None:
    """Return the version that made a run or last resumed it; None if env.json does not say.

    Raises `RunFolderError` if env.json is damaged.
    """
    versions = (RunFolder(run).read_json("env.json") or {}).get("versions", {})
    if not isinstance(versions, dict):
        raise RunFolderError(
            f"{run / 'env.json'}: damaged (versions = {short_repr(versions)}); delete the run folder and run again"
        )
    version = versions.get("fedloom")
    return str(version) if version else None


def refuse_mixed_results(results: Iterable[RunData]) -> None:
    """Apply `refuse_mixed` to finished runs. Raises `RunFolderError` if runs of one source had different data."""
    in_folders = {result.folder: result for result in results if result.folder is not None}
    refuse_mixed({str(folder): version_of(folder) for folder in in_folders})
    refuse_mixed_data((str(folder), result.scenario.get(KEY)) for folder, result in in_folders.items())


def refuse_mixed(versions: Mapping[str, str | None], more: bool = False) -> None:
    """Raise `ConfigError` for runs of different versions.

    Args:
        versions: the version of each run, by the name for messages; None if unknown.
        more: whether this version is about to add runs.
    """
    recorded = {run: version for run, version in versions.items() if version is not None}
    counts = Counter(recorded.values())
    if len(counts.keys() | ({__version__} if more else set())) < 2:
        return
    counted_versions = listed(f"{counted(n, 'run')} of {version}" for version, n in sorted(counts.items()))
    foreign_run = next(run for run, version in recorded.items() if version != __version__)
    raise ConfigError(
        f"runs of different versions of fedloom: {counted_versions}; {foreign_run} is of {recorded[foreign_run]}, "
        f"this is {__version__}: keep each version in a folder of its own, or --allow-mixed joins them"
    )
