"""Ready configs: every file is a config that parses, says what it is, and names a model that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.study.config import parse
from fedloom.study.ready import Ready, find_config, find_ready, ready_configs

READY = ready_configs()


@pytest.mark.parametrize("ready", READY, ids=lambda r: r.name)
def test_every_ready_config_parses_and_says_what_it_is(ready: Ready) -> None:
    values = yaml.safe_load(ready.text)
    config = parse(values)
    assert config.resolved()["scenario"]["clients"] >= 1
    assert len(ready.summary) > 15
    assert ready.summary in ready.text


def test_names_and_their_beginnings_find_them() -> None:
    assert find_ready("demo").path.name == "demo.yaml"
    assert find_ready("fedsc/cifar10-nid2").name == "fedsc/cifar10-nid2"
    assert find_ready("fedskc/emnist-dirichlet-0.2").summary.startswith("FedSKC")
    with pytest.raises(ConfigError, match="write more of it"):
        find_ready("fedsc/")
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        find_ready("dem0")


def test_a_config_is_found_by_its_path_or_by_a_ready_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # as where a wheel is installed: no configs/ here
    for name in ("configs/demo.yaml", "demo.yaml", "demo", "fedsc/cifar10-nid2", "configs/fedsc/cifar10-nid2.yaml"):
        found = find_config(Path(name))
        assert found.is_file()
        assert found.stem == Path(name.removesuffix(".yaml")).name
    Path("demo").mkdir()
    assert find_config(Path("demo")).name == "demo.yaml"  # a folder is no config
    Path("demo.yaml").touch()
    assert find_config(Path("demo.yaml")) == Path("demo.yaml")  # what is here comes first
    with pytest.raises(ConfigError, match="none: no such config file; `fedloom scenarios` lists the ready ones"):
        find_config(Path("none"))
    with pytest.raises(ConfigError, match="did you mean 'demo'"):
        find_config(Path("configs/dmo.yaml"))
    Path("run").mkdir()
    with pytest.raises(ConfigError, match="run is a folder; give a YAML file"):
        find_config(Path("run"))
    Path("run/config.yaml").touch()
    with pytest.raises(ConfigError, match=r"for the config of the run there, give run/config\.yaml"):
        find_config(Path("run"))


@pytest.mark.parametrize(
    ("paper", "tables"),
    [
        ("FedSKC", {"I", "II", "III", "IV"}),
        ("FedSC", {"1", "2", "3", "4", "5"}),
        ("FedDW", {"I", "II", "III", "IV"}),
        ("Fed-CO2", {"1", "2", "3", "4", "5", "7", "8", "9", "11", "12", "13"}),
        ("FedSSA", {"1", "2"}),
    ],
)
def test_every_table_of_the_papers_has_its_settings(paper: str, tables: set[str]) -> None:
    mentioned: set[str] = set()
    for ready in READY:
        found = re.match(rf"{paper}, Tables? ([^:]+):", ready.summary)
        if found:
            mentioned |= set(re.findall(r"[IVX]+|\d+", found[1]))
    assert tables <= mentioned
