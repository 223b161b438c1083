"""MLflow (extra `mlflow`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fedloom.study.compare import folder_name
from fedloom.study.config import RunConfig
from fedloom.study.folder import Row
from fedloom.study.results import Result
from fedloom.trackers.measures import Tracker, library, measures, outcome, settings


class MLflow(Tracker):
    """Logs settings as parameters, measures by round, and the summary as `final/...`.

    experiment: its name, made where it is not there. uri: of the tracking server or store; None takes MLflow's own
    setting. A run that goes on after a crash goes on in its MLflow run. Raises `ConfigError` where mlflow is not
    installed, and what MLflow raises.
    """

    def __init__(self, experiment: str = "fedloom", uri: str | None = None) -> None:
        super().__init__()
        library("mlflow", "mlflow")
        self.experiment, self.uri = experiment, uri
        self._client: Any = None
        self._run = ""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        from mlflow.entities import Param

        self._client = library("mlflow", "mlflow").MlflowClient(tracking_uri=self.uri)
        experiment = self._experiment()
        name = folder_name(config)
        begun = self._client.search_runs([experiment], f"tags.fedloom = '{name}'") if first_round > 1 else []
        if begun:
            self._run = begun[0].info.run_id
            logged = {metric.step for metric in self._client.get_metric_history(self._run, "system/bytes_up")}
            for round_, rows in self.earlier(first_round).items():
                if round_ not in logged:
                    self.on_round(config, round_, rows)
            return
        self._run = self._client.create_run(experiment, run_name=name, tags={"fedloom": name}).info.run_id
        params = [Param(key, value) for key, value in settings(config).items()]
        for start in range(0, len(params), 100):  # MLflow takes so many at a time
            self._client.log_batch(self._run, params=params[start : start + 100])

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self._log(measures(rows), round_)

    def on_end(self, config: RunConfig, result: Result) -> None:
        self._log({f"final/{name}": value for name, value in outcome(result).items()}, result.numbers["rounds"])
        self._client.set_terminated(self._run)

    def _experiment(self) -> str:
        """The experiment's id; it is made where it is not there."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except MlflowException:
                found = self._client.get_experiment_by_name(self.experiment)  # made by another process just now
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log(self, values: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)
