"""Ready configs: every file is a config that parses, says what it is, and names a model that exists."""

from __future__ import annotations

import re

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.study.config import parse
from fedloom.study.ready import Ready, find_ready, ready_configs

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
