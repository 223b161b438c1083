"""The rows that a comparison adds as references: by protocol, each once."""

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.runs.config.grid import variants_with_references

DATA = {"source": "digits", "partition": "iid", "clients": 4}


def methods(protocols, names, **keys):
    configs = variants_with_references(
        {"scenario": DATA, "rounds": 1, "evaluation": {"protocol": protocols}, **keys}, names, [0]
    )
    return [(config.method, config.evaluation.protocol) for config in configs]


@pytest.mark.parametrize(
    ("protocol", "names", "added"),
    [
        ("global/global", ["fedprox"], ["fedavg", "central"]),
        ("global/local", ["fedavg", "fedprox"], ["central"]),
        ("personal/local", ["fedper"], ["local", "fedavg+finetune", "fedavg+lpft"]),
        ("personal/global", ["local", "fedper"], ["fedavg+finetune", "fedavg+lpft"]),
    ],
)
def test_references_by_protocol(protocol, names, added):
    assert methods(protocol, names) == [(name, protocol) for name in [*names, *added]]


def test_each_setting_has_its_own_references():
    runs = methods(["global/global", "personal/local"], ["ditto"])
    assert set(runs) == {
        ("ditto", "global/global"),
        ("ditto", "personal/local"),
        ("fedavg", "global/global"),
        ("central", "global/global"),
        ("local", "personal/local"),
        ("fedavg+finetune", "personal/local"),
        ("fedavg+lpft", "personal/local"),
    }
    assert len(runs) == 7


def test_of_several_protocols_a_reference_has_its_own():
    several = ["global/global", "global/local", "personal/local"]
    values = {"scenario": DATA, "rounds": 1, "evaluation": {"protocols": several}}
    configs = variants_with_references(values, ["ditto", "local"], [0])
    tested = {config.method: config.evaluation.tested_protocols for config in configs}
    assert tested == {
        **dict.fromkeys(("ditto", "local"), tuple(several)),  # as they were asked for
        **dict.fromkeys(("fedavg", "central"), ("global/global", "global/local")),
        **dict.fromkeys(("fedavg+finetune", "fedavg+lpft"), ("personal/local",)),
    }
    assert len(configs) == 6


def test_few_shot_has_no_references():
    with pytest.raises(ConfigError, match=r"^references: there are none for the protocol few-shot; leave them out$"):
        methods("few-shot", ["fedavg"])
    mixed = methods(["few-shot", "global/global"], ["fedprox"])
    assert [name for name, _ in mixed] == ["fedprox", "fedprox", "fedavg", "central"]


def test_options_of_the_compared_method_stay_its_own():
    values = {"scenario": DATA, "rounds": 1, "fedprox": {"mu": 0.5}, "preset": "sound"}
    configs = variants_with_references(values, ["fedprox"], [0])
    assert [config.method for config in configs] == ["fedprox", "fedavg", "central"]


def test_in_python_and_in_the_table():
    comparison = fl.compare("fedprox", scenario=fl.scenario(**DATA), seeds=1, rounds=1, model="mlp", references=True)
    assert [result.numbers["method"] for result in comparison.results] == ["fedprox", "fedavg", "central"]
