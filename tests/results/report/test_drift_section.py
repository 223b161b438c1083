"""Drift in words, rows and pictures, from rounds made by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fedloom.cli.diagnose import _drift_facts, _print_drift
from fedloom.results.page_sections import PageSection, SectionPicture
from fedloom.results.report.drift import drift_notes, drift_rows, drift_sections, drift_sentences, mean_of_figure
from fedloom.results.report.sections import render_section
from fedloom.runs.storage.log import DriftRound, DriftValue
from toy_results import MakeResult


def split_round(number: int, shares: Sequence[float | None], cosine: float | None = 0.5) -> DriftRound:
    """A round of two clients whose drift has these parts."""
    parts = [DriftValue(f"{p}_share", share) for p, share in zip(("local", "sampling", "server"), shares, strict=True)]
    return DriftRound(number, [DriftValue("drift", 2.0), *parts, DriftValue("cosine", cosine, 0, 1)])


ROUNDS = [
    split_round(1, (0.5, 0.75, -0.25), cosine=-0.5),
    DriftRound(2, [DriftValue("diversity", 3.0)], ["no head"]),
    split_round(3, (0.25, 0.75, 0.0)),
]


def pictures(section: PageSection) -> dict[str, SectionPicture]:
    return {block.name: block for block in section.blocks if isinstance(block, SectionPicture)}


def test_rows_have_the_first_the_last_and_the_mean_value() -> None:
    rows = {row[0]: row[1:] for row in drift_rows(ROUNDS)}
    assert rows["drift: share of the local part"] == ("0.5", "0.25", "0.375")
    assert rows["drift: share of the server part"] == ("-0.25", "0", "-0.125")
    assert rows["diversity of the updates"] == ("3", "3", "3")


def test_sentences_name_the_largest_part_and_opposed_updates() -> None:
    assert drift_sentences(ROUNDS) == [
        "the largest part of the drift is sampling, on average 75 % over 2 decomposed rounds",
        "updates of two clients point apart on average in 1 of 3 rounds",
    ]
    assert drift_notes(ROUNDS) == ["no head (in 1 of 3 rounds)"]


def test_rounds_that_diverged_are_not_those_of_centralised_training() -> None:
    diverged = DriftRound(2, [DriftValue("local_share", None), DriftValue("drift", None)])
    assert drift_sentences([diverged]) == ["the drift is no number in 1 of 1 decomposed round: weights diverged"]
    assert drift_sentences([split_round(1, (1.0, 0.0, 0.0)), diverged])[:2] == [
        "the largest part of the drift is local, on average 100 % over 1 decomposed round",
        "the drift is no number in 1 of 2 decomposed rounds: weights diverged",
    ]


def test_rounds_without_drift_are_those_of_centralised_training() -> None:
    [sentence] = drift_sentences([DriftRound(1, [DriftValue("local_share", None), DriftValue("drift", 0.0)])])
    assert "up to the rounding" in sentence
    assert mean_of_figure(ROUNDS[1], "cosine") is None


def test_a_section_for_each_run_with_drift(make_result: MakeResult) -> None:
    runs = [make_result(), replace(make_result("fedsc", seed=2), drift_rounds=ROUNDS)]
    (section,) = drift_sections(runs)
    assert section.title == "Drift in training: fedsc (sound), seed 2"
    drawn = pictures(section)
    assert list(drawn) == ["parts"]
    assert drawn["parts"].rounds == [1, 3]
    assert drawn["parts"].parts == {"local": [1.0, 0.5], "sampling": [1.5, 1.5], "server": [-0.5, 0.0]}
    page = render_section(section)
    for picture in drawn.values():
        assert page.count(f"{picture.title}</title>") == 2  # for wide and for narrow screens
        assert picture.text in page
    assert "Not measured: no head (in 1 of 3 rounds)" in page


def test_of_many_runs_the_first_have_sections(make_result: MakeResult) -> None:
    sections = drift_sections([replace(make_result(seed=seed), drift_rounds=ROUNDS[1:2]) for seed in range(8)])
    assert [section.name for section in sections] == ["drift", *(f"drift-{k}" for k in range(2, 7)), "drift-others"]
    assert all(not pictures(section) for section in sections)


@pytest.mark.parametrize(("rounds", "words"), [([], "run again with drift=true"), (ROUNDS, "note: no head (in 1 of 3")])
def test_the_command_prints_drift_or_how_to_measure_it(capsys, rounds: list[DriftRound], words: str) -> None:
    _print_drift(rounds)
    assert words in capsys.readouterr().out
    assert (_drift_facts(rounds) is None) == (not rounds)
