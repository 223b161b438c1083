"""Runs of several versions, and folders and records of machines: what is refused, and what can still be read."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.data import describe_input, describe_scenario
from fedloom.runs.config.run_config import parse
from fedloom.runs.storage.data_record import peak_memory_mb
from fedloom.runs.storage.finished_runs import refuse_mixed, version_of
from fedloom.runs.storage.schemas import error_in_scenario


def test_one_version_is_no_mix() -> None:
    refuse_mixed({})
    refuse_mixed({}, more=True)
    refuse_mixed({"a": "0.0.1", "b": "0.0.1", "c": None})
    refuse_mixed({"a": __version__, "b": None}, more=True)


def test_several_versions_are_refused_with_a_run_of_another_one() -> None:
    says = (
        f"runs of different versions of fedloom: 2 runs of 0.0.1 and 1 run of {__version__}; b is of 0.0.1, this is "
        f"{__version__}: keep each version in a separate folder, or join them with --allow-mixed"
    )
    with pytest.raises(ConfigError) as raised:
        refuse_mixed({"a": __version__, "b": "0.0.1", "c": "0.0.1"})
    assert str(raised.value) == says
    with pytest.raises(ConfigError, match=r"fedloom: 1 run of 0\.0\.1; a is of 0\.0\.1, this is"):
        refuse_mixed({"a": "0.0.1"}, more=True)


def test_what_does_not_say_its_version_is_not_known_and_what_is_damaged_is_refused(tmp_path: Path) -> None:
    assert version_of(tmp_path) is None
    for text in ("{}", '{"versions": {}}'):
        (tmp_path / "env.json").write_text(text)
        assert version_of(tmp_path) is None
    for text in ('{"versions": null}', '{"versions": [1]}', "[]", "{"):
        (tmp_path / "env.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"env\.json: damaged \(.*delete the run folder and run again"):
            version_of(tmp_path)


# All that scenario.json had at first; later versions add keys, and ask for no more of earlier ones.
KEYS = {
    *("acceptance", "class_counts", "classes", "classes_per_client", "clients", "domain_counts", "domains", "draws"),
    *("empty_classes", "empty_clients", "feature_shift", "imbalance", "input", "name", "size_ratio"),
    *("test_samples", "total_variation", "train_samples", "val_samples"),
}


def test_a_scenario_of_an_earlier_version_is_not_damaged() -> None:
    keys = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4}
    scenario = parse({"scenario": keys}).scenario.build(0)
    content = describe_scenario(scenario) | {"input": describe_input(scenario.train_set)}
    earlier = {key: value for key, value in content.items() if key in KEYS}
    assert earlier.keys() == KEYS
    assert error_in_scenario(earlier) is None
    del earlier["classes_per_client"]
    assert error_in_scenario(earlier) == "it lacks classes_per_client"


_PEAK = "from fedloom.runs.storage.data_record import peak_memory_mb; print(peak_memory_mb())"


def test_peak_memory_is_this_process_own():
    block = np.ones(2**27)
    assert peak_memory_mb() > block.nbytes / 2**20
    child = float(subprocess.run([sys.executable, "-c", _PEAK], check=True, capture_output=True).stdout)
    assert child < peak_memory_mb() - 500
    del block
