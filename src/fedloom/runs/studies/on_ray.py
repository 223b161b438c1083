"""Run the cells of a study as tasks of Ray. Ray chooses node and time; the shared folder records what has finished."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import RunFolderError
from fedloom.engine.ray.cluster import Cluster, Lost, Ref
from fedloom.evaluation.metrics.of_function import own_sources, register_metric
from fedloom.runs.studies.events import Event, Listener
from fedloom.runs.studies.plan import Cell
from fedloom.runs.studies.runner import Runner
from fedloom.runs.studies.study_folder import STUDY
from fedloom.runs.studies.tuning import trials_of


def on_ray(cluster: Cluster, runner: Runner, listener: Listener) -> None:
    """Run every job of a study as a task; cells wait for their trials. A job's news arrive when it has ended.

    Args:
        cluster: the Ray cluster, whose nodes see the study's folder.
        runner: has the study and its jobs.
        listener: called with news of runs, by their position in the jobs.

    Raises `RunFolderError` if a node does not see the folder.
    """
    shared, tasks = cluster.put(runner), dict[str, Ref]()
    metrics = own_sources(runner.metrics)

    def calls() -> Iterator[tuple[int, Ref]]:
        for position, job in enumerate(runner.jobs):
            trials = trials_of(runner.study, job) if isinstance(job, Cell) else []
            first = [tasks[trial.folder] for trial in trials]
            tasks[job.folder] = cluster.call(_work, shared, metrics, Path.cwd(), position, *first)
            yield position, tasks[job.folder]

    for position, news in cluster.ended(calls()):
        if isinstance(news, Lost):
            folder = runner.jobs[position].folder
            listener(Event(position, 0, note=f"{folder} is left: {news.why}; the same command goes on with it"))
        else:
            for event in news:
                listener(event)


def _work(runner: Runner, metrics: Mapping[str, object], folder: Path, position: int, *trials: Any) -> list[Event]:
    """Run one job in a Ray worker, with `folder` as the study's folder, and return its news."""
    assert runner.folder is not None
    for metric in metrics.values():
        register_metric(metric)
    path = folder / runner.folder.path
    if not (path / STUDY).exists():
        raise RunFolderError(
            f"node {socket.gethostname()} does not see {path}; all nodes must share the folder of a study, and have it "
            "at the same path"
        )
    os.chdir(folder)
    news: list[Event] = []
    runner.in_turn([position], news.append)
    return news
