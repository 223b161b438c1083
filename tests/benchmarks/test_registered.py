"""The tables of the registered studies: words for complete settings alone, and one paragraph on the first pages."""

from pathlib import Path

import pytest

from benchmarks.cells import studies_by_name
from benchmarks.tables import registered

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/index.md", "docs/methods/README.md")
TUNED = [0.80, 0.82, 0.84, 0.81, 0.83, 0.80, 0.82, 0.84, 0.81, 0.83]


def row(method, accuracies, warnings=()):
    return {
        "method": method,
        "warnings": list(warnings),
        "seeds": list(range(10)),
        "protocol": "personal/local",
        "accuracies": accuracies,
        "bytes_up": 1e6,
        "bytes_down": 5e5,
        "flops": 3e9,
    }


def nets(fedssa, warnings=()):
    """All rows of the setting different-nets."""
    return {
        "different-nets/fedssa": row("fedssa", fedssa, warnings),
        "different-nets/local": row("local", TUNED),
        "different-nets/fedavg-smallest+finetune": row("fedavg+finetune", TUNED),
    }


def test_a_difference_is_judged_from_fedavg_tuned_at_each_client():
    """By hand: +3.0 and +3.2 points in turn have the mean +3.1 and, with a deviation of 0.1, t far above 4.8."""
    cells = nets([value + (0.030, 0.032)[seed % 2] for seed, value in enumerate(TUNED)])
    asked = registered.questions()["five-methods"]
    table = registered.answer_table(asked, cells)
    assert "| different-nets | FedSSA | 85.1 ± 1.5 | 82.0 ± 1.5 | +3.1 | +3.0 to +3.2 | ahead |" in table
    assert "| domains | not complete: 0 of 15 rows |" in table
    text = "So far 1 of its 5 settings is complete. In its only comparison with FedAvg tuned at each client, "
    assert registered.summary(cells) == text + "FedSSA is ahead in different-nets."


def test_the_name_of_a_row_says_what_its_label_adds():
    table = registered.row_table("five-methods", nets(TUNED))
    assert "| different-nets | FedAvg+finetune (smallest) | 82.0 ± 1.5 | 1.5 | 1.0 |" in table


def test_a_setting_that_lacks_a_row_has_no_word():
    cells = nets([value + 0.03 for value in TUNED])
    del cells["different-nets/local"]
    table = registered.answer_table(registered.questions()["five-methods"], cells)
    assert "| different-nets | not complete: 2 of 3 rows |" in table
    assert registered.summary(cells) == ""


def test_a_diverged_row_is_counted_and_not_judged():
    cells = nets([value + 0.03 for value in TUNED], ["diverged: in round 2 the losses of 1 of 8 are not finite"])
    assert "| diverged | – | – |" in registered.answer_table(registered.questions()["five-methods"], cells)
    assert "FedAvg tuned at each client, FedSSA is diverged in different-nets." in registered.summary(cells)


def test_each_question_compares_what_its_plan_calls_primary():
    own = registered.questions()["five-methods"]
    by_setting = {
        setting: set(own.rows) & set(rows) for setting, rows in registered.planned(registered.FIVE_METHODS).items()
    }
    assert {setting: len(rows) for setting, rows in by_setting.items()} == {
        "domains": 5,
        "label-skew": 5,
        "long-tail": 5,
        "few-samples": 5,
        "different-nets": 1,
    }


def test_with_natural_owners_fedssa_alone_is_ahead_or_behind():
    asked = registered.questions()[registered.NATURAL_OWNERS]
    answers = registered.answers(asked, studies_by_name()[registered.NATURAL_OWNERS])
    decided = {
        (setting, label): round(100 * difference.mean, 1)
        for setting, differences in answers.items()
        for label, difference in differences.items()
        if difference and difference.word in ("ahead", "behind")
    }
    gains = {"london-schools": 3.1, "scottish-schools": 2.7, "districts": 1.3, "persons": -3.0}
    assert decided == {(setting, "fedssa"): gain for setting, gain in gains.items()}
    for page in PAGES:
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "for London and Scottish schools (+3.1 and +2.7 points) and for districts of Bangladesh (+1.3)" in text
        assert "behind for persons with few answers (-3.0)" in text


@pytest.mark.parametrize("page", PAGES)
def test_the_first_pages_say_what_the_experiment_says(page):
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert registered.summary(studies_by_name().get(registered.FIVE_METHODS, {})) in text
