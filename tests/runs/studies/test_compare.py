"""Several runs: each once, with callbacks of their own, in any number of processes."""

from pathlib import Path
from typing import Any

import pytest

from die_once import FullDisk
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.config.run_config import parse
from fedloom.runs.early_stopping import EarlyStopping
from fedloom.runs.studies.run_study import compare


def configs(**changes: Any) -> list[Any]:
    scenario = {"source": "digits", "partition": "iid", "clients": 2}
    values = {"scenario": scenario, "rounds": 3, "local_epochs": 1, "engine": "serial"} | changes
    return [parse(values | {"seed": seed}) for seed in (0, 1)]


def test_runs_that_are_the_same_are_refused(tmp_path: Path) -> None:
    one, _ = configs()
    with pytest.raises(ConfigError, match=r"fedavg-sound-seed0-.* is there twice"):
        compare([one, one], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_method_without_the_tested_model_is_named_before_any_run(tmp_path: Path) -> None:
    """FedRep has personal models alone; FedAvg would have trained for nothing."""
    fedavg, fedrep = configs()[0], configs(method="fedrep")[0]
    with pytest.raises(ConfigError, match=r"'global/global': fedrep has no global model; use personal/global or"):
        compare([fedavg, fedrep], out=tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_run_has_callbacks_of_its_own_in_one_process_and_in_several(tmp_path: Path) -> None:
    stop = EarlyStopping(patience=1, min_delta=1.0)  # no accuracy rises by more than 100 points
    for jobs in (1, 2):
        results = compare(configs(), out=tmp_path / str(jobs), jobs=jobs, callbacks=[stop])
        assert [result.numbers["stopped"]["round"] for result in results] == [2, 2]


def test_without_a_folder_runs_go_one_by_one() -> None:
    assert [result.folder for result in compare(configs(rounds=1), out=None, jobs=1)] == [None, None]
    with pytest.raises(ConfigError, match="several processes need out"):
        compare(configs(), out=None, jobs=2)


def test_a_full_disk_ends_a_comparison_in_a_line_that_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=f"^{tmp_path}: no space left on the device; its runs have stopped"):
        compare(configs(rounds=1), out=tmp_path, jobs=1, callbacks=[FullDisk()])
    assert len(list(tmp_path.glob("fedavg-*"))) == 1  # the other one was never begun
    assert len(compare(configs(rounds=1), out=tmp_path, jobs=1)) == 2
