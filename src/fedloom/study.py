"""A study from Python: a grid of runs that is planned, run and read without a YAML file."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import expand_home
from fedloom.core.plugins import with_plugins
from fedloom.core.text import counted, split_names
from fedloom.results.comparison import Comparison
from fedloom.results.data_table import DataTable
from fedloom.results.looks import overview, overview_lines, stages
from fedloom.results.result import Summary
from fedloom.runs.callbacks import Callback, callback_list
from fedloom.runs.config.keywords import scenario_section
from fedloom.runs.config.run_config import note_unused_options
from fedloom.runs.config.scenario_config import ScenarioConfig
from fedloom.runs.storage.finished_runs import refuse_mixed_results
from fedloom.runs.storage.folders import stopped_by_full_disk
from fedloom.runs.storage.schemas import leaves
from fedloom.runs.studies.live_progress import progress_listener
from fedloom.runs.studies.outcome import Outcome, outcome
from fedloom.runs.studies.plan import Cell, parse_study
from fedloom.runs.studies.run_study import check_jobs, run_study
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.studies.study_folder import read as read_plan
from fedloom.runs.studies.tuning import jobs_of

if TYPE_CHECKING:
    from fedloom.keys import CompareKeys

_log = logging.getLogger(__name__)
_Described = str | ScenarioConfig


class Study:
    """A grid of runs over settings, methods and seeds, in a folder that `fedloom study` shares and resumes.

    Every run is a *cell*. `plan` shows them, `run` runs those that are left, `results` reads those that have finished.
    """

    def __init__(
        self,
        methods: str | Sequence[str] | Mapping[str, Mapping[str, Any] | None] | None = None,
        *,
        out: Path | str,
        scenario: _Described | Sequence[_Described] | None = None,
        settings: Mapping[str, _Described | Mapping[str, Any]] | Sequence[str] | None = None,
        primary: Sequence[str] | None = None,
        margin: float | None = None,
        seeds: int | Sequence[int] | Mapping[str, Any] | None = None,
        config: str | None = None,
        model: str | Mapping[str, Any] | Sequence[Any] | None = None,
        tune: Mapping[str, Any] | None = None,
        tries: int | None = None,
        trials: Mapping[str, Any] | None = None,
        **keys: Unpack[CompareKeys],
    ) -> None:
        """Plan a study; nothing is written, and no data are read.

        Args:
            methods: names, or a mapping of labels to keys (`method`, `preset`, options); None takes the config's own.
            out: folder of the study.
            scenario: a description from `fedloom.scenario`, or a list of them.
            settings: a mapping of names to scenarios, or to keys of a config on top of the shared ones.
            primary: the few methods whose comparisons are a family apart from the others, by label.
            margin: the equivalence margin, in points; 1 by default, and 0 calls nothing equivalent.
            seeds: the seeds, or how many from 0 on; three if None. `{"until": "decided", "most": 10}` adds seeds until
                rows are decided.
            config: a YAML config, or the name of a ready one, below all other keys.
            model: name or section of a network.
            tune: keys with the values that every method tries on validation data, as in a study file.
            tries: number of points that a range in `tune` gives.
            trials: keys for these trials alone.
            keys: keys of a config, as `fedloom.compare` takes them, whose lists are compared.

        Raises `ConfigError` for the first mistake in any cell, and for objects that a file cannot hold.
        """
        if methods is not None and not methods:
            raise ConfigError(f"methods = {methods!r}: need one; leave methods out for the config's own")
        of_study = {"scenario": scenario, "settings": settings, "primary": primary, "margin": margin, "seeds": seeds}
        of_study |= {"config": config, "model": model, "tune": tune, "tries": tries, "trials": trials}
        values = {key: _plain(key, value) for key, value in {**of_study, **keys}.items() if value is not None}
        if methods is not None:
            values["methods"] = _plain("methods", split_names(methods) if isinstance(methods, str) else methods)
        self._plan, self.folder = parse_study(with_plugins(values)), expand_home(out)
        note_unused_options(dict(leaves(keys)), {cell.config.method for cell in self._plan.cells})
        jobs_of(self._plan, self._plan.cells)  # raises for the first mistake in any trial

    @classmethod
    def read(cls, folder: Path | str) -> Study:
        """Return the study of a folder, whoever began it. Raises `ConfigError` if there is none."""
        path = expand_home(folder)
        plan = read_plan(path)
        if plan is None:
            raise ConfigError(f"{path}: no study in it; fl.read reads runs and comparisons")
        study = cls.__new__(cls)
        study._plan, study.folder = plan, path
        return study

    @property
    def cells(self) -> list[str]:
        """The names of all cells: setting/method/listed values/seed."""
        return [cell.name for cell in self._plan.cells]

    @property
    def failed(self) -> dict[str, str]:
        """Why cells failed, by name. `run` tries them again."""
        return self._outcome().failed

    def plan(self, only: str | Sequence[str] = ()) -> Summary:
        """Return cells and trials with their states, and the time of those left; prints as a table.

        Args:
            only: names of cells, or patterns such as "hard/*" and "fedavg".
        """
        cells = self._chosen(only)
        folder = StudyFolder(self.folder)
        folder.check(self._plan)
        plan = overview(self._plan, folder, cells)
        states = plan["trials"] | plan["cells"]
        rows = [{"cell": name, "state": state} for name, state in states.items()]
        table = DataTable("plan", "", ("cell", "state"), [*states.items()], records=rows)
        return Summary(table, overview_lines(plan))

    def run(
        self,
        only: str | Sequence[str] = (),
        *,
        jobs: int = 1,
        progress: bool = True,
        callbacks: Callback | Sequence[Callback] = (),
        allow_mixed: bool = False,
    ) -> Comparison:
        """Run the cells that are left, and return all chosen cells that have finished.

        A cell that fails does not stop the others: `failed` says why, and the next call tries it again. A call that was
        interrupted is resumed by the same call.

        Args:
            only: as in `plan`.
            jobs: processes at a time; more than one needs a script with `if __name__ == "__main__":`.
            progress: as in `fedloom.run`.
            callbacks: copied for every run.
            allow_mixed: join cells that other versions of fedloom made.

        Raises `ConfigError` and `RunFolderError` as `fedloom.runs.studies.run_study.run_study`.
        """
        check_jobs(jobs)
        cells = self._chosen(only)
        how: dict[str, Any] = {"workers": jobs, "callbacks": callback_list(callbacks), "allow_mixed": allow_mixed}
        folder = StudyFolder(self.folder)
        for stage in stages(self._plan, folder, cells):
            configs = [job.config for job in jobs_of(self._plan, stage)]
            with stopped_by_full_disk(self.folder), progress_listener(configs, progress) as listener:
                run_study(self._plan, folder, stage, listener=listener, **how)
        return self._comparison(outcome(self._plan, folder, cells), allow_mixed)

    def results(self, allow_mixed: bool = False) -> Comparison:
        """Return all cells that have finished.

        Args:
            allow_mixed: also those of several versions of fedloom, together.
        """
        return self._comparison(self._outcome(), allow_mixed)

    def evaluate(self, allow_mixed: bool = False, **options: Any) -> Comparison:
        """Test all finished cells again, as `Result.evaluate` does; cells that were tested so are not tested again."""
        return self.results(allow_mixed).evaluate(**options)

    def __repr__(self) -> str:
        cells = self.cells
        return f"Study({counted(len(cells), 'cell')}, such as {cells[0]!r}, in {self.folder})"

    def _chosen(self, only: str | Sequence[str]) -> list[Cell]:
        patterns = [only] if isinstance(only, str) else only
        if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ConfigError(f"only = {short_repr(only)}: need names of cells, as 'hard/*' or ['fedavg', 'fedprox']")
        return self._plan.chosen(patterns)

    def _outcome(self) -> Outcome:
        return outcome(self._plan, StudyFolder(self.folder), self._plan.cells)

    def _comparison(self, ended: Outcome, allow_mixed: bool) -> Comparison:
        results = ended.cell_results
        if not allow_mixed:
            refuse_mixed_results(results)
        counts = {"failed": len(ended.failed), "not run yet": len(ended.remaining)}
        if texts := [f"{count} {state}" for state, count in counts.items() if count]:
            _log.warning("note: %s: %d cells done, %s", self.folder, len(ended.done), ", ".join(texts))
        return Comparison(results)


def _plain(key: str, value: Any) -> Any:
    """Return a value as a study file holds it. Raises `ConfigError` for an object that no file holds."""
    if key == "settings" and isinstance(value, Mapping):  # a scenario alone is a block with this key
        value = {
            name: {"scenario": entry} if isinstance(entry, str | ScenarioConfig) else entry
            for name, entry in value.items()
        }
    if isinstance(value, ScenarioConfig) or (isinstance(value, str) and key.rpartition(".")[2] == "scenario"):
        return scenario_section(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(f"{key}.{name}", entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(key, entry) for entry in value]
    if isinstance(value, np.generic):  # as in a list of np.arange, which YAML cannot write
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ConfigError(
        f"{key} is a {type(value).__name__}: a study is kept as a file, which holds names and numbers only; save data, "
        "register networks in a file of plugins and name both, or take fl.compare"
    )
