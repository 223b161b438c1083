"""Runs the jobs of a comparison or a study: which are free, how one runs, what its error ends; also as tasks of Ray."""

import contextlib
import copy
import os
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedloom.core.errors import CheckpointError, RunFolderError
from fedloom.data import Scenario
from fedloom.engine.ray import Cluster, Lost, Ref
from fedloom.evaluation.own_metrics import own_sources, register_metric
from fedloom.runs.callbacks import Callback
from fedloom.runs.run import Existing, run
from fedloom.runs.storage.data_record import OtherDataError
from fedloom.runs.storage.folders import full_disk_message, refuse_links, stopped_by_full_disk
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.studies.live_progress import Event, Forward, Listener, waiting
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import STUDY, StudyFolder
from fedloom.runs.studies.tuning import Choices, Job, trials_of

PAUSE = 0.25  # seconds between two looks at jobs that processes of other calls work on


@dataclass
class Runner:
    """The jobs of one call, and how a process runs one of them. Child processes and Ray's workers have copies of it.

    - on_error: "raise" ends the call with the first error of any run; `results` then has the results of this process's
      runs, by position. "record" writes errors to files and continues, unless the disk is full or the data have
      changed, because then every run would fail. Calls that record errors may share a folder: each takes runs that no
      other call works on.
    - all_cores: engine `auto` may use all cores for a run; it is serial otherwise, as other runs use them.
    - existing, callbacks, scenario, result_type: as in `compare`.
    """

    study: StudyPlan
    folder: StudyFolder | None
    jobs: Sequence[Job]
    on_error: Literal["raise", "record"]
    existing: Existing = "resume"
    callbacks: Sequence[Callback] = ()
    scenario: Scenario | None = None
    all_cores: bool = False
    result_type: type[RunData] = RunData

    def __post_init__(self) -> None:
        self.results = dict[int, RunData]()
        self._earlier = {} if self.folder is None else self.folder.errors()  # of runs that this call tries again
        self._choices = None if self.folder is None else Choices(self.study, self.folder, earlier=self._earlier)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that the configs of all jobs ask for."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.config.evaluation.metrics))

    def in_turn(self, positions: Sequence[int], listener: Listener) -> None:
        """Run the jobs at `positions` one after another in this process, until all have ended in some process."""
        waited = False
        while positions:
            blocked = [position for position in positions if not self.attempt(position, listener)]
            if len(blocked) == len(positions):
                if not waited:
                    listener(waiting(len(blocked)))
                waited = True
                time.sleep(PAUSE)
            positions = blocked

    def attempt(self, position: int, send: Listener) -> bool:
        """Run a job unless it has ended; return False if another process runs it or its trials are missing.

        Raises the run's error as `on_error` says, `RunFolderError` for a full disk."""
        job = self.jobs[position]
        with contextlib.nullcontext() if self.folder is None else stopped_by_full_disk(self.folder.path):
            if isinstance(job, Cell) and self._choices is not None:
                tuned, why = self._choices.of(job)
                if tuned is None:
                    return why is not None
                job = tuned
            if self.folder is None or self.on_error == "raise":
                self.results[position] = self._run(position, job, send)
                return True
            with self.folder.cell_lock(job.folder) as locked:
                if locked:
                    self._run_recorded(position, job, self.folder, send)
                return locked

    def _run_recorded(self, position: int, job: Job, folder: StudyFolder, send: Listener) -> None:
        """Run a job unless another process did so meanwhile, and write its error to a file in the study's folder."""
        if folder.finished(job.folder):
            send(Event(position, job.config.rounds))
            return
        if folder.error(job.folder) not in (None, self._earlier.get(job.folder)):
            return
        try:
            self._run(position, job, send)
        except Exception as error:
            if full_disk_message(error) or isinstance(error, OtherDataError):
                raise
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, CheckpointError):
                message = f"{message}; the run folder is {folder.cell(job.folder)}"
            # Nanoseconds make every error unique, or one that occurs again would pass for that of the earlier attempt.
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({time.time_ns()})"
            trace = "".join(traceback.format_exception(error))
            folder.write_error(job.folder, f"{message}\n{when}\n\n{trace}")
            send(Event(position, 0, note=f"{job.folder} failed: {message}"))
        else:
            folder.clear_error(job.folder)

    def _run(self, position: int, job: Job, send: Listener) -> RunData:
        config, out = job.config, None if self.folder is None else self.folder.cell(job.folder)
        refuse_links([] if out is None else [out])
        # several runs at a time use the cores already, and engines do not change numbers
        if config.engine.name == "auto" and not self.all_cores:
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"name": "serial"})})
        watching = [Forward(position, send), *copy.deepcopy(self.callbacks)]
        how: Any = {"existing": self.existing, "callbacks": watching, "result_type": self.result_type}
        result: RunData = run(config, scenario=self.scenario, out=out, **how)
        send(Event(position, config.rounds))  # also for a run that had finished before
        return result


def on_ray(cluster: Cluster, runner: Runner, listener: Listener) -> None:
    """Run every job of `runner` as a Ray task of `cluster`; cells wait for their trials, and `listener` hears of a job
    when it has ended. Raises `RunFolderError` if a node does not see the folder."""
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
            listener(Event(position, 0, note=f"{folder} is left: {news.why}; the same command resumes it"))
        else:
            for event in news:
                listener(event)


def _work(runner: Runner, metrics: Mapping[str, object], folder: Path, position: int, *trials: Any) -> list[Event]:
    assert runner.folder is not None
    for metric in metrics.values():
        register_metric(metric)
    path = folder / runner.folder.path
    if not (path / STUDY).exists():
        raise RunFolderError(
            f"node {socket.gethostname()} does not see {path}; all nodes must share the folder of a study, and have it "
            "at the same path"
        )
    os.chdir(folder)  # relative paths of a config begin where the call was made
    news: list[Event] = []
    runner.in_turn([position], news.append)
    return news
