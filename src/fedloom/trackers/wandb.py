"""Weights & Biases (extra `wandb`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from fedloom.study.compare import folder_name
from fedloom.study.config import RunConfig
from fedloom.study.folder import Row
from fedloom.study.results import Result
from fedloom.trackers.measures import Tracker, library, measures, outcome


class WandB(Tracker):
    """Logs measures by round, the config, and the summary.

    mode: "online" sends as the run goes, "offline" only writes below `folder`, for `wandb sync`. A run that goes on
    after a crash, or is done again, has the id that it had before. Online, W&B takes each round of an id once: delete
    the entry before a run is done again with `fresh`. Raises `ConfigError` where wandb is not installed,
    and what wandb raises.
    """

    def __init__(
        self,
        project: str = "fedloom",
        mode: Literal["online", "offline"] = "online",
        folder: Path | str = "runs",
    ) -> None:
        super().__init__()
        library("wandb", "wandb")
        self.project, self.mode, self.folder = project, mode, Path(folder)
        self._run: Any = None

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = library("wandb", "wandb").init(
            project=self.project,
            id=folder_name(config),
            name=folder_name(config),
            config=config.resolved(),
            dir=str(self.folder),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            reinit="create_new",
        )
        for round_, rows in self.earlier(first_round).items():
            if round_ >= self._run.step:  # not logged before
                self.on_round(config, round_, rows)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._run.log(measures(rows), step=round_)

    def on_end(self, config: RunConfig, result: Result) -> None:
        self._run.summary.update(outcome(result))
        self._run.finish()
