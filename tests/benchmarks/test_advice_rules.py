"""The rules of `fedloom advise` are those that the committed measurements give, and contradict none of them."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import fmean

import pytest

import advice_rules
from cells import FOLDER, has_diverged
from fedloom.diagnosis.advice.evidence import rules

CELLS = {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in FOLDER.glob("*.json")}


def test_the_file_is_what_the_command_derives():
    assert advice_rules.RULES.read_text(encoding="utf-8") == advice_rules.rules_text()


@pytest.mark.parametrize("setting", rules()["settings"], ids=lambda one: f"{one['name']}-{one['goal']}")
def test_rows_say_what_was_measured_the_highest_gain_first(setting):
    study, _, name = setting["name"].partition("/")
    assert len(setting["rows"]) >= advice_rules.MIN_METHODS
    for row in setting["rows"]:
        cell = next(
            CELLS[one][key]
            for one in (study, f"{study}-rest")
            if (key := f"{name}/{row['method']}") in CELLS.get(one, {})
        )
        tested = cell.get("tested", {cell["protocol"]: {"accuracy": cell["accuracies"]}})
        accuracies = tested[row["protocol"]]["accuracy"]
        assert row["accuracy"] == pytest.approx(100 * fmean(accuracies), abs=0.006)
        assert row["n"] == len(accuracies)
        assert (row["points"] is None) == (row["word"] == "diverged") == has_diverged(cell)
    points = [row["points"] for row in setting["rows"]]
    compared = [value for value in points if value is not None]
    assert points[: len(compared)] == sorted(compared, reverse=True)


def test_no_method_above_the_plain_one_is_behind_it():
    for setting in rules()["settings"]:
        for row in setting["rows"]:
            assert not (row["word"] == "behind" and row["points"] > 0)
            assert not (row["word"] == "ahead" and row["points"] < 0)


def test_no_rule_uses_the_scenarios_on_which_the_advice_is_measured():
    assert "advice" not in {setting["name"].partition("/")[0] for setting in rules()["settings"]}


def test_thresholds_lie_between_the_profiles_of_neighbours():
    profiles = {one["name"]: one["profile"] for one in rules()["settings"]}
    for goal in ("global", "personal"):
        chain = [
            rule
            for rule in rules()["rules"]
            if rule["goal"] == goal and set(rule) <= {"goal", "setting", "label_skew_from"}
        ]
        for rule, following in pairwise(chain):
            stronger, weaker = (profiles[one["setting"]]["label_skew"] for one in (rule, following))
            assert weaker < rule["label_skew_from"] < stronger


def test_every_measured_method_has_traits():
    traits = rules()["traits"]
    for setting in rules()["settings"]:
        for row in setting["rows"]:
            assert {"yields", "any_nets", "state", "newcomers", "secure_sums", "dp", "traffic"} <= set(
                traits[row["method"]]
            )
