"""Constraints of advice: unknown ones, values out of range, and what a method has to offer."""

from __future__ import annotations

import pytest

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.evidence import Needs, read_needs
from fedloom.runs.config.run_config import parse

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
