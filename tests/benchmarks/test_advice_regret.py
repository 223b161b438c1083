"""The regret of the advice, on made rows with known answers and on the committed ones."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

import advice_regret
from fedloom.runs.studies.plan import read_study

CELLS = {
    "one/fedavg": {"accuracies": [0.5, 0.7]},
    "one/ccvr": {"accuracies": [0.8, 0.8]},
    "one/fedsc": {"accuracies": [0.7, 0.7]},
    "each/fedrep": {"accuracies": [0.1], "tested": {"personal/local": {"accuracy": [0.9]}}},
    "each/fedavg": {"accuracies": [0.1], "tested": {"global/local": {"accuracy": [0.6]}}},
}
AVERAGES = {"global": {"method": "fedsc"}, "personal": {"method": "fedavg"}}


def test_the_best_candidate_and_all_regrets_by_hand():
    rows = advice_regret.accuracies(CELLS, "one", "global")
    assert rows == pytest.approx({"fedavg": 60, "ccvr": 80, "fedsc": 70})
    answer = {"goal": "global", "methods": ["fedco2", "fedsc"], "reference": "fedavg"}
    taken = advice_regret.choices(answer, AVERAGES, rows)
    assert taken == {"advice": "fedsc", "tuned": "fedavg", "average": "fedsc"}  # fedco2 is no candidate


def test_personal_models_count_where_each_client_wants_one():
    assert advice_regret.accuracies(CELLS, "each", "personal") == pytest.approx({"fedrep": 90, "fedavg": 60})


def test_twenty_candidates_in_every_scenario():
    by_setting = {}
    for cell in read_study(advice_regret.STUDY).cells:
        by_setting.setdefault(cell.setting, set()).add(cell.method)
    assert len(by_setting) == 8
    assert {len(methods) for methods in by_setting.values()} == {20}


def test_no_committed_regret_is_below_zero_and_the_best_has_none():
    table = advice_regret.regrets()
    assert len(table) == len(json.loads(advice_regret.ADVISED.read_text(encoding="utf-8")))
    for row in table.values():
        assert all(regret >= 0 for way, (_, regret) in row.items() if way != "best")
        assert row["mean"][1] > 0


def test_what_the_page_says_of_the_regrets():
    table = advice_regret.regrets()
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
