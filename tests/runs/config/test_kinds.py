"""Kinds that change over a config: what is dropped, what is said, and what is still refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.runs.config.grid import grid_points
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.studies.plan import parse_study

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"


def written(folder: Path, **keys: Any) -> Path:
    """A config file over the demo's keys; a mapping joins a section."""
    values = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    for key, value in keys.items():
        joins = isinstance(value, dict) and isinstance(values.get(key), dict)
        values[key] = {**values[key], **value} if joins else value
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def changed(path: Path, *words: str) -> RunConfig:
    return parse(load(path, words))


def test_another_partition_drops_the_keys_of_the_former_one_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    config = changed(DEMO, "scenario.partition=iid")
    assert config.scenario.partition == "iid"
    assert config.scenario.clients == 10
    assert [record.getMessage() for record in caplog.records] == [
        "note: scenario.partition=iid drops scenario.alpha=0.1 of the config"
    ]


CSV = {"source": "csv", "path": "a.csv", "label": "ill", "partition": "iid"}
ATTACK = {"name": "label-flip", "share": 0.2}


@pytest.mark.parametrize(
    ("keys", "words", "dropped"),
    [
        ({"scenario": CSV}, ["scenario.source=digits"], "scenario.path='a.csv'"),
        (
            {"scenario": {"classes_per_client": 3, "partition": "pathological"}},
            ["scenario.partition=iid"],
            "scenario.classes_per_client=3",
        ),
        ({"model": {"name": "mlp", "hidden": [9]}}, ["model.name=lenet5"], "model.hidden=[9]"),
        ({"model": {"name": "mlp", "hidden": [9]}}, ["model=lenet5"], "model.hidden=[9]"),
        ({"model": [{"name": "mlp", "hidden": [9]}, "lenet5"]}, ["model.0.name=lenet5"], "model.0.hidden=[9]"),
        ({"optimizer": {"lr": 0.1}}, ["optimizer=adam"], "optimizer.lr=0.1"),
        ({"optimizer": {"momentum": 0.5}}, ["optimizer.name=adam"], "optimizer.name=adam drops optimizer.momentum=0.5"),
        ({"optimizer": {"name": "adam", "eps": 0.1}}, ["optimizer.name=sgd"], "drops optimizer.eps=0.1"),
        ({"scenario": {"split": None, "val": 0.2}}, ["scenario.split={train: 0.6, val: 0.2, test: 0.2}"], "val=0.2"),
        ({"scenario": {"val": 0.2}}, ["scenario.partition=iid", "scenario.clients=3"], "scenario.alpha=0.1"),
        ({"evaluation": {"metrics": ["auroc"]}}, ["evaluation.protocol=few-shot"], "evaluation.metrics=['auroc']"),
        ({"method": "fml", "preset": "fedssa"}, ["method=fedavg"], "preset='fedssa'"),
    ],
)
def test_every_kind_drops_its_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keys: dict[str, Any], words: list[str], dropped: str
) -> None:
    load(written(tmp_path, **keys), words)
    assert [dropped in record.getMessage() for record in caplog.records] == [True]


def test_a_source_of_nodes_drops_what_only_the_server_could_do(tmp_path: Path) -> None:
    path = written(tmp_path, scenario={"attack": ATTACK, "tests": "matched"})
    config = changed(path, "scenario.source=nodes", "scenario.classes=[well, ill]", "scenario.features=[age]")
    assert (config.scenario.partition, config.scenario.attack) == ("natural", None)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["scenario.partition=iid", "scenario.alpha=1"],
            "source digits and partition iid have none; it is a key of partition dirichlet",
        ),
        (["scenario.alpha=1", "scenario.partition=iid"], "unknown key 'scenario.alpha'"),
        (["scenario.partition=iid", "scenario.aplha=null"], "unknown key 'scenario.aplha'"),
        (["scenario.partition=idd"], "unknown partition 'idd'"),
        (["scenario={partition: iid, alpha: 1}"], "unknown key 'scenario.alpha'"),
    ],
)
def test_what_was_typed_is_still_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        changed(DEMO, *words)


def test_a_slip_in_the_file_is_still_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'scenario\.aplha'"):
        changed(written(tmp_path, scenario={"aplha": 1}), "scenario.partition=iid")


@pytest.mark.parametrize("word", ["rounds=null", "optimizer.lr=null", "scenario.clients=null"])
def test_null_drops_a_key(word: str) -> None:
    *path, key = word.removesuffix("=null").split(".")
    values: Any = load(DEMO, [word])
    for section in path:
        values = values[section]
    assert key not in values
    parse(load(DEMO, [word]))


def test_null_drops_a_key_that_another_kind_lacks(tmp_path: Path) -> None:
    path = written(tmp_path, scenario={"partition": "iid"})
    assert changed(path, "scenario.alpha=null").scenario.partition == "iid"


def test_null_stays_where_it_is_a_value(tmp_path: Path) -> None:
    assert changed(DEMO, "flower.max_ratio=null").flower.max_ratio is None
    assert changed(DEMO, "scenario.seed=null", "model=null").model is None
    assert load(DEMO, ["feddf.server_batch_size=null"])["feddf"] == {"server_batch_size": None}


def test_compared_kinds_get_the_keys_that_they_know() -> None:
    values = load(DEMO, ["scenario.partition=[iid, dirichlet, nid2]", "scenario.alpha=[0.1, 1.0]"])
    points = grid_points(values, ["fedavg"], 1)
    assert [point.chosen for point in points] == [
        {"scenario.partition": "iid"},
        {"scenario.partition": "dirichlet", "scenario.alpha": 0.1},
        {"scenario.partition": "dirichlet", "scenario.alpha": 1.0},
        {"scenario.partition": "nid2"},
    ]


def test_a_setting_of_a_study_changes_the_kind_of_its_config() -> None:
    settings = {"iid": {"scenario": {"partition": "iid"}}, "skewed": {"scenario": {"alpha": 1.0}}}
    study = parse_study({"config": "demo", "settings": settings, "methods": {"fedavg": {}}, "seeds": 1})
    assert [cell.config.scenario.partition for cell in study.cells] == ["iid", "dirichlet"]


LIST = "evaluation.protocols=[global/local, personal/local]"


@pytest.mark.parametrize(
    ("text", "word", "main", "tested"),
    [
        ("{protocol: personal/global}", LIST, "global/local", ("global/local", "personal/local")),
        ("{protocol: global/local}", LIST, "global/local", ("global/local", "personal/local")),
        ("{}", LIST, "global/local", ("global/local", "personal/local")),
        ("{protocols: [global/global, global/local]}", LIST, "global/local", ("global/local", "personal/local")),
        (
            "{protocols: [global/global, global/local]}",
            "evaluation.protocol=personal/local",
            "personal/local",
            ("personal/local",),
        ),
        ("{protocols: [global/global, global/local]}", "rounds=3", "global/global", ("global/global", "global/local")),
        ("{protocol: global/local}", "evaluation.protocols=[personal/local]", "personal/local", ("personal/local",)),
    ],
)
def test_what_is_typed_replaces_the_other_key(text, word, main, tested, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"scenario: {{source: digits, partition: iid}}\nevaluation: {text}\n")
    evaluation = parse(load(path, [word])).evaluation
    assert (evaluation.protocol, evaluation.tested_protocols) == (main, tested)


def test_a_resolved_config_is_itself_again():
    config = parse(
        {
            "scenario": {"source": "digits", "partition": "iid"},
            "evaluation": {"protocols": ["global/local", "personal/local"]},
        }
    )
    again = parse(config.resolved())
    assert again.fingerprint() == config.fingerprint()
