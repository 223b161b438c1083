"""MLflow (extra `mlflow`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row, folder_name
from fedloom.runs.trackers.tracker import Tracker, import_tracker, measures, settings, summary_numbers


class MLflow(Tracker):
    """Log settings as parameters, measures by round, and the summary as `final/...`.

    A resumed run continues its MLflow run. Raises `ConfigError` if mlflow is not installed, and MLflow's own errors.

    Args:
        experiment: name of the experiment, which is created if it does not exist.
        uri: address of the tracking server or store; None takes MLflow's own setting.
    """

    def __init__(self, experiment: str = "fedloom", uri: str | None = None) -> None:
        super().__init__()
        import_tracker("mlflow", "mlflow")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._run_id = ""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        from mlflow.entities import Param

        self._client = import_tracker("mlflow", "mlflow").MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment_id()
        name = folder_name(config)
        filter_ = f"tags.fedloom = '{name}'"
        earlier_runs = self._client.search_runs([experiment], filter_) if first_round > 1 else []
        if earlier_runs:
            self._run_id = earlier_runs[0].info.run_id
            logged = {metric.step for metric in self._client.get_metric_history(self._run_id, "system/bytes_up")}
            for round_, rows in self.earlier_rows(first_round).items():
                if round_ not in logged:
                    self.on_round(config, round_, rows)
            return
        self._run_id = self._client.create_run(experiment, run_name=name, tags={"fedloom": name}).info.run_id
        params = [Param(key, value) for key, value in settings(config).items()]
        for start in range(0, len(params), 100):  # the most that MLflow takes at a time
            self._client.log_batch(self._run_id, params=params[start : start + 100])

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._log(measures(rows), round_)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._log({f"final/{name}": value for name, value in summary_numbers(result).items()}, result.numbers["rounds"])
        self._client.set_terminated(self._run_id)

    def _experiment_id(self) -> str:
        """The experiment's id; it is created if it does not exist."""
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
        metrics = [Metric(name, float(value), milliseconds, step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)
