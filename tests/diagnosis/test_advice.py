"""Advice for small federations: needs, the rule that decides, the short list, and refusals."""

import json

import numpy as np
import pytest

import fedloom as fl
from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.diagnosis.advice import LONGEST, reason_against
from fedloom.diagnosis.evidence import Needs, evidence
from fedloom.runs.config.keys import built
from fedloom.runs.config.run_config import parse

SKEWED = {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 5}
SMALL = {"model": {"name": "mlp", "hidden": [8]}, "rounds": 1}


def test_the_list_has_the_highest_expected_gains_and_what_they_cost():
    advice = fl.advise({"scenario": SKEWED, **SMALL})
    expected = [row["method"] for row in evidence()["forecasts"]["global"]["methods"]]
    assert advice.methods == [method for method in expected if method in advice.methods]
    assert len(advice.methods) == LONGEST
    assert (advice.reference, advice.first) == ("fedavg", advice.methods[0])
    assert repr(advice) == f"Advice(try {', '.join(advice.methods)}; the reference is fedavg)"
    facts = advice.facts()
    json.dumps(facts, allow_nan=False)
    first = facts["methods"][0]
    low, high = first["interval"]
    assert high - low == pytest.approx(2 * 1.28155 * first["sd"], rel=1e-4)  # the 0.9 quantile of a normal
    assert (first["better"] > 0.9) == (low > 0)
    assert {"traffic", "compute"} <= set(first["traits"])


@pytest.mark.parametrize("goal", ["global", "personal"])
def test_a_federation_gets_the_same_advice_under_every_dealing_seed(goal):
    digits = {"source": "digits", "partition": "dirichlet", "alpha": 0.1, "clients": 8}
    told = [fl.advise({"scenario": digits, "seed": seed, **SMALL}, goal=goal) for seed in range(6)]
    assert len({(one.first, one.reference, tuple(one.suggestions), *one.left_out.items()) for one in told}) == 1


def test_the_effort_of_a_trial_is_counted():
    advice = fl.advise({"scenario": SKEWED, **SMALL, "rounds": 9})
    runs, minutes = advice.effort
    assert runs == 18 + 7 + 6  # six methods at three rates; a third and the reference; two finalists on three seeds
    assert 0 < minutes < 60
    assert any(f"at most {runs} runs" in sentence for sentence in advice.sentences())


def test_labels_can_stay_secret():
    methods = fl.advise({"scenario": SKEWED, **SMALL}, secret_labels=True)
    assert not {"fed3r", "ccvr", "fednh"} & set(methods.methods)
    assert "uploads without counts or means by class" in methods.left_out["ccvr"]


def test_where_hardly_a_gain_is_expected_the_advice_says_so():
    advice = fl.advise({"scenario": SKEWED, "model": ["mlp", "logistic"]}, goal="personal")
    assert all(forecast.gain < 0.5 for forecast in advice.suggestions)
    assert any("local may well be as good" in sentence for sentence in advice.sentences())


def test_a_model_for_each_client_has_fine_tuned_fedavg_as_reference():
    advice = fl.advise({"scenario": SKEWED, **SMALL}, goal="personal")
    assert advice.reference == "fedavg+finetune"
    assert "batch norm" in advice.left_out["fedco2"]  # which this network lacks


@pytest.mark.parametrize(("model", "refused"), [("digits-cnn", False), ("resnet8", True)])
def test_privacy_is_asked_of_the_network_at_hand(model, refused):
    config = parse({"scenario": SKEWED, "model": model})
    why = reason_against("fedavg", Needs(goal="global", dp=True), config, config.scenario.build(0))
    assert ("batch norm" in why) if refused else why is None


def test_rows_of_private_methods_are_said_to_be_without_noise():
    """The measured rows are those of the methods alone, and so are the trial's runs."""
    noted = [fl.advise({"scenario": SKEWED, **SMALL}, dp=dp).notes for dp in (True, False)]
    assert ["without +dp" in " ".join(notes) for notes in noted] == [True, False]


def test_different_networks_are_read_from_the_config():
    advice = fl.advise({"scenario": SKEWED, "model": ["mlp", "logistic"]}, goal="personal")
    assert advice.evidence["baseline"] == "local"
    assert all(one.traits["any_nets"] for one in advice.suggestions)
    assert advice.reference == "local"


def test_needs_that_no_measured_method_meets_name_those_that_nobody_measured():
    advice = fl.advise({"scenario": SKEWED, **SMALL}, nets="different", stateless=True)
    assert (advice.methods, advice.reference, advice.first) == ([], None, None)
    assert "no method with a forecast meets the needs; no plain method meets them" in advice.sentences()
    assert "meet the needs, but were not measured: heterofl" in advice.sentences()


@pytest.mark.parametrize(
    ("scenario", "needs", "message"),
    [
        (SKEWED, {"traffic": 0.0, "stateless": True}, "goal = global, traffic = 0.0, stateless: no method meets all"),
        ({"source": "digits", "partition": "iid", "clients": 1}, {}, "digits: 1 client with samples; advice needs two"),
        ({"partition": "iid"}, {"trial": True}, "trial"),
    ],
)
def test_what_leaves_nothing_to_choose_is_refused_in_one_line(scenario, needs, message):
    scenario = {"source": "digits", "clients": 2, **scenario}
    with pytest.raises(ConfigError, match=message) as refused:
        fl.advise({"scenario": {**scenario, "val": 0.0}, **SMALL}, **needs)
    assert "\n" not in str(refused.value)


def test_one_class_is_refused():
    images = np.zeros((40, 4, 4), dtype=np.uint8)
    images[::2] = 9
    scenario = fl.scenario(from_arrays(images, np.zeros(40, dtype=int), classes=["a", "b"]), clients=2)
    with pytest.raises(ConfigError, match="1 class with samples; advice needs two or more"):
        fl.advise(scenario)


def test_the_command_prints_the_list_and_its_reasons(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # or the heads of columns are parted
    words = ("scenario.partition=classes", "scenario.classes_per_client=2", "model={name: mlp, hidden: [8]}")
    code, out, err = call(capsys, "advise", "demo", *words, "--goal", "personal")
    assert (code, err) == (0, "")
    assert "expected gain over fedavg+finetune" in out
    assert "fedloom run demo scenario.partition=classes" in out
    assert "evaluation.protocol=personal/local" in out
    code, out, err = call(capsys, "advise", "demo", *words, "--traffic", "0", "--stateless")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


PLAIN = {"yields": ["global"], "any_nets": False, "state": False, "newcomers": True, "secure_sums": True, "dp": True}
FEDAVG = PLAIN | {"traffic": 1.0, "class_tables": False}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trafic": 1}, "unknown key 'trafic'.*traffic"),
        ({"goal": "both"}, "goal = 'both'.*'global' or 'personal'"),
        ({"traffic": -1}, "traffic = -1: input should be greater"),
    ],
)
def test_what_is_no_need_is_refused_in_one_line(values, message):
    with pytest.raises(ConfigError, match=message):
        built(Needs, values, "")


@pytest.mark.parametrize(
    ("needs", "traits", "unmet"),
    [
        (Needs(goal="global"), FEDAVG | {"yields": ["personal"]}, ["one model for all"]),
        (Needs(goal="personal"), FEDAVG, []),
        (Needs(nets="different"), FEDAVG, ["different networks"]),
        (Needs(traffic=1.0), FEDAVG, []),
        (Needs(traffic=0.5), FEDAVG, ["at most 0.5 times FedAvg's traffic"]),
        (Needs(traffic=5.0), FEDAVG | {"traffic": None}, ["at most 5 times FedAvg's traffic"]),
        (Needs(stateless=True, newcomers=True), FEDAVG | {"state": True}, ["no state at clients"]),
        (Needs(newcomers=True), FEDAVG | {"newcomers": False}, ["newcomers at once"]),
        (Needs(secure_sums=True, dp=True), FEDAVG | {"secure_sums": False}, ["secure sums"]),
        (Needs(secret_labels=True), FEDAVG | {"class_tables": True}, ["uploads without counts or means by class"]),
        (Needs(dp=True), FEDAVG | {"dp": False}, ["differential privacy"]),
    ],
)
def test_a_method_meets_a_need_by_its_traits(needs, traits, unmet):
    assert list(needs.unmet(traits)) == unmet


def test_goal_and_networks_are_read_from_the_config():
    digits = {"source": "digits", "partition": "iid", "clients": 2}
    config = parse({"scenario": digits, "evaluation": {"protocol": "personal/local"}, "model": ["mlp", "logistic"]})
    needs = Needs().resolved(config)
    assert (needs.goal, needs.nets) == ("personal", "different")
    assert Needs(goal="global", nets="equal").resolved(config) == Needs(goal="global", nets="equal")
    few_shot = parse({"scenario": digits, "evaluation": {"protocol": "few-shot"}})
    with pytest.raises(ConfigError, match=r"evaluation\.protocol = 'few-shot': advice is on methods that classify"):
        Needs().resolved(few_shot)
