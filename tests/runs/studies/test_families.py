"""The families of a study's comparisons, fixed before it runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.group import ResultRow
from fedloom.results.pairs import all_paired, family_note
from fedloom.results.table import result_table
from fedloom.results.verdict import foresight
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.study_folder import StudyFolder
from toy_results import MakeResult

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
    families = StudyFolder(tmp_path / "s").families()
    assert [families[name] for name in ("fedsc", "moon", "fedprox")] == ["primary", "exploratory", "added later"]
    with pytest.raises(RunFolderError, match=r"primary = \['moon'\]: .*/s was planned with \['fedsc'\], before it ran"):
        folder.check(parse_study(planned(METHODS, primary=["moon"])))


def test_a_study_without_primary_methods_is_one_family_and_an_old_folder_too(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.claim(parse_study(planned(METHODS)))
    assert {*folder.families().values()} == {""}
    renamed = {"plain": {"method": "fedavg"}, **{name: {} for name in METHODS[1:]}}
    folder.claim(parse_study({**KEYS, "methods": renamed}))
    assert (folder.families()["plain"], folder.families()["fedavg"]) == ("", "added later")
    (tmp_path / "s" / "families.json").unlink()
    assert folder.families()["whatever"] == ""
    (tmp_path / "s" / "families.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"families\.json: damaged \(KeyError"):
        folder.families()


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
            replace(make_result(name, seed, [value]), family="primary" if name in means else family)
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


def test_a_plan_says_what_it_will_be_able_to_see() -> None:
    """By tables of the noncentral t: one comparison of three seeds needs 3.26 standard deviations for power .8."""
    (single,) = foresight(parse_study(planned(["fedavg", "fedsc"])))
    assert single.startswith(
        "3 seeds, one family of 1 comparison: a method is seen to be ahead or behind with chance .8"
    )
    assert "from about 3.3 standard deviations" in single
    both = foresight(parse_study(planned(METHODS, primary=["fedsc"], seeds=10)))
    assert [line.partition(":")[0] for line in both] == [
        "10 seeds, primary family of 1 comparison",
        "10 seeds, exploratory family of 2 comparisons",
    ]
    assert foresight(parse_study(planned(["fedavg"]))) == []
    assert foresight(parse_study(planned(METHODS, seeds=2)))[0].endswith("of 3 comparisons: too few for any word")
