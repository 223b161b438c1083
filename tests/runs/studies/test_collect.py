"""Runs found in folders, and what is left out, with the reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.studies.outcome import collect

SCENARIO = {"source": "digits", "partition": "iid", "clients": 2}
CONFIG = {"scenario": SCENARIO, "rounds": 1, "local_epochs": 1, "engine": "serial"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a · grid/deep/b · a/inner: finished; cut, broken, plots, foreign: not."""
    root = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("a", "grid/deep/b", "a/inner", "cut", "broken")):
        run(parse(CONFIG | {"seed": seed}), out=root / name)
    (root / "cut" / "summary.json").unlink()
    (root / "broken" / "summary.json").write_text("{")
    (root / "plots" / "old").mkdir(parents=True)
    (root / "plots" / "old" / "x.png").touch()
    (root / "grid" / "notes").mkdir()
    (root / "foreign").mkdir()
    (root / "foreign" / "config.yaml").write_text("defaults: [a]\n")
    (root / "loop").symlink_to(root)
    return root


def names(root: Path, found: Any) -> list[str]:
    return [str(result.folder.relative_to(root)) for result in found.results]


def test_runs_are_found_at_any_depth_and_the_rest_is_told(runs: Path) -> None:
    found = collect([runs])
    assert names(runs, found) == ["a", "a/inner", "grid/deep/b"]
    told = {str(path.relative_to(runs)): why for path, why in found.left_out}
    assert set(told) == {"broken", "cut", "foreign", "grid/notes", "plots"}
    assert told["cut"] == "unfinished, 1 of 1 rounds"
    assert told["broken"].startswith("damaged: ")
    assert told["plots"] == told["grid/notes"] == "no run in it"
    assert told["foreign"] == "its config.yaml is not of a run"


def test_folders_that_overlap_are_read_once(runs: Path) -> None:
    found = collect([runs / "grid", runs / "a", runs, runs / "a" / "inner"])
    assert sorted(names(runs, found)) == ["a", "a/inner", "grid/deep/b"]


def test_without_a_finished_run_the_reasons_are_the_error(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no finished run there: .*cut: unfinished, 1 of 1 rounds"):
        collect([runs / "cut"])
    with pytest.raises(ConfigError, match="no run in it"):
        collect([tmp_path])
    with pytest.raises(ConfigError, match="no such folder"):
        collect([tmp_path / "nowhere"])


def test_a_summary_without_its_config_is_damaged(tmp_path: Path, runs: Path) -> None:
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({}))
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "config.yaml").write_text(yaml.safe_dump({"scenario": {}, "rounds": 3}))
    with pytest.raises(ConfigError, match=r"x: damaged.*y: unfinished, 0 of 3 rounds"):
        collect([tmp_path])


def test_a_run_whose_version_cannot_be_read_is_left_out_and_blocks_no_other(tmp_path: Path, runs: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(runs / "grid" / "deep" / "b", tmp_path / name)
    (tmp_path / "a" / "env.json").write_text('{"versions": null}')
    found = collect([tmp_path])
    assert names(tmp_path, found) == ["b"]
    ((path, why),) = found.left_out
    assert (path.name, why) == (
        "a",
        f"damaged: {path}/env.json: damaged (versions = None); delete the run folder and run again",
    )
