"""Advice for small federations: needs, the rule that decides, the short list, and refusals."""

import json

import numpy as np
import pytest

import fedloom as fl
from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.diagnosis.advice import LONGEST, reason_against
from fedloom.diagnosis.evidence import Needs, read_needs, rules
from fedloom.runs.config.run_config import parse

SKEWED = {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 5}
SMALL = {"model": {"name": "mlp", "hidden": [8]}, "rounds": 1}


def test_extreme_label_skew_leads_to_the_setting_with_the_strongest():
    advice = fl.advise({"scenario": SKEWED, **SMALL})
    setting = advice.evidence.setting
    assert setting["name"] == "all-methods/alpha-0.05"
    highest = max(rule.get("label_skew_from", 0) for rule in rules()["rules"] if rule["goal"] == "global")
    assert f"from {highest}" in advice.evidence.why
    measured = [row["method"] for row in setting["rows"]]
    assert advice.methods == [method for method in measured if method in advice.methods]  # in the order of their gains
    assert 0 < len(advice.methods) <= LONGEST
    assert advice.reference == "fedavg"
    assert advice.first == advice.methods[0]
    assert repr(advice) == f"Advice(try {', '.join(advice.methods)}; the reference is fedavg)"
    json.dumps(advice.facts(), allow_nan=False)


def test_methods_that_diverged_in_the_setting_are_named_and_not_listed():
    advice = fl.advise({"scenario": SKEWED, **SMALL})
    lost = [row["method"] for row in advice.evidence.setting["rows"] if row["word"] == "diverged"]
    assert lost == ["fedadagrad", "copa"]
    assert f"not in the list, because a run diverged there: {', '.join(lost)}" in advice.sentences()
    assert not {*lost} & {*advice.methods, *advice.left_out, *advice.unmeasured}


def test_a_model_for_each_client_has_fine_tuned_fedavg_as_reference():
    advice = fl.advise({"scenario": SKEWED, **SMALL}, goal="personal")
    assert advice.reference == "fedavg+finetune"
    assert all("personal" in one.traits["yields"] for one in advice.suggestions)
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
    assert advice.evidence.setting["name"] == "two-classes"
    assert all(one.traits["any_nets"] for one in advice.suggestions)
    assert advice.reference == "local"


def test_needs_that_no_measured_method_meets_name_those_that_nobody_measured():
    advice = fl.advise({"scenario": SKEWED, **SMALL}, nets="different", secure_sums=True)
    assert advice.suggestions == ()
    assert advice.reference is None
    assert advice.first is None
    assert advice.unmeasured
    assert any(sentence.startswith("meet the needs, but are not measured") for sentence in advice.sentences())


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


def test_every_rule_points_at_a_setting_and_the_last_of_a_goal_always_holds():
    known = {(one["name"], one["goal"]) for one in rules()["settings"]}
    by_goal = {}
    for rule in rules()["rules"]:
        assert (rule["setting"], rule["goal"]) in known
        by_goal[rule["goal"]] = rule
    assert all(set(rule) == {"goal", "setting"} for rule in by_goal.values())


def test_the_command_prints_the_list_and_its_reasons(capsys):
    words = ("scenario.partition=classes", "scenario.classes_per_client=2", "model={name: mlp, hidden: [8]}")
    code, out, err = call(capsys, "advise", "demo", *words, "--goal", "personal")
    assert (code, err) == (0, "")
    assert "nearest measured setting: Fashion-MNIST, Dirichlet 0.05" in out
    assert "fedrep" in out
    code, out, err = call(capsys, "advise", "demo", *words, "--traffic", "0", "--stateless")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


PLAIN = {"yields": ["global"], "any_nets": False, "state": False, "newcomers": True, "secure_sums": True, "dp": True}
FEDAVG = PLAIN | {"traffic": 1.0}


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
        read_needs(values)


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
