"""Attacks through a run: config, results, tables."""

import json

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.runs.config.run_config import load, parse

FLIP = {"name": "label-flip", "share": 0.4}


def run(attack, method="fedavg", **keys):
    where = {"partition": "iid", "clients": 5, **({} if attack is None else {"attack": attack})}
    return fl.run(method, scenario=fl.scenario("digits", **where), rounds=2, local_epochs=1, model="mlp", **keys)


@pytest.fixture(scope="module")
def results():
    return {"none": run(None), "flip": run(FLIP), "sign": run("sign-flip")}


def test_results_hold_clean_accuracy_and_success(results):
    assert "attack" not in results["none"].numbers
    flip, sign = results["flip"].numbers["attack"], results["sign"].numbers["attack"]
    assert (flip["name"], flip["share"], len(flip["clients"])) == ("label-flip", 0.4, 2)
    assert 0 < flip["success"] < 1 - results["flip"].numbers["accuracy"] + 1e-9  # all classes of ten are flipped
    assert (sign["name"], sign["share"], sign["success"], len(sign["clients"])) == ("sign-flip", 0.2, None, 1)
    assert results["flip"].curve("attack_success")[0] == [1, 2]
    assert results["flip"].scenario["attack"]["clients"] == tuple(flip["clients"])
    json.dumps(results["flip"].numbers)


def test_personal_models_of_honest_clients_count_for_success():
    numbers = run(FLIP, "ditto", evaluation={"protocol": "personal/local"}).numbers
    assert numbers["attack"]["honest_accuracy"] > numbers["accuracy"]  # the bad ones fit wrong labels


def test_tables_have_columns_for_attacks_where_there_are_any(results):
    plain = Comparison([results["none"]]).table("markdown")
    both = Comparison([results["none"], results["flip"], results["sign"]]).table("markdown")
    assert "success" not in plain
    assert "label-flip 0.4" in both
    assert "sign-flip 0.2" in both
    assert f"{100 * results['flip'].numbers['attack']['success']:.1f}" in both
    assert "attack_success" in Comparison([results["flip"]]).table("csv")
    assert "attack" not in Comparison([results["none"]]).table("csv")


def test_the_report_says_how_clients_misbehaved(results, tmp_path):
    from fedloom.results.report import write_report

    page = write_report(list(results.values()), tmp_path / "report.html").read_text(encoding="utf-8")
    assert "label-flip 0.4" in page
    assert "All test data are clean" in page


def test_a_run_folder_is_resumed_with_its_attack(tmp_path):
    first = run(FLIP, out=tmp_path / "run")
    again = run(FLIP, out=tmp_path / "run")
    assert again.numbers["accuracy"] == first.numbers["accuracy"]
    assert Result.read(tmp_path / "run").numbers["attack"]["success"] == first.numbers["attack"]["success"]


def test_words_and_sections():
    values = load(None, ["scenario.partition=iid", "scenario.attack=gaussian", "scenario.attack.share=0.3"])
    config = parse(values)
    assert config.scenario.resolved()["attack"] == {"name": "gaussian", "share": 0.3, "std": 1.0}
    assert "attack" not in parse({"scenario": {"partition": "iid"}}).scenario.resolved()
    assert config.fingerprint() != parse({"scenario": {"partition": "iid"}}).fingerprint()


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        ("sing-flip", "unknown attack 'sing-flip': did you mean 'sign-flip'"),
        ({"share": 0.2}, "scenario.attack: need a name; known: alie, gaussian"),
        ({"name": "sign-flip", "share": 0.5}, "scenario.attack.share = 0.5: need a number in [0, 0.5)"),
        ({"name": "sign-flip", "share": -0.1}, "need a number in [0, 0.5)"),
        ({"name": "sign-flip", "share": "most"}, "scenario.attack.share = 'most'"),
        ({"name": "sign-flip", "z": 1}, "unknown key 'scenario.attack.z'"),
        ({"name": "gaussian", "std": -1}, "scenario.attack.std = -1"),
        (3, "scenario.attack = 3"),
    ],
)
def test_what_is_no_attack_is_refused_in_one_line(attack, says):
    with pytest.raises(ConfigError) as caught:
        parse({"scenario": {"partition": "iid", "attack": attack}})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
