"""How far cells are, by their folder: looking writes nothing."""

from pathlib import Path

from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.study_folder import StudyFolder, read

CONFIG = parse({"scenario": {"source": "digits", "partition": "iid", "clients": 2}})


def test_looking_at_a_cell_creates_nothing(tmp_path: Path) -> None:
    study_folder = StudyFolder(tmp_path)
    assert study_folder.state("cell", CONFIG) == "left"
    assert not list(tmp_path.iterdir())


def test_a_study_with_other_names_for_the_same_cells_takes_the_folder_over(tmp_path: Path) -> None:
    study_folder, keys = StudyFolder(tmp_path), {"scenario": {"source": "digits", "partition": "iid", "clients": 2}}
    old = parse_study(keys | {"methods": {"weak": {"method": "fedprox"}}, "seeds": 2})
    new = parse_study(keys | {"methods": {"FedProx": {"method": "fedprox"}}, "seeds": 2})
    for study in (old, new):
        study_folder.claim(study)
        kept = read(tmp_path)
        assert kept is not None
        assert kept.values == study.values
    study_folder.claim(
        parse_study(keys | {"methods": {"weak": {"method": "fedprox"}}, "seeds": 1})
    )  # a part changes nothing
    assert read(tmp_path) == new


def test_a_cell_that_somebody_holds_is_under_way(tmp_path: Path) -> None:
    with StudyFolder(tmp_path).cell_lock("trials/cell"):
        assert StudyFolder(tmp_path).state("trials/cell", CONFIG) == "under way"
    assert StudyFolder(tmp_path).state("trials/cell", CONFIG) == "left"
