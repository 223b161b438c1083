"""Take a run back to an earlier checkpoint: what came after it is deleted, and the next resume goes on from there."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.storage.checkpoint import checkpoints_by_round
from fedloom.runs.storage.round_folders import finished_folders, round_of
from fedloom.runs.storage.run_folder import RunFolder

_FILES_OF_A_FINISHED_RUN = ("summary.json", "metrics.parquet", "report.html")


def rewind(path: Path, round_: int) -> list[int]:
    """Delete the checkpoints after `round_` in a run folder, and what a finished run wrote at its end.

    Returns the rounds that were deleted. Raises `ConfigError` that names the rounds at hand if there is no checkpoint
    of this one, `RunFolderError` for what is no run folder.
    """
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
        for name in _FILES_OF_A_FINISHED_RUN:
            (path / name).unlink(missing_ok=True)
        later = {number: checkpoint for number, checkpoint in checkpoints.items() if number > round_}
        for _, checkpoint in sorted(later.items(), reverse=True):  # whatever interrupts this leaves a run that resumes
            shutil.rmtree(checkpoint)
        for kept in finished_folders(folder.client_models):
            if round_of(kept) > round_:
                shutil.rmtree(kept)
        return sorted(later)
    finally:
        folder.close()
