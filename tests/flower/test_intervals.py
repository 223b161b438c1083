"""Intervals of models that are tested on nodes: those of the simulation, without a score that leaves a node."""

import pytest

from fedloom.flower.server import serve
from fedloom.results.risk_words import risk_sentences
from fedloom.runs.run import run
from flower_world import Faulty, config_of


def test_personal_models_have_the_intervals_of_the_simulation(nodes_of):
    evaluation = {"every": 3, "protocol": "personal/local", "metrics": ["brier", "ece"], "intervals": {"draws": 200}}
    config = config_of("fedper", evaluation=evaluation)
    here, there = (of.numbers["intervals"] for of in (run(config), serve(config, Faulty(nodes_of(config)))))
    assert (there["by"], there["groups"]) == (here["by"], here["groups"])
    for name in ("accuracy", "loss", "brier"):
        low, high = ([of["values"][name][end] for of in (here, there)] for end in ("low", "high"))
        assert there["values"][name]["value"] == pytest.approx(here["values"][name]["value"])
        assert high[1] - low[1] == pytest.approx(high[0] - low[0], rel=0.3)
    assert there["values"]["ece"]["low"] is None
    assert there["values"]["accuracy_pooled"]["low"] is not None


def test_tests_on_all_samples_by_every_node_have_no_intervals_and_say_so(nodes_of):
    evaluation = {"every": 3, "protocol": "personal/global", "intervals": {}}
    result = serve(config := config_of("fedper", evaluation=evaluation), Faulty(nodes_of(config)))
    assert risk_sentences(result.numbers)[0].startswith("No intervals:")


def test_a_node_that_goes_before_it_sends_sums_leaves_the_run_without_intervals(nodes_of):
    evaluation = {"every": 3, "protocol": "personal/local", "intervals": {}}
    config = config_of("fedper", evaluation=evaluation, flower={"round_timeout": 0.5})

    def goes(request, answer):
        tests = [of for of in link.requests if of.do == "test" and of.client == 1]
        return None if len(tests) > 1 and request.client == 1 else answer

    link = Faulty(nodes_of(config), goes)
    result = serve(config, link)
    assert result.numbers["intervals"]["values"] == {}
    assert result.numbers["accuracy"] > 0.5
