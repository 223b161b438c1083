"""The rule that says whether rows differ, beside golden numbers and properties that hold for all differences."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.results.difference import Difference, compare_family, t_interval

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["paired"]
STEP = GOLDEN["step"]


@pytest.fixture(scope="module")
def family() -> dict[str, Difference]:
    judged = compare_family([row["differences"] for row in GOLDEN["rows"].values()], STEP)
    return dict(zip(GOLDEN["rows"], judged, strict=True))


@pytest.mark.parametrize("name", GOLDEN["rows"])
def test_a_family_equals_the_golden_one(name: str, family: dict[str, Difference]) -> None:
    expected, judged = GOLDEN["rows"][name], family[name]
    assert judged.word == expected["word"]
    assert [judged.low, judged.high] == pytest.approx(expected["interval"], abs=1e-7)
    for ours, theirs in ((judged.p, expected["p"]), (judged.holm, expected["holm"])):
        assert (ours is None) == (theirs is None)
        assert ours is None or ours == pytest.approx(theirs, abs=1e-7)
    assert judged.sign_flip_p == pytest.approx(expected["sign_flip_p"])
    assert judged.sign_p == pytest.approx(expected["sign_p"])


def test_the_line_says_what_the_interval_alone_would_have_said(family: dict[str, Difference]) -> None:
    assert family["A"].verdict == "no difference seen (interval alone leaves out zero; 6 comparisons)"
    assert family["D"].verdict == "no difference seen"
    assert family["E"].verdict == "ahead"
    alone = compare_family([GOLDEN["rows"]["A"]["differences"]], STEP)
    assert alone[0].verdict == GOLDEN["WRONG_words_without_holm"]["A"]


def test_ten_seeds_equal_the_golden_ones() -> None:
    expected = GOLDEN["ten_seeds"]
    (judged,) = compare_family([expected["differences"]], STEP)
    assert [judged.low, judged.high] == pytest.approx(expected["interval"], abs=1e-7)
    checks = [judged.p, judged.sign_flip_p, judged.sign_p]
    assert checks == pytest.approx([expected["p"], expected["sign_flip_p"], expected["sign_p"]], abs=1e-7)


@pytest.mark.parametrize(("seeds", "smallest"), GOLDEN["smallest_exact_p"].items())
def test_exact_tests_of_few_seeds_cannot_confirm(seeds: str, smallest: float) -> None:
    (judged,) = compare_family([[1.0 + k / 10 for k in range(int(seeds))]], STEP)
    assert (judged.sign_flip_p, judged.sign_p) == pytest.approx((smallest, smallest), abs=1e-8)


def test_tests_that_disagree_are_named_from_nine_seeds_on() -> None:
    outlier = [1.0] * 8 + [60.0]
    (judged,) = compare_family([outlier], STEP)
    assert judged.verdict == "no difference seen (t test and sign-flip test disagree)"
    assert compare_family([outlier[1:]], STEP)[0].addition == ""


def test_one_seed_has_no_interval_and_equal_seeds_a_narrow_one() -> None:
    (judged,) = compare_family([[0.3]], STEP)
    assert (judged.word, judged.low, judged.interval_text(), judged.checks_text()) == ("too few seeds", None, "–", "")
    assert t_interval([0.5]) is None
    assert t_interval([0.5, 0.5, 0.5], step=0.0) == (0.5, 0.5)


def test_no_other_words_are_used_in_code_and_docs() -> None:
    root = Path(__file__).parents[2]
    rivals = r"|within the (seeds' )?spread|within each other's spread|not distinguishable|\bis a tie\b|\| a tie \|"
    others = re.compile(r"significan(?!t digit)|\bon par\b|\bbeats\b" + rivals)
    paths = [root / "README.md"]
    paths += [path for folder in ("src", "docs", "benchmarks", "examples") for path in (root / folder).rglob("*.py")]
    paths += [path for path in (root / "docs").rglob("*.md") if path.parent.name != "decisions"]
    used = {str(path.relative_to(root)): found[0] for path in paths if (found := others.search(path.read_text()))}
    assert used == {}


_SEEDS = st.lists(st.integers(-500, 500).map(lambda steps: steps / 100), min_size=1, max_size=9)


@given(st.lists(_SEEDS, min_size=1, max_size=5))
def test_negated_differences_swap_the_words(differences: list[list[float]]) -> None:
    swapped = {"ahead": "behind", "behind": "ahead"}
    there = compare_family(differences, STEP)
    back = compare_family([[-value for value in values] for values in differences], STEP)
    assert [swapped.get(judged.word, judged.word) for judged in there] == [judged.word for judged in back]
    assert [judged.holm for judged in there] == [judged.holm for judged in back]


@given(_SEEDS)
def test_one_comparison_needs_no_correction(differences: list[float]) -> None:
    (judged,) = compare_family([differences], STEP)
    assert judged.holm == judged.p
    assert (judged.word == "too few seeds") == (len(differences) < 3)
