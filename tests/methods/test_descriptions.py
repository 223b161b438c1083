"""What lists and pages tell of methods, asked of their code; presets of the papers that compare with them."""

import inspect
import re
import sys

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS, WRAPPERS, Method, Options, Sent, Spec, register
from fedloom.methods.catalogue import (
    _TOY,
    _TOY_WITHOUT_NORM,
    _new_task,
    _refusal,
    abilities,
    entry,
    our_choices,
    refusal,
    set_by,
    wrappers_of,
)
from fedloom.methods.contract.citation import formula, papers, traffic_symbols
from fedloom.methods.contract.method import PRESETS
from fedloom.runs.config.run_config import parse
from support import TinyBN, configured, world

IN_ONE_THREAD = 32_768  # elements: torch shares out a copy of more among threads, which then wait for work
HOUSE = [name for name, kind in METHODS if kind.__module__.startswith("fedloom.")]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2]]


@pytest.mark.parametrize("name", HOUSE)
def test_every_method_states_its_source_and_its_text_says_the_same(name):
    kind = METHODS.get(name)
    citation, text = kind.citation, " ".join(inspect.cleandoc(kind.__doc__).split())
    assert "citation" in vars(kind)
    assert {*citation.down, *citation.up, *citation.state} <= traffic_symbols().keys()
    assert set(citation.compared_in) <= papers().keys()
    if citation.source:
        assert citation.published.split()[-1] in text
        assert citation.source.split(",")[0].removesuffix(" et al.").split(" & ")[0] in text
        for number in re.findall(r"arXiv (\d{4}\.\d{5})", citation.source):
            assert number in text


@pytest.mark.parametrize("name", [*HOUSE, *(f"fedavg+{wrapper}" for wrapper in WRAPPERS.names())])
def test_every_option_has_a_meaning(name):
    """A description is one or several sentences."""
    for option, field in METHODS.get(name).Options.model_fields.items():
        assert re.fullmatch(r"\S.{8,}\.", field.description or ""), option


def test_ideas_are_the_first_sentence_of_a_text():
    assert (entry("fedprox").title, entry("fedprox").idea) == ("FedProx", "a proximal pull to the weights received")
    assert entry("fd").title == "FD"
    assert all(entry(name).idea and len(entry(name).idea) < 120 for name in HOUSE)


def test_formulas_in_words():
    assert formula({"P": 1, "BN": -1, "H": 2}) == "P - BN + 2 H"
    assert formula({}) == "nothing"


@pytest.mark.parametrize(
    ("name", "predicts", "nets", "secure"),
    [
        ("fedavg", "global", "one", True),
        ("fedbn", "personal", "one", True),
        ("ditto", "global, personal", "one", True),
        ("fedsc", "global", "one", False),
        ("fedssa", "personal", "any", True),
        ("fedcda", "global", "one", False),
        ("local", "personal", "any", False),
    ],
)
def test_what_methods_yield_and_allow(name, predicts, nets, secure):
    one = entry(name)
    assert (one.yields, one.nets, one.abilities.secure_sum) == (predicts, nets, secure)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fednh", "local", "fedper", "fedkd", "fedclassavg"])
def test_a_wrapper_is_told_to_fit_if_it_can_be_made_and_says_nothing_against_a_run(name):
    for wrapper, why in wrappers_of(name).items():
        if why is None:
            METHODS.get(f"{name}+{wrapper}").configured("sound", {})
        else:
            assert "\n" not in why
    assert refusal("fedavg", "krum") is None
    assert "trained by the method's loss" in refusal("fednh", "dw")
    assert "private" in refusal("fedper", "dw")
    assert "there is none" in refusal("local", "median")
    assert set(wrappers_of(name)) == set(WRAPPERS.names())


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
def test_a_wrapper_that_only_minds_batch_norm_is_no_wrapper_that_the_method_refuses(name):
    assert refusal(name, "dp") is None
    assert "batch norm's statistics are shared" in entry(name).without_batch_norm["dp"]
    assert entry(name).accepted_wrappers.endswith("(dp: only nets without batch norm)")


def test_a_method_that_keeps_batch_norm_private_is_under_no_condition():
    assert "dp" not in entry("fedbn").without_batch_norm
    assert refusal("fedbn", "dp") is None


def test_our_choices_are_those_of_the_method_and_of_its_options():
    assert our_choices(METHODS.get("scaffold")).startswith("Option I's gradient is taken in evaluation mode")
    assert "tuning_epochs: " in our_choices(METHODS.get("fedbabu"))
    assert our_choices(METHODS.get("fedprox")) == ""


def test_departures_and_differences_of_released_code_are_no_choices_of_ours():
    citation = METHODS.get("fedsc").citation
    assert citation.departures.startswith("All losses are means over the batch")
    assert "released_repulsion" in citation.released_code
    assert our_choices(METHODS.get("fedsc")) == citation.our_choice
    assert not any(
        word in our_choices(METHODS.get(name)) for name in HOUSE for word in ("Departures", "released code differs")
    )


def test_a_plug_in_without_facts_is_listed_and_does_not_inherit_them():
    @register
    class Nearby(METHODS.get("fedprox")):
        """Nearby: as FedProx."""

        spec = Spec(sends={"model": Sent(per_client=True)})

    try:
        one = entry("nearby")
        assert one.citation is None
        assert (one.facts()["down"], one.idea) == ("?", "as FedProx")
        assert one.facts()["published"] == ""
        assert abilities(Nearby).means == frozenset()
    finally:
        METHODS._entries.pop("nearby")


# -- presets of papers -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", HOUSE)
def test_a_method_has_a_preset_for_each_paper_that_compares_with_it(name):
    kind = METHODS.get(name)
    assert set(kind.presets) == {*PRESETS, *kind.citation.compared_in}
    for paper in kind.citation.compared_in:
        kind.configured(paper, {})
        assert kind.settings[paper] == papers()[paper]["settings"]


@pytest.mark.parametrize("name", HOUSE)
def test_released_sgd_names_its_momentum(name):
    """Otherwise it would get that of a config that names none, 0.9, where most released code has 0."""
    for settings in METHODS.get(name).settings.values():
        optimizer = settings.get("optimizer", {})
        assert not optimizer or optimizer.get("name", "sgd") == "adam" or "momentum" in optimizer


@pytest.mark.parametrize(
    ("method", "preset", "expected"),
    [
        ("fedavg", "fedskc", ("sgd", 0.01, 0.0, 0.0, 10, 64)),
        ("moon", "fedsc", ("sgd", 0.01, 0.9, 1e-5, 10, 64)),
        ("fedprox", "feddw", ("adam", 0.001, 0.9, 0.0, 5, 128)),
        ("fedbn", "fedco2", ("sgd", 0.01, 0.0, 0.0, 2, 32)),  # epochs and batches are not stated: the run's
        ("local", "fedssa", ("sgd", 0.01, 0.0, 0.0, 2, 32)),
    ],
)
def test_a_papers_preset_brings_what_the_paper_states_for_all(method, preset, expected):
    config = parse({"method": method, "preset": preset, "scenario": {"partition": "iid"}})
    local = config.optimizer
    found = (local.name, local.lr, local.momentum, local.weight_decay, config.local_epochs, config.batch_size)
    assert found == expected
    stated = parse({"method": method, "preset": preset, "local_epochs": 7, "scenario": {"partition": "iid"}})
    assert stated.local_epochs == 7


def test_options_that_a_paper_states_for_one_method():
    assert configured("fedprox", "feddw").options.mu == 0.01
    assert configured("fedprox", "fedco2").options.mu == 0.001
    assert configured("fedprox", "fedsc").options == configured("fedprox", "paper").options  # it states none
    assert set_by(METHODS.get("fedprox"), "mu") == {"feddw": 0.01, "fedco2": 0.001}
    assert configured("fedavg+dw", "sound").options.dw_mu == configured("feddw", "sound").options.mu == 30


FEDOPT = {"paper": {"v0": None}, "authors": {"v0": 0.0}}
FEDSC = {
    "paper": {
        "tau": 0.05,
        "neighbours": 2,
        "lambda_rpcl": 1.0,
        "lambda_cpdr": 1.0,
        "neighbour": "angle",
        "cpdr": "l1",
        "scale": "dataset",
        "detach_scale": True,
        "consistent": "renorm",
        "positives": "all",
        "prototypes_from": "after_training",
    },
    "authors": {
        "neighbour": "none",
        "scale": "none",
        "positives": "self",
        "cpdr": "off",
        "consistent": "code",
        "prototypes_from": "last_epoch",
    },
    "sound": {"scale": "dataset", "cpdr": "mse", "tau": 0.5},
}
FEDSKC = {
    "paper": {
        "tau": 0.08,
        "neighbours": 1,
        "beta": 0.95,
        "lambda_lcl": 1.0,
        "lcl_ramp": 0,
        "silu": True,
        "gda": "paper",
        "scale": "dataset",
        "detach_scale": True,
        "gpr": "paper",
        "denominator": "once",
        "missing_positive": "mask",
        "gpr_classes": "intersection",
    },
    "authors": {
        "silu": False,
        "scale": "none",
        "denominator": "positive_twice",
        "missing_positive": "self",
        "beta": 0.99,
        "lcl_ramp": 100,
        "knowledge_from": "last_epoch",
        "gda": "fedavg",
        "gpr": "paper",
        "gpr_classes": "own",
    },
    "sound": {"tau": 0.5, "scale": "none", "gda": "fedavg", "gpr": "off"},
}
FEDDW = {
    "paper": {
        "mu": 0.1,
        "mu_decay": None,
        "sl_init": "eye",
        "sl_ema": 1.0,
        "sl_cumulative": False,
        "absent_row": "keep",
        "linearised": "off",
        "relin_every": 0,
        "relu_on_cr": False,
        "head_bias": False,
    },
    "authors": {"mu_decay": (9, 10), "sl_ema": 0.5, "sl_cumulative": True, "absent_row": "eye", "head_bias": True},
    "sound": {"mu": 30, "absent_row": "mask"},
}
FEDCO2 = {"algorithm": "feature_skew", "weights": "uniform", "bn_stats": "personal", "offline_init": "same"}
LABEL_SKEW = {"algorithm": "label_skew", "weights": "samples", "bn_stats": "shared", "offline_init": "independent"}
STATED = {
    "fedadagrad": {**FEDOPT, "sound": {"beta1": 0}},
    "fedadam": {**FEDOPT, "authors": {"beta2": 0.999, "v0": 0.0, "bias_correction": True}},
    "fedco2": {"paper": FEDCO2, "authors": LABEL_SKEW, "sound": FEDCO2},
    "feddf": {"paper": {"steps": 10_000}, "authors": {"steps": 10_000}, "sound": {"steps": 100}},
    "feddw": FEDDW,
    "fedsc": FEDSC,
    "fedskc": FEDSKC,
    "fedssa": {
        "paper": {"mu0": 0.5, "t_stable": 2, "fusion": "literal", "pool": "sampled", "clip": None},
        "authors": {"mu0": 0.5, "t_stable": 2, "pool": "all_known", "clip": 50.0},
    },
    "fedyogi": FEDOPT,
    "moon": {p: {"mu": m, "tau": 0.5} for p, m in [("paper", 5), ("authors", 1), ("sound", 5), ("fedco2", 1)]},
}


@pytest.mark.parametrize("name", STATED)
def test_presets_have_the_values_that_papers_and_code_state(name):
    for preset, stated in STATED[name].items():
        options = configured(name, preset).options
        assert {option: getattr(options, option) for option in stated} == stated, preset


# -- values that make no sense -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*HOUSE, *(f"fedavg+{wrapper}" for wrapper in WRAPPERS.names())])
def test_no_option_takes_a_negative_number_or_none_that_is_finite(name):
    kind = METHODS.get(name)
    for key in kind.Options.model_fields:
        if (name, key) == ("fedrcl", "threshold"):  # a cosine
            continue
        for value in (-1, -0.5, float("nan"), float("inf")):
            with pytest.raises(ConfigError) as caught:
                kind.configured("paper", {key: value})
            assert f"{name}.{key} = " in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["fedadagrad", "fedadam", "fedyogi", "fedavgm", "feddyn", "fedexp", "scaffold", "fednova"]
)
def test_server_optimisers_leave_statistics_of_batch_norm_to_the_mean(name):
    """An adaptive step could make a variance negative."""
    uniform = name in ("feddyn", "scaffold")
    means = []
    for method in (configured(name), configured("fedbn" if uniform else "fedavg")):
        toy = world(method, LABELS, net=TinyBN, epochs=1, batch_size=16)
        toy.federation.step()
        means.append((toy, toy.federation.server["model"]))
    (toy, found), (_, plain) = means
    own = found["norm.running_var"]
    assert float(own.min()) > 0
    if not uniform:  # after one step from the same weights, statistics are those of FedAvg's clients
        assert torch.allclose(own, plain["norm.running_var"], atol=1e-6)
    assert isinstance(toy.method, Method)
    assert issubclass(type(toy.method).Options, Options)


def test_a_package_that_is_not_installed_changes_no_fact_of_a_method(monkeypatch):
    expected = {name: wrappers_of(name) for name in ("fedavg", "fedsc", "local")}
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    _refusal.cache_clear()
    assert {name: wrappers_of(name) for name in expected} == expected
    assert expected["fedavg"]["dp"] is None
    _refusal.cache_clear()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("fedavg", None),
        ("ditto", None),
        ("fedbn", None),
        ("fedper", "head"),
        ("lgfedavg", "body"),
        ("fedproto", "model"),
    ],
)
def test_a_part_that_newcomers_have_to_train_first(name, part):
    assert abilities(METHODS.get(name)).untrained == part


@pytest.mark.parametrize("model", [_TOY, _TOY_WITHOUT_NORM])
def test_asking_a_toy_net_wakes_no_threads(model):
    """Thousands of copies are made for the list of methods, and waiting threads took more than half of its time."""
    task = _new_task(model, True, ())
    assert max(value.numel() for value in task.init.values()) < IN_ONE_THREAD
