"""Folders of the user's own are left alone; those of runs and comparisons are known, also without a mark."""

from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import FedloomError, RunFolderError
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage import folders
from fedloom.runs.studies.run_study import compare

CONFIG = parse({"scenario": {"source": "digits", "partition": "iid", "clients": 2}, "rounds": 1, "local_epochs": 1})


def started(kind: str, out: Path, existing: Any = "fresh") -> None:
    if kind == "run":
        run(CONFIG, out=out, existing=existing)
    else:
        compare([CONFIG], out=out, existing=existing)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("existing", ["refuse", "resume", "fresh"])
@pytest.mark.parametrize("kind", ["run", "comparison"])
@pytest.mark.parametrize("name", ["config.yaml", "checkpoint/mine", "report.html", ".hidden"])
def test_a_folder_of_somebody_elses_is_refused_and_left_as_it_is(
    tmp_path: Path, kind: str, existing: str, name: str
) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(RunFolderError, match="holds files that fedloom did not write; choose another") as caught:
        started(kind, tmp_path, existing)
    assert "\n" not in str(caught.value)
    assert tree(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_a_folder_of_an_earlier_version_may_be_used(tmp_path: Path, kind: str) -> None:
    started(kind, tmp_path)
    for mark in tmp_path.rglob(folders.MARKER):
        mark.unlink()
    started(kind, tmp_path)
    assert (tmp_path / folders.MARKER).exists()


def test_runs_and_comparisons_do_not_share_a_folder(tmp_path: Path) -> None:
    started("run", tmp_path / "a")
    started("comparison", tmp_path / "b")
    with pytest.raises(RunFolderError, match="is the folder of a run, not of a comparison"):
        started("comparison", tmp_path / "a")
    with pytest.raises(RunFolderError, match="is the folder of a comparison, not of a run"):
        started("run", tmp_path / "b")


@pytest.mark.parametrize("kind", ["run", "comparison"])
@pytest.mark.parametrize("place", ["file", "loop", "under a file"])
def test_a_place_that_can_be_no_folder_is_one_line(tmp_path: Path, kind: str, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    out = {"file": tmp_path / "file", "loop": tmp_path / "loop", "under a file": tmp_path / "file" / "a"}[place]
    says = "cannot be used" if place == "loop" else "/file is a file, not a folder; choose another place with out=...$"
    with pytest.raises(FedloomError, match=says) as caught:
        started(kind, out)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_comparison_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    bad = CONFIG.model_copy(update={"method": "local"})
    with pytest.raises(FedloomError):
        compare([bad], out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_damaged_mark_is_no_mark(tmp_path: Path) -> None:
    (tmp_path / folders.MARKER).write_text("{")
    with pytest.raises(RunFolderError, match="did not write"):
        folders.check(tmp_path, "run")
