"""The rule that says when a method is ahead, beside golden numbers and properties that hold for all differences."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.results.difference import best_of, compare_family, rank_intervals, t_interval

FOLDER = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((FOLDER / "verdicts.json").read_text())
PAIRED = json.loads((FOLDER / "comparisons.json").read_text())["paired"]
STEP = 0.01


@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_a_family_equals_the_golden_one(name: str) -> None:
    given, expected = GOLDEN["cases"][name]["in"], GOLDEN["cases"][name]["out"]
    options = {"margin": given.get("delta", 1.0), "alpha": given.get("alpha", 0.05)}
    family = compare_family(given["rows"], given.get("q", STEP), points=1, **options)
    assert [judged.word for judged in family] == [row["word"] for row in expected]
    for judged, row in zip(family, expected, strict=True):
        numbers = judged.p, judged.adjusted, judged.equivalent_p
        assert numbers == pytest.approx((row.get("p"), row.get("adjusted"), row.get("equivalent_p")), abs=1e-3)
        assert (judged.n, judged.mean) == (row["n"], pytest.approx(row["mean"]))
        if row["word"] == "undecided":
            assert judged.needs == row["needs"]


@pytest.mark.parametrize("name", PAIRED["rows"])
def test_intervals_and_exact_checks_equal_the_golden_ones(name: str) -> None:
    (judged,), expected = compare_family([PAIRED["rows"][name]["differences"]], STEP, points=1), PAIRED["rows"][name]
    assert [judged.low, judged.high] == pytest.approx(expected["interval"], abs=1e-7)
    assert judged.p == (None if expected["p"] is None else pytest.approx(expected["p"], abs=1e-7))
    assert (judged.sign_flip_p, judged.sign_p) == pytest.approx((expected["sign_flip_p"], expected["sign_p"]))


def test_the_line_has_the_word_with_all_that_qualifies_it() -> None:
    rows = [[0.050, 0.056, 0.051], [0.001, 0.0, 0.001], [0.004, 0.0045, 0.005], [0.05, 0.02, 0.001], [0.1, 0.1], [0.1]]
    lines = [
        f"{judged.verdict}, {judged.figures()}" for judged in compare_family(rows, 1e-4, absent=1, family="primary")
    ]
    assert lines == [
        "ahead, +5.2 points, 95 % interval +4.4 to +6.0 (alone), 3 of 3 seeds, adjusted p .0014 of 4 of 5 primary",
        "equivalent within ±1 point, +0.1 points, 95 % interval -0.1 to +0.2 (alone), 2 of 3 seeds, "
        "adjusted p .24 of 4 of 5 primary",
        "equivalent within ±1 point, +0.4 points, 95 % interval +0.3 to +0.6 (alone), 3 of 3 seeds, "
        "adjusted p .2 of 4 of 5 primary",
        "undecided (needs about 15 seeds), +2.4 points, 95 % interval -3.8 to +8.5 (alone), 3 of 3 seeds, "
        "adjusted p .24 of 4 of 5 primary",
        "too few seeds, +10.0 points, 95 % interval +10.0 to +10.0 (alone), 2 of 2 seeds",
        "too few seeds, +10.0 points, 1 of 1 seed",
    ]
    assert compare_family([rows[2]])[0].verdict == "ahead, by less than 1 point"


def test_exact_tests_are_named_and_told_where_they_disagree() -> None:
    outlier = [1.0] * 8 + [60.0]
    judged = [compare_family([values], STEP, points=1)[0] for values in (outlier, outlier[1:])]
    assert judged[0].figures().endswith("(t test and sign-flip test disagree)")
    assert "disagree" not in judged[1].figures()
    assert judged[0].checks_text() == "alone p .28; checks: sign flips .0039, signs .0039"


def test_values_that_are_not_finite_leave_their_row_out_and_no_other() -> None:
    alone, beside = ([values] for values in ([2.0, 2.2, 2.1], [float("nan"), 1.0, 1.0]))
    lost = compare_family(alone + beside, STEP, points=1)
    assert (lost[1].word, lost[0]) == ("not finite", compare_family(alone, STEP, points=1)[0])


def test_one_seed_has_no_interval_and_equal_seeds_a_narrow_one() -> None:
    (judged,) = compare_family([[0.3]], STEP)
    assert (judged.word, judged.low, judged.interval_text(), judged.checks_text()) == ("too few seeds", None, "–", "")
    assert t_interval([0.5]) is None
    assert t_interval([0.5, 0.5, 0.5], step=0.0) == (0.5, 0.5)
    assert compare_family([[0.0, 0.0, 0.0]], 0.0)[0].word == "equivalent"


def test_ranks_are_intervals_and_the_best_rows_those_that_none_is_ahead_of() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(0, 3, 10)  # of each seed, which pairs cancel
    means = [70, 70, 65, 40]
    rows = [dict(enumerate(mean + common + rng.normal(0, 0.5, 10))) for mean in means]
    assert rank_intervals(rows, STEP) == [(1, 2), (1, 2), (3, 3), (4, 4)]
    assert rank_intervals(rows, STEP, lower=True) == [(3, 4), (3, 4), (2, 2), (1, 1)]
    assert best_of(dict(enumerate(rank_intervals([*rows, {0: 99.0, 1: 99.0}], STEP)))) == {0, 1}
    assert best_of(dict(enumerate(rank_intervals(rows[:2], STEP)))) == set()  # nothing is told apart
    assert rank_intervals([{0: 1.0, 1: 2.0, 2: 3.0}, {7: 1.0, 8: 1.0, 9: 1.0}]) == [None, None]


def test_bold_rows_of_equal_methods_are_seldom_wrong() -> None:
    """Of nine equal rows, one is not bold in at most 5 % of tables; comparing with the best mean misses .1 to .2."""
    rng = np.random.default_rng(1)
    tables = (rng.normal(0, 1, (9, 3)) for _ in range(200))
    wrong = sum(
        bool(best_of(dict(enumerate(rank_intervals([dict(enumerate(row)) for row in table], STEP)))))
        for table in tables
    )
    assert wrong <= 20  # 5 % of 200, with three standard errors


def test_no_other_words_are_used_in_code_and_docs() -> None:
    root = Path(__file__).parents[2]
    rivals = r"|within the (seeds' )?spread|within each other's spread|not distinguishable|\bis a tie\b|\| a tie \|"
    others = re.compile(r"significan(?!t digit)|\bon par\b|\bbeats\b|no difference (is )?seen|after Holm" + rivals)
    paths = [root / "README.md"]
    paths += [path for folder in ("src", "docs", "benchmarks", "examples") for path in (root / folder).rglob("*.py")]
    paths += [path for path in (root / "docs").rglob("*.md") if path.parent.name != "decisions"]
    used = {str(path.relative_to(root)): found[0] for path in paths if (found := others.search(path.read_text()))}
    assert used == {}


_SEEDS = st.lists(st.integers(-500, 500).map(lambda steps: steps / 100), min_size=1, max_size=9)


@given(st.lists(_SEEDS, min_size=1, max_size=5))
def test_negated_differences_swap_the_words(differences: list[list[float]]) -> None:
    swapped = {"ahead": "behind", "behind": "ahead"}
    there = compare_family(differences, STEP, points=1)
    back = compare_family([[-value for value in values] for values in differences], STEP, points=1)
    assert [swapped.get(judged.word, judged.word) for judged in there] == [judged.word for judged in back]
    assert [judged.adjusted for judged in there] == [judged.adjusted for judged in back]


@given(_SEEDS)
def test_a_word_needs_the_paired_t_test_alone(differences: list[float]) -> None:
    (judged,) = compare_family([differences], STEP, points=1)
    assert (judged.word == "too few seeds") == (len(differences) < 3)
    assert judged.adjusted is None or judged.adjusted >= judged.p
