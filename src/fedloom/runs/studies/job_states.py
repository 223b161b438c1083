"""How far the cells and trials of a study are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import State, StudyFolder
from fedloom.runs.studies.tuning import Choices, Job, Trial


@dataclass(frozen=True, slots=True)
class JobStates:
    """The state of each cell and of each trial, by name."""

    cells: dict[str, State]
    trials: dict[str, State]

    def of(self, job: Job) -> State:
        """Return the state of one job."""
        return (self.trials if isinstance(job, Trial) else self.cells)[job.name]


def job_states(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell], jobs: Sequence[Job]) -> JobStates:
    """Return how far these cells and the trials among `jobs` are. Nothing is written."""
    choices, states = Choices(study, study_folder), dict[str, State]()
    for cell in cells:
        tuned, why = choices.of(cell)
        states[cell.name] = study_folder.state(tuned.folder, tuned.config) if tuned else "failed" if why else "left"
    trials = {job.name: study_folder.state(job.folder, job.config) for job in jobs if isinstance(job, Trial)}
    return JobStates(states, trials)
