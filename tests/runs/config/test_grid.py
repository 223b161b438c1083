"""Which lists are compared, which are one value, and which references a comparison adds."""

from typing import Any

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.runs.config.grid import variants, variants_with_references
from fedloom.runs.config.run_config import load

BASE = ["scenario.source=digits", "scenario.partition=dirichlet"]


def made(*words: str, **how: Any) -> list[Any]:
    words = words if any(word.startswith("scenario.alpha") for word in words) else (*words, "scenario.alpha=0.5")
    return variants(load(None, [*BASE, *words]), **{"methods": ["fedavg"], "seeds": 1} | how)


def test_listed_values_methods_and_seeds_multiply_the_seed_fastest() -> None:
    configs = made("scenario.alpha=[0.1,1.0]", "rounds=[2,3]", methods=["fedavg", "fedprox"], seeds=2)
    seen = [(c.scenario.resolved()["alpha"], c.rounds, c.method, c.seed) for c in configs]
    assert seen == [
        (alpha, rounds, method, seed)
        for alpha in (0.1, 1.0)
        for rounds in (2, 3)
        for method in ("fedavg", "fedprox")
        for seed in (0, 1)
    ]


@pytest.mark.parametrize(
    ("word", "pick", "value"),
    [
        ("model=[lenet5,mlp]", lambda c: c.model, ("lenet5", "mlp")),
        ("scenario.skews=[{name: noise, sigma: 1}]", lambda c: len(c.scenario.skews), 1),
        ("scenario.skews=[]", lambda c: c.scenario.skews, ()),
        ("optimizer.betas=[0.8,0.9]", lambda c: c.optimizer.betas, (0.8, 0.9)),
        ("evaluation.also=[online]", lambda c: c.evaluation.also, ("online",)),
    ],
)
def test_a_list_is_one_value_where_its_key_takes_lists(word: str, pick: Any, value: Any) -> None:
    (config,) = made(word)
    assert pick(config) == value


@pytest.mark.parametrize(
    ("word", "pick", "values"),
    [
        ("model=[[lenet5],[mlp]]", lambda c: c.model, [("lenet5",), ("mlp",)]),
        ("model=[[lenet5,mlp],[{name: mlp, hidden: [8]}]]", lambda c: len(c.model), [2, 1]),
        ("scenario.skews=[[{name: noise, sigma: 1}],[]]", lambda c: len(c.scenario.skews), [1, 0]),
        ("optimizer.betas=[[0.8,0.9],[0.7,0.9]]", lambda c: c.optimizer.betas[0], [0.8, 0.7]),
        ("evaluation.also=[[online],[offline]]", lambda c: c.evaluation.also, [("online",), ("offline",)]),
        ("preset=[paper,sound]", lambda c: c.preset, ["paper", "sound"]),
    ],
)
def test_a_list_of_lists_compares_lists(word: str, pick: Any, values: Any) -> None:
    assert [pick(config) for config in made(word)] == values


def test_an_option_of_one_method_does_not_repeat_the_others() -> None:
    configs = made("fedsc.tau=[0.1,0.2]", methods=["fedavg", "fedsc"])
    assert [(c.method, c.build_method().options.model_dump().get("tau")) for c in configs] == [
        ("fedavg", None),
        ("fedsc", 0.1),
        ("fedsc", 0.2),
    ]


def test_methods_and_seeds_may_be_lists_of_the_config() -> None:
    configs = made("method=[fedavg,local]", "seed=[3,7]", methods=None, seeds=None)
    assert [(c.method, c.seed) for c in configs] == [("fedavg", 3), ("fedavg", 7), ("local", 3), ("local", 7)]
    assert [c.seed for c in made("seed=5", seeds=[2, 9])] == [2, 9]
    assert [c.seed for c in made("seed=5", seeds=2)] == [5, 6]


@pytest.mark.parametrize(("own", "methods"), [("", ["fedavg", "fedsc"]), ("method=fedco2", ["fedavg", "fedco2"])])
def test_unless_named_fedavg_meets_the_method_of_the_config(own: str, methods: list[str]) -> None:
    configs = made(*filter(None, [own]), methods=None, seeds=None)
    assert list(dict.fromkeys(c.method for c in configs)) == methods
    assert sorted({c.seed for c in configs}) == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "how", "says"),
    [
        ([], {"methods": ["fedavg", "fedavg"]}, "method = 'fedavg' stands twice"),
        ([], {"seeds": [1, 1]}, "seed = 1 stands twice"),
        ([], {"methods": []}, r"method = \[\]: need at least one value"),
        (["scenario.alpha=[0.1,0.10]"], {}, "scenario.alpha = 0.1 stands twice"),
        (["scenario.alpha=[]"], {}, r"scenario.alpha = \[\]: need at least one value"),
        (["scenario.alpha=[0.1,0]"], {}, "scenario.alpha = 0: input should be greater than 0"),
        (["scenario.alpha=[0.1,1]", "participation=0"], {}, "participation = 0"),
        (["scenario.skews=[{name: noise}]"], {}, "sigma is missing"),
        (["method=[fedavg]"], {}, "method is a list, and methods are named too"),
        (["seed=[1]"], {}, "seed is a list, and seeds are named too"),
        (["seed=x"], {}, "seed = 'x': need a whole number"),
        (["scenario.alfa=[1,2]"], {}, "unknown key"),
    ],
)
def test_what_cannot_be_compared_is_said_in_one_line(words: list[str], how: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        made(*words, **how)
    assert "\n" not in str(refused.value)


def test_the_values_given_stay_as_they_are() -> None:
    values = load(None, [*BASE, "scenario.alpha=[0.1,1.0]"])
    before = repr(values)
    variants(values, ["fedavg"], 1)
    assert repr(values) == before


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
