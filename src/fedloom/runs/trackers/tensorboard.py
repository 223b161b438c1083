"""TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row, folder_name
from fedloom.runs.trackers.tracker import Tracker, import_tracker, measures


class TensorBoard(Tracker):
    """Write event files below `folder`, one folder for each run; `tensorboard --logdir FOLDER` shows them.

    A resumed run continues in its folder. Raises `ConfigError` if tensorboard is not installed.
    """

    def __init__(self, folder: Path | str = "runs/tensorboard") -> None:
        super().__init__()
        import_tracker("tensorboard", "tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def on_start(self, config: RunConfig, first_round: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(
            str(self.folder / folder_name(config)), purge_step=1
        )  # earlier rounds are written again
        self._writer.add_text("config", f"```yaml\n{yaml.safe_dump(config.resolved(), sort_keys=False)}```")
        for round_, rows in self.earlier_rows(first_round).items():
            self.on_round(config, round_, rows)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        for name, value in measures(rows).items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def on_note(self, config: RunConfig, note: str) -> None:
        if self._writer is not None:
            self._writer.add_text("notes", note)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._writer.close()
