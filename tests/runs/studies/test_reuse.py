"""Cells that another study has finished: copied whole where config and version are the same, and no others."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.result import Result
from fedloom.runs.studies.outcome import reuse
from fedloom.runs.studies.plan import StudyPlan, parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.study_folder import StudyFolder

TINY: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 1,
    "local_epochs": 1,
    "methods": ["fedavg", "local"],
    "seeds": 1,
    "engine": "serial",
}
FIGURE = TINY | {"methods": ["fedavg", "fedprox"], "seeds": 2}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study, out = parse_study(TINY), tmp_path_factory.mktemp("studies") / "table"
    run_study(study, StudyFolder(out), study.cells)
    return out


@pytest.fixture
def figure(tmp_path: Path) -> tuple[StudyPlan, StudyFolder]:
    study, study_folder = parse_study(FIGURE), StudyFolder(tmp_path / "figure")
    study_folder.claim(study)
    return study, study_folder


def test_the_same_cells_are_copied_and_run_no_more(table: Path, figure: tuple[StudyPlan, StudyFolder]) -> None:
    study, study_folder = figure
    assert reuse(study_folder, study.cells, table) == ["fedavg/seed0"]
    (source,) = table.glob("fedavg-*")
    copy = Result.read(study_folder.path / source.name)
    original = Result.read(source)
    assert copy is not None
    assert original is not None
    assert (copy.numbers, copy.rows) == (original.numbers, original.rows)
    ended = run_study(study, study_folder, study.cells)
    assert len(ended.done) == 4
    assert reuse(study_folder, study.cells, table) == []
    again = Result.read(study_folder.path / source.name)
    assert again is not None
    assert again.numbers == original.numbers  # its seconds, too: nothing ran


def test_what_is_begun_here_goes_on_here(table: Path, figure: tuple[StudyPlan, StudyFolder]) -> None:
    study, study_folder = figure
    begun = study_folder.cell(study.cells[0].folder)
    begun.mkdir()
    (begun / "mine.txt").write_text("kept")
    assert reuse(study_folder, study.cells, table) == []
    assert [path.name for path in begun.iterdir()] == ["mine.txt"]


def test_a_cell_that_another_process_holds_is_left_to_it(table: Path, figure: tuple[StudyPlan, StudyFolder]) -> None:
    study, study_folder = figure
    with StudyFolder(study_folder.path).cell_lock(study.cells[0].folder):
        assert reuse(study_folder, study.cells, table) == []


def test_what_a_killed_copy_left_is_cleared(table: Path, figure: tuple[StudyPlan, StudyFolder]) -> None:
    study, study_folder = figure
    half = study_folder.path / ".copies" / study.cells[0].folder
    half.mkdir(parents=True)
    (half / "half.txt").write_text("of an earlier copy")
    assert reuse(study_folder, study.cells, table) == ["fedavg/seed0"]
    assert not (study_folder.cell(study.cells[0].folder) / "half.txt").exists()


def test_a_copy_that_cannot_be_written_leaves_nothing(
    table: Path, figure: tuple[StudyPlan, StudyFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, study_folder = figure

    def full_disk(source: Path, copy: Path) -> None:
        copy.mkdir(parents=True)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedloom.runs.studies.outcome.shutil.copytree", full_disk)
    with pytest.raises(RunFolderError, match="No space left"):
        reuse(study_folder, study.cells, table)
    assert not list((study_folder.path / ".copies").iterdir())


@pytest.mark.parametrize("what", ["version", "config", "unfinished"])
def test_other_versions_other_configs_and_unfinished_runs_are_left(
    table: Path, figure: tuple[StudyPlan, StudyFolder], tmp_path: Path, what: str
) -> None:
    study, study_folder = figure
    name = study.cells[0].folder
    other = tmp_path / "other"

    shutil.copytree(table, other)
    if what == "version":
        told = json.loads((other / name / "env.json").read_text())
        del told["checksums"]  # as in folders of earlier versions
        told["versions"]["fedloom"] = "0.0.1"
        (other / name / "env.json").write_text(json.dumps(told))
    elif what == "config":
        (local,) = other.glob("local-*")
        shutil.rmtree(other / name)
        local.rename(other / name)
    else:
        (other / name / "summary.json").unlink()
    assert reuse(study_folder, study.cells, other) == []


def test_a_folder_that_is_no_study_is_refused(figure: tuple[StudyPlan, StudyFolder], tmp_path: Path) -> None:
    study, study_folder = figure
    with pytest.raises(ConfigError, match="no study in this folder"):
        reuse(study_folder, study.cells, tmp_path)


def test_a_damaged_run_is_named(table: Path, figure: tuple[StudyPlan, StudyFolder], tmp_path: Path) -> None:

    study, study_folder = figure
    other = tmp_path / "other"
    shutil.copytree(table, other)
    (other / study.cells[0].folder / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match="summary\\.json: damaged"):
        reuse(study_folder, study.cells, other)
