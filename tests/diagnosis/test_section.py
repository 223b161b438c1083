"""The report's section of diagnoses: one for equal ones, none without, and a line for damaged files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import call
from fedloom.core.errors import RunFolderError
from fedloom.diagnosis.diagnosis import Diagnosis
from fedloom.diagnosis.label_profile import label_profile
from fedloom.diagnosis.section import diagnosis_sections


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with a diagnosis."""
    run = tmp_path / "run"
    run.mkdir()
    diagnosis = Diagnosis("made", ("a", "b"), label_profile(np.array([[9, 0], [0, 9], [9, 1]])), notes=("no net",))
    (run / "diagnosis.json").write_text(json.dumps(diagnosis.facts()), encoding="utf-8")
    return run


def test_equal_diagnoses_are_shown_once_and_folders_without_one_add_nothing(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "same")
    (tmp_path / "empty").mkdir()
    (section,) = diagnosis_sections([folder, tmp_path / "same", tmp_path / "empty"])
    assert (section.name, section.title) == ("diagnosis", "How heterogeneous the data are: made")
    assert section.blocks[-1] == ["Not computed: no net"]
    clients = section.blocks[2]
    assert [row[0] for row in clients.rows] == ["0", "1", "2"]  # type: ignore[union-attr]


def test_different_diagnoses_have_a_section_each(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    facts = json.loads((other / "diagnosis.json").read_text(encoding="utf-8")) | {"name": "another"}
    (other / "diagnosis.json").write_text(json.dumps(facts), encoding="utf-8")
    assert [section.name for section in diagnosis_sections([folder, other])] == ["diagnosis", "diagnosis-2"]


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "x"}'])
def test_damaged_files_are_named(folder: Path, text: str) -> None:
    (folder / "diagnosis.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunFolderError, match="damaged"):
        diagnosis_sections([folder])


@pytest.mark.parametrize("entry", ["rows", "groups", "sizes", "sentences", "notes"])
def test_damaged_entries_are_named(folder: Path, entry: str) -> None:
    facts = json.loads((folder / "diagnosis.json").read_text(encoding="utf-8")) | {entry: 3}
    (folder / "diagnosis.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(RunFolderError, match="damaged"):
        diagnosis_sections([folder])


def test_the_report_of_a_diagnosed_run_has_the_section(tmp_path: Path, capsys: Any) -> None:
    import fedloom as fl

    scenario = fl.scenario("digits", partition="iid", clients=3)
    model = {"name": "mlp", "hidden": [8]}
    fl.run("fedavg", scenario=scenario, rounds=1, model=model, out=str(tmp_path / "run"), drift=True)
    code, out, _ = call(capsys, "diagnose", str(tmp_path / "run"))
    assert code == 0
    assert "drift during training" in out
    assert "diversity of the updates" in out
    assert call(capsys, "report", str(tmp_path / "run"))[0] == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "How heterogeneous the data are" in page
    assert "label skew: Hellinger" in page
    assert "Drift in training: fedavg (sound), seed 0" in page
