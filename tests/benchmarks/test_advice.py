"""The forecast of `fedloom advise` follows from the committed measurements, and so does the judgement of it."""

import math
from statistics import fmean

import numpy as np
import pytest

from benchmarks import advice
from benchmarks.cells import read_cells
from benchmarks.forecast import Feature, Forecast, Gain, fit
from fedloom.diagnosis.evidence import evidence

CASES = [(goal, setting.name) for goal in advice.FORECASTS for setting in advice.settings_of(goal)]


def test_the_file_is_what_the_command_derives():
    assert advice.FORECAST.read_text(encoding="utf-8") == advice.forecast_text()


@pytest.mark.parametrize(("goal", "setting"), CASES)
@pytest.mark.parametrize("way", [way for way in advice.WAYS if way != "slopes"])
def test_the_judgement_is_computed_again_without_the_setting(goal, setting, way):
    """Of the forecast with features, which takes longer, one setting is judged again below."""
    again = advice.judged_setting(goal, setting, way)
    row = next(row for row in advice.judged() if (row["goal"], row["setting"], row["way"]) == (goal, setting, way))
    for key, value in again.items():
        assert row.get(key, "") == (pytest.approx(value, abs=0.006) if key != "first" else value)


def test_the_forecast_with_features_is_judged_again_on_one_setting():
    case = {"way": "slopes", "goal": "global", "setting": "digit-domains"}
    row = next(row for row in advice.judged() if case.items() <= row.items())
    again = advice.judged_setting("global", "digit-domains", "slopes")
    assert (again["first"], again["regret"]) == (row["first"], pytest.approx(row["regret"], abs=0.006))


def test_what_the_page_says_of_the_regrets():
    """If the model in use chose worse than plain advice, the advice would have to be the plain one."""
    for other in ("average", "everywhere", "reference", "random", "slopes"):
        assert advice.regret("forecast") < advice.regret(other)
    assert advice.regret("forecast") <= 1.5
    assert advice.regret("forecast", "list") < advice.regret("forecast")
    personal = [row for row in advice.judged() if row["goal"] == "personal"]
    first, reference = ([row["regret"] for row in personal if row["way"] == way] for way in ("forecast", "reference"))
    assert fmean(first) < fmean(reference)


def test_a_gain_is_the_mean_difference_on_common_seeds():
    cells = read_cells("honest-scale")
    ours, plain = (cells[f"authorities/{name}"]["tested"]["global/global"]["accuracy"] for name in ("ccvr", "fedavg"))
    gain = next(one for one in advice.gains("global") if one[:2] == ("honest-scale/authorities", "ccvr"))
    assert gain.points == pytest.approx(100 * (fmean(ours) - fmean(plain)), abs=1e-9)


def test_large_losses_and_diverged_runs_count_as_fifteen_points():
    lowest = {gain.method: gain.points for gain in advice.gains("global") if gain.setting == "all-methods/alpha-0.05"}
    assert lowest["fedavgm"] == lowest["copa"] == advice.FLOOR  # 27 points behind, and diverged
    assert min(lowest.values()) == advice.FLOOR


def test_every_method_with_a_forecast_has_traits():
    for one in evidence()["forecasts"].values():
        assert {row["method"] for row in one["methods"]} <= set(evidence()["traits"])


def balanced(effects, settings, rest, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Gain(f"s{s}", f"m{m}", effect + rng.normal(0, rest), 0.0)
        for s in range(settings)
        for m, effect in enumerate(effects)
    ]


def test_effects_are_those_of_a_balanced_design_in_closed_form():
    """With the same settings for all methods, the best linear prediction shrinks each mean by n T / (n T + R)."""
    gains = balanced(np.random.default_rng(1).normal(3, 4, 30), 6, 2.0)
    model = fit(gains)
    setting, method, rest = model.variances
    assert (math.sqrt(method), math.sqrt(rest)) == pytest.approx((4, 2), rel=0.3)
    means = {name: fmean(gain.points for gain in gains if gain.method == name) for name in ("m0", "m1")}
    shrunk = 6 * method / (6 * method + rest)
    forecasts = [model.forecast(name, "new") for name in means]
    assert forecasts[0].gain - forecasts[1].gain == pytest.approx(shrunk * (means["m0"] - means["m1"]), rel=1e-6)
    assert model.forecast("m0", "new").sd ** 2 > rest + setting


def test_a_method_of_few_settings_shrinks_more():
    gains = [*balanced([0.0] * 10 + [8.0], 8, 1.0), Gain("s0", "seldom", 8.0, 0.0)]
    model = fit(gains)
    assert 0 < model.forecast("seldom", "new").gain < model.forecast("m10", "new").gain
    assert model.forecast("seldom", "new").sd > model.forecast("m10", "new").sd


def test_slopes_follow_a_feature_where_there_is_one():
    """The second method gains four points for each unit of the feature, the others nothing."""
    features = {f"s{s}": Feature(np.array([s - 4.0]), np.zeros(1)) for s in range(10)}
    rng = np.random.default_rng(0)
    gains = [Gain(f"s{s}", f"m{m}", 4.0 * (s - 4) * (m == 1) + rng.normal(), 0.1) for s in range(9) for m in range(6)]
    assert fit(gains, features).forecast("m1", "s9").gain == pytest.approx(20, abs=2)


def test_the_probability_of_a_gain_is_that_of_a_normal():
    assert Forecast(1.2816, 1.0).better == pytest.approx(0.9, abs=1e-4)


def test_what_the_page_says_of_the_trials():
    regrets = advice.trial_regrets()
    assert [name for name, (method, _) in regrets.items() if method == "ccvr"] == ["digits-extreme", "fashion-mild"]
    assert all(method.startswith("fedavg") for method, _ in regrets.values() if method != "ccvr")
