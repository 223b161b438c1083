"""Links in a folder that may come from somebody else: nothing is written or deleted through them."""

import os
import shutil
from pathlib import Path

import pytest

from fedloom.core.errors import RunFolderError
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.log import START, MetricsLog
from fedloom.runs.storage.run_folder import folder_name
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import compare, run_study
from fedloom.runs.studies.study_folder import StudyFolder

VALUES = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2},
    "rounds": 1,
    "local_epochs": 1,
    "engine": "serial",
}
FILES = ("config.yaml", "scenario.json", "env.json", "metrics.jsonl", "metrics.parquet", ".metrics.parquet")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run folder without its end."""
    folder = tmp_path_factory.mktemp("links") / "run"
    run(parse(VALUES), out=folder)
    (folder / "summary.json").unlink()
    (folder / "metrics.parquet").unlink()
    return folder


@pytest.mark.parametrize("existing", ["resume", "fresh"])
@pytest.mark.parametrize("name", [*FILES, "summary.json"])
def test_a_linked_file_is_refused_and_its_target_stays(begun, tmp_path, name, existing):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(begun, folder)
    content = (folder / name).read_bytes() if (folder / name).exists() else b"precious"
    victim.write_bytes(content)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    with pytest.raises(RunFolderError):
        run(parse(VALUES), out=folder, existing=existing)
    assert victim.read_bytes() == content


@pytest.mark.parametrize("existing", ["resume", "fresh"])
@pytest.mark.parametrize("name", ["checkpoint", "checkpoint/round-000007", ".states"])
def test_a_linked_folder_is_refused_and_its_target_stays(begun, tmp_path, name, existing):
    folder, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(begun, folder)
    (victim / "round-000001").mkdir(parents=True)
    (victim / "round-000001" / "thesis.tex").write_text("years of work")
    if name == "checkpoint":
        shutil.rmtree(folder / name)
    (folder / name).symlink_to(victim)
    with pytest.raises(RunFolderError, match="a link, through which fedloom neither writes nor deletes"):
        run(parse(VALUES), out=folder, existing=existing)
    assert (victim / "round-000001" / "thesis.tex").read_text() == "years of work"


def test_the_run_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    assert run(parse(VALUES), out=tmp_path / "run").numbers["rounds"] == 1
    assert (tmp_path / "disk" / "summary.json").exists()


def test_a_linked_run_folder_outlives_a_config_that_does_not_work(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to("disk")
    with pytest.raises(Exception, match="lenet5"):
        run(parse(VALUES | {"model": "lenet5"}), out=tmp_path / "run")
    assert (tmp_path / "run").is_symlink()
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_linked_cell_of_a_comparison_is_refused(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / folder_name(parse(VALUES))).symlink_to(tmp_path / "victim")
    with pytest.raises(RunFolderError, match="a link"):
        compare([parse(VALUES)], out=tmp_path / "c")
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize("name", [".locks", "trials", ".copies"])
def test_a_linked_folder_of_a_study_is_refused(tmp_path, name):
    study, place = parse_study(VALUES | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    place.claim(study)
    (tmp_path / "victim").mkdir()
    (place.path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(RunFolderError, match="a link"):
        run_study(study, place, study.cells)
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_linked_cell_of_a_study_fails_and_its_target_stays(tmp_path):
    study, place = parse_study(VALUES | {"methods": ["fedavg"], "seeds": 1}), StudyFolder(tmp_path / "s")
    place.claim(study)
    (tmp_path / "victim").mkdir()
    place.cell(study.cells[0].folder).symlink_to(tmp_path / "victim")
    ended = run_study(study, place, study.cells)
    assert "a link" in ended.failed[study.cells[0].name]
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_copy_of_hard_links_does_not_share_its_metrics(tmp_path):
    row = {"round": 1, "client": None, "split": "test", "protocol": None, "name": "accuracy", "value": 0.5}
    first = MetricsLog(tmp_path / "a.jsonl")
    first.append([row])
    os.link(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    MetricsLog(tmp_path / "b.jsonl").truncate(START)
    assert len(first.rows()) == 1


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "config.yaml", "scenario.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(begun, tmp_path, name):
    folder = Path(shutil.copytree(begun, tmp_path / "run"))
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(RunFolderError, match="it is no regular file"):
        run(parse(VALUES), out=folder, existing="resume")
