"""The rules of `fedloom advise` follow from the committed measurements, and so does the regret of its advice."""

from itertools import pairwise
from statistics import fmean

import pytest

from benchmarks import advice
from benchmarks.cells import studies_by_name
from benchmarks.tables.words import has_diverged
from fedloom.diagnosis.evidence import rules

CELLS = studies_by_name()


def test_the_file_is_what_the_command_derives():
    assert advice.RULES.read_text(encoding="utf-8") == advice.rules_text()


@pytest.mark.parametrize("setting", rules()["settings"], ids=lambda one: f"{one['name']}-{one['goal']}")
def test_rows_say_what_was_measured_the_highest_gain_first(setting):
    study, _, name = setting["name"].partition("/")
    assert len(setting["rows"]) >= advice.MIN_METHODS
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


CANDIDATES = {
    "one/fedavg": {"accuracies": [0.5, 0.7]},
    "one/ccvr": {"accuracies": [0.8, 0.8]},
    "one/fedsc": {"accuracies": [0.7, 0.7]},
    "each/fedrep": {"accuracies": [0.1], "tested": {"personal/local": {"accuracy": [0.9]}}},
    "each/fedavg": {"accuracies": [0.1], "tested": {"global/local": {"accuracy": [0.6]}}},
}
AVERAGES = {"global": {"method": "fedsc"}, "personal": {"method": "fedavg"}}


def test_the_best_candidate_and_all_regrets_by_hand():
    rows = advice.accuracies(CANDIDATES, "one", "global")
    assert rows == pytest.approx({"fedavg": 60, "ccvr": 80, "fedsc": 70})
    answer = {"goal": "global", "methods": ["fedco2", "fedsc"], "reference": "fedavg"}
    taken = advice.choices(answer, AVERAGES, rows)
    assert taken == {"advice": "fedsc", "tuned": "fedavg", "average": "fedsc"}  # fedco2 is no candidate


def test_personal_models_count_where_each_client_wants_one():
    assert advice.accuracies(CANDIDATES, "each", "personal") == pytest.approx({"fedrep": 90, "fedavg": 60})


def test_what_the_page_says_of_the_regrets():
    table = advice.regrets()
    by_way = {way: [row[way][1] for row in table.values()] for way in ("advice", "tuned", "average", "mean")}
    for other in ("tuned", "average", "mean"):
        assert fmean(by_way["advice"]) < fmean(by_way[other])
    assert [at for at, row in table.items() if row["tuned"][1] < row["advice"][1]] == [
        "diamonds-quantity",
        "pupils-schools",
    ]
    for row in table.values():
        if row["average"][0] == "ccvr":
            assert row["average"][1] <= row["advice"][1]
    trials = {at: row["trial"] for at, row in table.items() if "trial" in row}
    assert [at for at, (method, _) in trials.items() if method == "ccvr"] == ["digits-extreme", "fashion-mild"]
    assert all(method.startswith("fedavg") for method, _ in trials.values() if method != "ccvr")
    assert fmean(regret for _, regret in trials.values()) < fmean(by_way["tuned"])
