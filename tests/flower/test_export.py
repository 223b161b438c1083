"""The app that is exported: small, readable, and the same run."""

import tomllib

import pytest

from fedloom.core.errors import ConfigError
from fedloom.flower.apps import PACKAGE, export
from fedloom.runs.config.run_config import load, parse
from flower_world import config_of


def test_an_exported_app_has_the_run_of_the_config(tmp_path):
    config = config_of("fedsc", seed=3, flower={"min_clients": 2})
    written = export(config, tmp_path / "app")
    again = parse(load(tmp_path / "app" / PACKAGE / "config.yaml"))
    assert again.fingerprint() == config.fingerprint()
    assert again.flower == config.flower
    assert sum(len(path.read_text().splitlines()) for path in written if path.suffix == ".py") < 20


def test_the_project_file_is_what_flower_reads(tmp_path):
    export(config_of(), tmp_path)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"] == {
        "serverapp": f"{PACKAGE}.server:app",
        "clientapp": f"{PACKAGE}.client:app",
    }
    assert {"name", "version", "description", "license"} <= project["project"].keys()


def test_an_app_may_be_exported_again_but_not_over_other_files(tmp_path):
    export(config_of(), tmp_path / "app")
    export(config_of("fedsc"), tmp_path / "app")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="it has other files"):
        export(config_of(), tmp_path)
