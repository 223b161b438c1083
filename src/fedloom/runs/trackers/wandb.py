"""Weights & Biases (extra `wandb`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row, folder_name
from fedloom.runs.trackers.tracker import Tracker, import_tracker, measures, summary_numbers


class WandB(Tracker):
    """Log the config, measures by round, and the summary.

    A run that is resumed or repeated has the same id as before. Online, W&B takes each round of an id once, so delete
    the entry before you repeat a run with `fresh`. Raises `ConfigError` if wandb is not installed, and wandb's own
    errors.

    Args:
        project: name of the W&B project.
        mode: "online" sends while the run goes; "offline" only writes below `folder`, for `wandb sync`.
        folder: folder of W&B's files.
    """

    def __init__(
        self,
        project: str = "fedloom",
        mode: Literal["online", "offline"] = "online",
        folder: Path | str = "runs",
    ) -> None:
        super().__init__()
        import_tracker("wandb", "wandb")
        self.project, self.mode, self.folder = project, mode, Path(folder)
        self._run: Any = None

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = import_tracker("wandb", "wandb").init(
            project=self.project,
            id=folder_name(config),
            name=folder_name(config),
            config=config.resolved(),
            dir=str(self.folder),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            reinit="create_new",
        )
        for round_, rows in self.earlier_rows(first_round).items():
            if round_ >= self._run.step:  # not logged yet
                self.on_round(config, round_, rows)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._run.log(measures(rows), step=round_)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._run.summary.update(summary_numbers(result))
        self._run.finish()
