"""Ready configs: every file is a config that parses, says what it is, and names its method and preset."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import yaml

from fedloom.core.errors import ConfigError
from fedloom.data.views import Views, hold_out
from fedloom.papers.recipe import find_recipe
from fedloom.runs.config.reference import ReadyConfig, find_config, find_ready, ready_configs
from fedloom.runs.config.run_config import parse

READY = ready_configs()
OF_FIGURES = [ready for ready in READY if ", Fig. " in ready.summary]  # settings that no table has
OF_PAPERS = [ready for ready in READY if "/" in ready.name and ready not in OF_FIGURES]
# Tables by the settings that their captions and columns name, as patterns of the configs' names.
TABLES = {
    "fedskc": {
        "I": r"cifar100?-dirichlet.*|cifar10-longtail.*|fc100.*",
        "II": r"emnist.*|cifar100-longtail.*",
        "III": r"cifar100?-dirichlet-0\.2|cifar10-longtail-50",
        "IV": r"emnist-dirichlet-0\.2|cifar100-longtail-50",
        "V": r"cifar100?-dirichlet-0\.2",
    },
    "fedsc": {
        "1": r".*-nid1-0\.05|.*-nid1-0\.2|.*-nid2",
        "2": r".*-longtail-.*",
        "3": r"cifar100?-nid1-0\.2",
        "4": r"cifar10-.*",
        "5": r"cifar10-nid1-0\.2",
    },
    "feddw": {
        "I": r".*-practical|.*-pathological",
        "II": r"cifar100?-(practical|shufflenet|mobilenetv2|50-clients|100-clients|25-.*|125-.*)",
        "III": r"cifar100-pathological",
        "IV": r"cifar100-pathological",
    },
    "fedco2": {
        "1": r"office-caltech10",
        "2": r"domainnet",
        "3": r"cifar10-dirichlet-100-clients|cifar100?-pathological|cifar100-pachinko",
        "4": r"digits-dirichlet-0\.3",
        **dict.fromkeys(("5", "10", "11", "12"), r"domainnet"),
        "7": r"digits",
        "8": r"domainnet-dirichlet-2\.0",
        "9": r"office-caltech10-dirichlet-1\.0",
        "13": r"cifar10-dirichlet-.*",
    },
    "fedssa": dict.fromkeys(("1", "2", "4", "5"), r".*"),
}


def values_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(find_ready(name).text)
    return values


@pytest.mark.parametrize("ready", READY, ids=lambda r: r.name)
def test_every_ready_config_parses_and_says_what_it_is(ready: ReadyConfig) -> None:
    values = yaml.safe_load(ready.text)
    config = parse(values)
    assert config.resolved()["scenario"]["clients"] >= 1
    assert len(ready.summary) > 15
    assert ready.summary in ready.text


@pytest.mark.parametrize("ready", OF_PAPERS, ids=lambda r: r.name)
def test_every_ready_config_of_a_paper_names_its_method_and_preset(ready: ReadyConfig) -> None:
    values = yaml.safe_load(ready.text)
    method = PurePosixPath(ready.name).parent.name
    assert (values["method"], values["preset"]) == (method, "paper")
    config = parse(values)
    assert config.build_method().name() == method
    assert {"optimizer", "rounds", "participation", "local_epochs", "batch_size", "model"} <= values.keys()


@pytest.mark.parametrize("ready", OF_PAPERS, ids=lambda r: r.name)
def test_headers_name_the_tables_of_their_setting(ready: ReadyConfig) -> None:
    paper, name = ready.name.split("/")
    found = re.match(r"[\w-]+, (Tables?) ([^:]+):", ready.summary)
    assert found is not None
    named = re.findall(r"[IVX]+|\d+", found[2])
    assert named == [table for table, pattern in TABLES[paper].items() if re.fullmatch(pattern, name)]
    assert (found[1] == "Tables") == (len(named) > 1)


def test_a_setting_of_a_figure_alone_is_one_of_its_recipe() -> None:
    assert OF_FIGURES
    for ready in OF_FIGURES:
        number = re.match(r"[\w-]+, Fig\. (\d+)", ready.summary)
        assert number is not None
        columns = find_recipe(f"{ready.name.split('/')[0]}/fig{number[1]}").table.columns.values()
        assert ready.name in {column.get("config") for column in columns}


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


@pytest.mark.parametrize("paper", TABLES)
def test_every_table_of_the_papers_has_its_settings(paper: str) -> None:
    names = [ready.name.split("/")[1] for ready in OF_PAPERS if ready.name.startswith(f"{paper}/")]
    assert all(any(re.fullmatch(pattern, name) for name in names) for pattern in TABLES[paper].values())


@pytest.mark.parametrize("ready", [r for r in OF_PAPERS if r.name.startswith("feddw/")], ids=lambda r: r.name)
def test_feddw_has_the_mu_that_the_paper_found_best(ready: ReadyConfig) -> None:
    assert parse(yaml.safe_load(ready.text)).build_method().options.mu == (10 if "cifar100-" in ready.name else 0.1)


@pytest.mark.parametrize("ready", [r for r in OF_PAPERS if r.name.startswith("fedssa/")], ids=lambda r: r.name)
def test_fedssa_has_uneven_shares_and_tests_on_a_tenth_of_the_client_s_own(ready: ReadyConfig) -> None:
    scenario = parse(yaml.safe_load(ready.text)).scenario
    assert scenario.partition == "pathological"
    assert scenario.split is not None
    assert (scenario.split.train, scenario.split.val, scenario.split.test) == (8, 1, 1)


def test_the_deal_of_fedssa_is_uneven_and_every_client_tests_on_its_own_two_classes() -> None:
    given = values_of("fedssa/cifar10-10-clients")["scenario"] | {"source": "digits"}
    scenario = parse({"scenario": given}).scenario.build(0)
    parts = scenario.train, scenario.val, scenario.test
    total = sum(part.sizes for part in parts)
    assert (np.diff(np.sort(total)) > 0).sum() >= 5  # not all alike
    for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
        assert np.abs(part.sizes - share * total).max() <= 2
    labels, test_labels = scenario.train_set.y.numpy(), scenario.test_set.y.numpy()
    for client in range(10):
        held = set(labels[scenario.train[client]])
        assert len(held) == 2
        assert set(test_labels[scenario.test[client]]) == held


def test_office_has_62_training_and_50_validation_images_of_every_domain() -> None:
    scenario = parse(values_of("fedco2/office-caltech10")).scenario
    per_domain = scenario.parts()[0].model_dump()["per_domain"]
    views = Views.from_lists([np.arange(k * per_domain, (k + 1) * per_domain) for k in range(4)])
    train, val = hold_out(views, scenario.val, np.random.default_rng(0))
    assert (train.sizes.tolist(), val.sizes.tolist()) == ([62] * 4, [50] * 4)


def test_data_of_the_released_scripts() -> None:
    assert values_of("fedco2/office-caltech10-dirichlet-1.0")["scenario"]["one_in"] == [6, 7, 1, 2]
    for name, images in (("fedco2/digits", 743), ("fedco2/digits-dirichlet-0.3", 2231)):
        scenario = values_of(name)["scenario"]
        assert (scenario["per_domain"], scenario["pool_splits"]) == (images, True)
