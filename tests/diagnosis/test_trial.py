"""The trial: rungs, who reaches the final, and what may be said."""

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError
from fedloom.core.text import Criterion
from fedloom.diagnosis.advice_trial import Arm, TrialOutcome, _best_of_both, _with, planned
from fedloom.diagnosis.evidence import Needs, fitted
from fedloom.results.difference import compare_family
from fedloom.runs.config.run_config import parse

DIGITS = {"source": "digits", "partition": "classes", "classes_per_client": 2, "clients": 5, "val": 0.3}
KEYS = {"scenario": DIGITS, "model": {"name": "mlp", "hidden": [4]}, "rounds": 3, "engine": "serial"}
FEDREP, FINE_TUNED = Arm("fedrep", 0.1), Arm("fedavg+finetune", 0.03)


def outcome(challenger, reference):
    difference = compare_family([[ours - theirs for ours, theirs in zip(challenger, reference, strict=True)]])[0]
    finals = {FEDREP: challenger, FINE_TUNED: reference}
    return TrialOutcome("fedavg+finetune", (), finals, (1, 2, 3), difference, 6)


def test_a_method_that_is_ahead_on_the_fresh_seeds_is_recommended_with_its_interval():
    ended = outcome([0.91, 0.90, 0.92], [0.81, 0.79, 0.82])
    assert ended.recommended == "fedrep"
    assert ended.sentence().startswith("take fedrep at 0.1: +10.3 points of validation accuracy over fine-tuned FedAvg")
    assert "95 % interval +8.9 to +11.8, 3 fresh seeds" in ended.sentence()  # t(0.975, 2) = 4.303, s = 0.577 points


def test_a_difference_that_is_not_seen_leaves_fine_tuned_fedavg():
    ended = outcome([0.95, 0.70, 0.85], [0.81, 0.79, 0.82])
    assert ended.recommended == "fedavg+finetune"
    assert ended.sentence().startswith("no method is seen to be better than fine-tuned FedAvg")


def test_a_method_that_is_behind_is_not_recommended():
    assert outcome([0.71, 0.70, 0.72], [0.81, 0.79, 0.82]).recommended == "fedavg+finetune"


def test_what_diverged_in_the_final_is_not_recommended():
    sound, lost = [0.81, 0.79, 0.82], [0.9, float("nan"), 0.9]

    def ended(challenger, reference):
        finals = {FEDREP: challenger, FINE_TUNED: reference}
        return TrialOutcome("fedavg+finetune", (), finals, (1, 2, 3), None, 6)

    first = "fedrep at 0.1 diverged with a fresh seed: take fedavg+finetune at 0.03; no gain can be told"
    assert ended(lost, sound).sentence() == first
    assert ended(sound, lost).recommended == "fedrep"
    assert "nothing can be recommended" in ended(lost, lost).sentence()


@pytest.mark.parametrize(
    ("rounds", "methods", "rungs"),
    [(90, 5, [(10, 18), (30, 7), (90, 6)]), (3, 1, [(1, 6), (3, 6)]), (2, 0, [(2, 3)]), (1, 2, [(1, 6)])],
)
def test_rungs_are_a_ninth_and_a_third_of_the_rounds(rounds, methods, rungs):
    assert planned(rounds, methods) == rungs


def test_a_trial_runs_and_the_reference_reaches_the_final(tmp_path, monkeypatch):
    monkeypatch.setattr("fedloom.diagnosis.advice.LONGEST", 1)
    advice = fl.advise(KEYS, goal="personal", trial=True, out=tmp_path, progress=False)
    trial = advice.trial
    tried = sorted(arm.rate for arm in trial.rungs[0].scores if arm.method == "fedavg+finetune")
    assert tried == pytest.approx([0.05 / 3, 0.05, 0.05 * 3])
    assert len(trial.rungs[0].scores) == 6
    assert [arm.method for arm in trial.finals][-1] == "fedavg+finetune"
    scores = list(trial.rungs[0].scores.values())
    assert scores == sorted(scores, reverse=True)
    assert trial.seeds == (1, 2, 3)
    assert trial.runs <= advice.effort[0]
    assert trial.runs == len(trial.rungs[0].scores) + 3 * len(trial.finals)
    assert advice.first == trial.recommended
    assert advice.facts()["trial"]["sentence"] in advice.sentences()
    again = fl.advise(KEYS, goal="personal", trial=True, out=tmp_path, progress=False)
    assert again.trial.finals == trial.finals  # its runs are found again


def test_a_gain_in_another_metric_is_told_in_its_unit():
    """Losses of the reference less those of the method: 0.5, 0.6 and 0.7 nats."""
    difference = compare_family([[0.5, 0.6, 0.7]])[0]
    finals = {FEDREP: [0.9, 0.8, 0.7], FINE_TUNED: [1.4, 1.4, 1.4]}
    ended = TrialOutcome("fedavg+finetune", (), finals, (1, 2, 3), difference, 6, Criterion("loss", -1))
    assert ended.sentence() == (
        "take fedrep at 0.1: +0.600 in validation loss (above zero is better) over fine-tuned FedAvg, 95 % interval "
        "+0.352 to +0.848, 3 fresh seeds"  # t(0.975, 2) = 4.303, s = 0.1
    )
    assert ended.facts()["metric"] == "loss"


def test_runs_of_a_trial_keep_and_measure_nothing_beside_their_tests():
    beside = {"checkpoint": {"keep_clients": [3]}, "drift": True, "evaluation": {"also": ["online"]}}
    config = parse({**KEYS, "method": "fedco2", **beside})
    run = _with(fitted(config, "fedavg", Needs(goal="global", nets="equal")), 0.1, 1, 0)
    assert run == parse({**KEYS, "rounds": 1, "optimizer": {"lr": 0.1}})


def test_without_validation_data_a_trial_says_what_to_set():
    with pytest.raises(ConfigError, match=r"a trial has no validation data to choose on; set scenario\.val above 0"):
        fl.advise({**KEYS, "scenario": {**DIGITS, "val": 0.0}}, trial=True)


def test_a_trial_of_two_rounds_has_no_first_rung():
    with pytest.raises(ConfigError, match="rounds = 2: a trial needs 3 or more"):
        fl.advise({**KEYS, "rounds": 2}, trial=True)


def test_without_a_plain_method_there_is_nothing_to_compare_with():
    with pytest.raises(ConfigError, match="no plain method meets these needs"):
        fl.advise(KEYS, nets="different", trial=True)


def test_the_best_of_both_sides_reaches_the_final_at_whatever_rank():
    slow, slower = Arm("fedrep", 0.1), Arm("fedper", 0.1)
    tuned = [Arm("fedavg+finetune", rate) for rate in (0.03, 0.1)]
    assert _best_of_both("fedavg+finetune", [*tuned, slow, slower]) == [slow, tuned[0]]
    assert _best_of_both("fedavg+finetune", [slow, slower, *tuned]) == [slow, tuned[0]]
    assert _best_of_both("fedavg+finetune", tuned) == [tuned[0]]
