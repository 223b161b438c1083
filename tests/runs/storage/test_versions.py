"""Runs of several versions are refused with what would be right; runs of one version, whichever, are not."""

from pathlib import Path

import pytest

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.storage.finished_runs import refuse_mixed, version_of


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
