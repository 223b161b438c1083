"""Read what has finished from a folder: a run, a comparison, a study."""

from __future__ import annotations

import logging
from pathlib import Path

from fedloom.api.study import Study
from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_home
from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.runs.storage.finished_runs import STUDY_FILE, is_run, unfinished
from fedloom.runs.studies.collect import collect

_log = logging.getLogger(__name__)


def read(folder: Path | str, allow_mixed: bool = False) -> Result | Comparison:
    """Read finished runs: the folder of a run gives its `Result`, that of a comparison or a study a `Comparison`.

    A folder with several of them gives one comparison of all runs. Runs that have not finished are left out, and a
    warning of the log counts them.

    Args:
        folder: the folder.
        allow_mixed: join runs of different versions of fedloom.

    Raises `ConfigError` for a folder without a finished run, and `RunFolderError` for damaged files.
    """
    path = expand_home(folder)
    if path.is_file():
        raise ConfigError(f"{path}: a file; runs are folders, and fl.load reads the file of a model")
    if (path / STUDY_FILE).exists():
        return Study.read(path).results(allow_mixed)
    if is_run(path):
        result = Result.read(path)
        if result is None:
            raise ConfigError(f"{path}: {unfinished(path)}; the same call with existing='resume' goes on with it")
        return result
    collected = collect([path], allow_mixed)
    for left_out, why in collected.left_out:
        _log.warning("note: %s is left out: %s", left_out, why)
    return Comparison(collected.results)
