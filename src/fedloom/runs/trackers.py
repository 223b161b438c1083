"""Callbacks that send the measures of a run to an experiment tracker; each needs the extra of its name."""

import importlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from fedloom.core.errors import ConfigError
from fedloom.core.text import flat, lists_by_key
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import NEWCOMERS, TESTED_SPLITS, Row, main_protocol
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import folder_name


class Tracker(Callback):
    """A callback that remembers the rounds before a crash, because the last ones may not have been logged."""

    def __init__(self, library: str) -> None:
        import_tracker(library)
        self._earlier_rows: dict[int, list[Row]] = {}

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> None:
        self._earlier_rows = lists_by_key((row["round"], row) for row in rows)

    def earlier_rows(self, first_round: int) -> dict[int, list[Row]]:
        """Return by round the rows of the rounds before `first_round`, the first one of this process."""
        return self._earlier_rows if first_round > 1 else {}


def import_tracker(library: str) -> Any:
    """Import the library of a tracker. Raises `ConfigError` with the extra to install if it is missing."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise ConfigError(f"the package {library} is not installed; install fedloom[{library}]") from None


def measures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the run's measures by split and name ("test/accuracy"), with what else tells two apart between them."""
    values, main = {}, main_protocol(rows)
    for row in rows:
        ambiguous = row["split"] == NEWCOMERS or (row["split"] in TESTED_SPLITS and row["protocol"] != main)
        parts = row["split"], row["protocol"] if ambiguous else None, row["name"]
        if row["client"] is None:
            values["/".join(filter(None, parts))] = row["value"]
    return values


def summary_numbers(result: RunData) -> dict[str, float]:
    """Return the numbers of the summary: accuracies, bytes, seconds ("seconds.total")."""
    numbers = result.numbers | {f"seconds.{name}": value for name, value in result.numbers["seconds"].items()}
    return {name: value for name, value in numbers.items() if type(value) in (int, float)}


class MLflow(Tracker):
    """Log settings as parameters, measures by round, and the summary as `final/...`.

    A resumed run continues its MLflow run. Raises `ConfigError` if mlflow is not installed, and MLflow's own errors.

    Args:
        experiment: name of the experiment, which is created if it does not exist.
        uri: address of the tracking server or store; None takes MLflow's own setting.
    """

    def __init__(self, experiment: str = "fedloom", uri: str | None = None) -> None:
        super().__init__("mlflow")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._run_id = ""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        from mlflow.entities import Param

        self._client = import_tracker("mlflow").MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment_id()
        name = folder_name(config)
        filter_ = f"tags.fedloom = '{name}'"
        earlier_runs = self._client.search_runs([experiment], filter_) if first_round > 1 else []
        if earlier_runs:
            self._run_id = earlier_runs[0].info.run_id
            # Every round logs its bytes, so they tell which rounds are there.
            logged = {metric.step for metric in self._client.get_metric_history(self._run_id, "system/bytes_up")}
            for round_, rows in self.earlier_rows(first_round).items():
                if round_ not in logged:
                    self.on_round(config, round_, rows)
            return
        self._run_id = self._client.create_run(experiment, run_name=name, tags={"fedloom": name}).info.run_id
        params = [Param(key, value) for key, value in flat(config.resolved())]
        for start in range(0, len(params), 100):  # the most that MLflow takes at a time
            self._client.log_batch(self._run_id, params=params[start : start + 100])

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._log(measures(rows), round_)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._log({f"final/{name}": value for name, value in summary_numbers(result).items()}, result.numbers["rounds"])
        self._client.set_terminated(self._run_id)

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(self.experiment)  # another process has just created it
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def _log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        milliseconds = int(1000 * time.time())
        # MLflow refuses the @ and = of "sensitivity@specificity=0.95".
        names = {name: name.replace("@", " at ").replace("=", ":") for name in values}
        metrics = [Metric(names[name], float(value), milliseconds, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)


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
        self, project: str = "fedloom", mode: Literal["online", "offline"] = "online", folder: Path | str = "runs"
    ) -> None:
        super().__init__("wandb")
        self.project, self.mode, self.folder = project, mode, Path(folder)
        self._run: Any = None

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = import_tracker("wandb").init(
            project=self.project,
            id=folder_name(config),
            name=folder_name(config),
            config=config.resolved(),
            dir=str(self.folder),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,  # W&B resumes no offline run
            reinit="create_new",  # the default may return an unfinished run of another config
        )
        for round_, rows in self.earlier_rows(first_round).items():
            if round_ >= self._run.step:  # not logged yet
                self.on_round(config, round_, rows)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._run.log(measures(rows), step=round_)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._run.summary.update(summary_numbers(result))
        self._run.finish()


class TensorBoard(Tracker):
    """Write event files below `folder`, one folder for each run; `tensorboard --logdir FOLDER` shows them.
    A resumed run continues in its folder. Raises `ConfigError` if tensorboard is not installed."""

    def __init__(self, folder: Path | str = "runs/tensorboard") -> None:
        super().__init__("tensorboard")
        self.folder = Path(folder)
        self._writer: Any = None

    def on_start(self, config: RunConfig, first_round: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = str(self.folder / folder_name(config))
        self._writer = SummaryWriter(folder, purge_step=1)  # earlier rounds are written again
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
