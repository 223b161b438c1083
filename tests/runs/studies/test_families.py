"""The families of a study's comparisons, fixed before it runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.group import ResultRow
from fedloom.results.looks import foresight
from fedloom.results.pairs import all_paired, family_note
from fedloom.results.table import result_table
from fedloom.results.verdict import verdict
from fedloom.runs.storage.run_data import Plan
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.study_folder import StudyFolder
from toy_results import MakeResult, runs_by_seed

KEYS = {"scenario": {"source": "digits", "partition": "iid", "clients": 3}, "model": "mlp", "rounds": 1, "seeds": 3}
METHODS = ["fedavg", "fedsc", "feddw", "moon"]


def planned(methods: list[str], **more: object) -> dict[str, object]:
    return {**KEYS, "methods": methods, **more}


def test_the_record_has_members_level_seeds_and_a_hash_and_never_changes(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.claim(parse_study(planned(METHODS, primary=["fedsc"])))
    record = json.loads((tmp_path / "s" / "families.json").read_text())
    assert record["families"] == [
        {"name": "exploratory", "alpha": 0.05, "members": ["fedavg", "feddw", "moon"]},
        {"name": "primary", "alpha": 0.05, "members": ["fedsc"]},
    ]
    assert (record["seeds"], len(record["sha256"])) == ([0, 1, 2], 64)
    folder.claim(parse_study(planned([*METHODS, "fedprox"], primary=["fedsc"])))  # the study has grown
    plans = StudyFolder(tmp_path / "s").plans()
    assert [plans[name].family for name in ("fedsc", "moon", "fedprox")] == ["primary", "exploratory", "added later"]
    with pytest.raises(RunFolderError, match=r"primary = \['moon'\]: .*/s was planned with \['fedsc'\], before it ran"):
        folder.check(parse_study(planned(METHODS, primary=["moon"])))


def test_a_study_without_primary_methods_is_one_family_and_an_old_folder_too(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.claim(parse_study(planned(METHODS)))
    assert {plan.family for plan in folder.plans().values()} == {""}
    renamed = {"plain": {"method": "fedavg"}, **{name: {} for name in METHODS[1:]}}
    folder.claim(parse_study({**KEYS, "methods": renamed}))
    assert (folder.plans()["plain"].family, folder.plans()["fedavg"].family) == ("", "added later")
    (tmp_path / "s" / "families.json").unlink()
    assert folder.plans()["whatever"].family == ""
    (tmp_path / "s" / "families.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"families\.json: damaged \(KeyError"):
        folder.plans()


def test_primary_names_methods_of_the_study_and_no_number() -> None:
    with pytest.raises(ConfigError, match="primary = 'fedscc': no method of the study; did you mean 'fedsc'"):
        parse_study(planned(METHODS, primary=["fedscc"]))
    with pytest.raises(ConfigError, match="primary = 'fedsc' stands twice"):
        parse_study(planned(METHODS, primary=["fedsc", "fedsc"]))
    with_primary, without = (parse_study(planned(METHODS, **more)) for more in ({"primary": ["fedsc"]}, {}))
    assert with_primary.hash == without.hash
    assert [cell.folder for cell in with_primary.cells] == [cell.folder for cell in without.cells]


def test_rows_of_another_family_change_no_word(make_result: MakeResult) -> None:
    means = {"fedavg": (0.5, 0.5, 0.5), "fedsc": (0.521, 0.517, 0.526)}
    noisy = {f"m{k}": (0.9 - k / 10, 0.3, 0.4 + k / 10) for k in range(5)}

    def words(family: str) -> dict[str, str]:
        runs = [
            replace(make_result(name, seed, [value]), plan=Plan(family="primary" if name in means else family))
            for name, values in (means | noisy).items()
            for seed, value in enumerate(values)
        ]
        rows = [ResultRow(**{**row, "step": 1e-4}) for row in result_table(runs)]  # type: ignore[typeddict-item]
        assert ("primary, added later" in family_note(rows)) == (family == "added later")
        return {pair.label: f"{pair.outcome.verdict}, {pair.outcome.figures()}" for pair in all_paired(rows, "fedavg")}

    assert words("added later")["fedsc"].startswith("ahead, +2.1 points")
    assert "of 1 primary" in words("added later")["fedsc"]
    assert "of 6 primary" in words("primary")["fedsc"]
    assert words("primary")["fedsc"].startswith("undecided")


def test_seeds_beyond_the_plan_change_no_word_and_give_an_unplanned_look(make_result: MakeResult) -> None:
    plan = Plan(study="x", seeds=[0, 1, 2])
    values = {"fedavg": (0.5, 0.5, 0.5, 0.5, 0.5), "fedsc": (0.52, 0.51, 0.53, 0.52, 0.525), "moon": (0.6, 0.61, 0.62)}

    def rows(plan: Plan, seeds: int) -> list[ResultRow]:
        runs = [replace(run, plan=plan) for run in runs_by_seed(make_result, values) if run.numbers["seed"] < seeds]
        return result_table(runs)

    planned = {pair.label: pair for pair in all_paired(rows(plan, 3), "fedavg")}
    grown = {pair.label: pair for pair in all_paired(rows(plan, 5), "fedavg")}
    assert [grown[name].outcome.verdict for name in grown] == [planned[name].outcome.verdict for name in grown]
    assert grown["fedsc"].outcome.adjusted == planned["fedsc"].outcome.adjusted
    assert grown["fedsc"].seeds == [0, 1, 2]
    assert planned["fedsc"].outcome.verdict == "undecided (needs about 5 seeds)"
    assert (
        "(unplanned look: ahead, +2.1 points, 95 % interval +1.2 to +3.0 (alone), 5 of 5 seeds"
        in grown["fedsc"].words()
    )
    assert grown["moon"].outcome.unplanned is None
    assert "fedsc (+2.0, needs about 5 seeds; unplanned look at 5: ahead)" in verdict(rows(plan, 5))
    assert "1 of 3 planned seeds missing" in all_paired(rows(plan, 2), "fedavg")[0].words()


def test_the_margin_is_the_one_of_the_study(make_result: MakeResult, tmp_path: Path) -> None:
    values = {"fedavg": (0.5, 0.5, 0.5, 0.5), "fedsc": (0.506, 0.514, 0.505, 0.509)}
    for margin, said in ((1.0, "ahead"), (2.0, "ahead, by less than 2 points"), (0.0, "ahead")):
        runs = [replace(run, plan=Plan(margin=margin)) for run in runs_by_seed(make_result, values)]
        assert all_paired(result_table(runs), "fedavg")[0].outcome.verdict == said
    with_margin, without = (parse_study(planned(METHODS, **more)) for more in ({"margin": 2}, {}))
    assert (with_margin.hash, with_margin.values["margin"]) == (without.hash, 2.0)
    folder = StudyFolder(tmp_path / "s")
    folder.claim(with_margin)
    assert folder.plans()["fedsc"].margin == 2.0
    with pytest.raises(RunFolderError, match=r"margin = 1\.0: .*/s was planned with 2\.0"):
        folder.check(without)
    for wrong in (-1, float("nan"), "wide", None, True, float("inf")):
        with pytest.raises(ConfigError, match=r"^margin"):
            parse_study(planned(METHODS, margin=wrong))


def test_rows_of_another_study_are_added_later(make_result: MakeResult) -> None:
    values = {"fedavg": (0.5, 0.5, 0.5), "fedsc": (0.521, 0.517, 0.526), "moon": (0.9, 0.3, 0.4)}
    runs = [
        replace(run, plan=Plan(study="b" if run.numbers["method"] == "moon" else "a"))
        for run in runs_by_seed(make_result, values)
    ]
    pairs = {pair.label: pair.outcome for pair in all_paired(result_table(runs), "fedavg")}
    assert [(pairs[name].family, pairs[name].tested) for name in ("fedsc", "moon")] == [("", 1), ("added later", 1)]


def test_an_unknown_key_is_named_before_a_primary_method(tmp_path: Path) -> None:
    for wrong in ({"metods": ["fedsc"]}, {"round": 3}, {"scenario": {"sourc": "digits"}}):
        with pytest.raises(ConfigError, match="unknown key"):
            parse_study({**KEYS, "methods": METHODS, "primary": ["fedscc"]} | wrong)


def test_a_plan_says_what_it_will_be_able_to_see() -> None:
    """By tables of the noncentral t: one comparison of three seeds needs 3.26 standard deviations for power .8."""
    (single,) = foresight(parse_study(planned(["fedavg", "fedsc"])))
    assert single.startswith(
        "3 seeds, one family of 1 comparison: a method is seen to be ahead or behind with chance .8"
    )
    assert "from about 4.9 points on (2.6 in quiet settings, 11.8 in noisy ones; 3.3 standard deviations" in single
    both = foresight(parse_study(planned(METHODS, primary=["fedsc"], seeds=10)))
    assert [line.partition(":")[0] for line in both] == [
        "10 seeds, primary family of 1 comparison",
        "10 seeds, exploratory family of 2 comparisons",
    ]
    (adding,) = foresight(parse_study(planned(["fedavg", "fedsc"], seeds={"until": "decided"})))
    assert adding.startswith("3, 5, 7, 10 seeds, one family of 1 comparison: a method is seen")
    assert adding.endswith("(noncentral t at .02 / methods)")
    assert foresight(parse_study(planned(["fedavg"]))) == []
    assert foresight(parse_study(planned(METHODS, seeds=2)))[0].endswith("of 3 comparisons: too few for any word")
