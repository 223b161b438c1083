"""Seeds that are added until rows are decided: looks, words that stay, and what resumes. Nothing is trained."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.difference import compare_family
from fedloom.results.looks import stages
from fedloom.results.pairs import all_paired
from fedloom.results.result import Result
from fedloom.results.table import result_table
from fedloom.results.verdict import verdict
from fedloom.runs.studies.outcome import Outcome, outcome
from fedloom.runs.studies.plan import Cell, StudyPlan, parse_study
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.studies.tuning import job_states
from toy_results import MakeResult, toy_scenario

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "verdicts.json").read_text())["cases"]
CASE = GOLDEN["six mixed, alpha .01"]
NAMES = ["fedprox", "moon", "fedsc", "feddw", "scaffold", "fedskc"]
# Three of the six are open after three seeds; more values for these, in points.
MORE = {"fedprox": [2.0, 2.2], "moon": [1.1, 0.9, 1.0, 1.2], "feddw": [9.0, -8.0, 7.0, -6.0, 5.0, 0.1, 0.2]}
KEYS: dict[str, Any] = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 3},
    "model": "mlp",
    "rounds": 1,
    "methods": ["fedavg", *NAMES],
    "seeds": {"until": "decided"},
}


class Fakes:
    """Run folders that exist in memory alone: cells that `run` has ended, with the values of a table."""

    def __init__(self, folder: StudyFolder, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._make, self.results = folder, make_result, dict[str, Result]()
        self.broken, self.diverging = set[tuple[str, int]](), set[tuple[str, int]]()
        values = dict(zip(NAMES, CASE["in"]["rows"], strict=True))
        self.points = {name: [*of, *MORE.get(name, []), *of, *of, *of][:10] for name, of in values.items()}
        monkeypatch.setattr(StudyFolder, "finished", lambda _, name: name in self.results)
        monkeypatch.setattr(StudyFolder, "result", lambda _, name, config: self.results[name])

    def run(self, study: StudyPlan, cells: list[Cell] | None = None) -> list[Counter[str]]:
        """Return how many cells of each row every stage has asked for."""
        asked = []
        for stage in stages(study, self.folder, study.cells if cells is None else cells):
            self.folder.claim(study)
            asked.append(Counter(cell.method for cell in stage))
            for cell in stage:
                self._end(cell)
        return asked

    def _end(self, cell: Cell) -> None:
        at = cell.method, cell.config.seed
        if at in self.broken:
            self.folder.write_error(cell.folder, "no data")
            return
        accuracy = 0.5 + self.points[cell.method][at[1]] / 100 if cell.method in self.points else 0.5
        notes = ["diverged: a loss was not finite"] if at in self.diverging else []
        more: dict[str, Any] = {"world": toy_scenario() | {"test_samples": 10_000}, "degenerate": notes}
        self.results[cell.folder] = replace(self._make(*at, [accuracy], **more), folder=self.folder.cell(cell.folder))

    def words(self, study: StudyPlan) -> dict[str, str]:
        rows = result_table(outcome(study, self.folder, study.cells).cell_results)
        return {pair.label: f"{pair.outcome.verdict}, {pair.outcome.figures()}" for pair in all_paired(rows, "fedavg")}


@pytest.fixture
def fakes(tmp_path: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(StudyFolder(tmp_path / "s"), make_result, monkeypatch)


def test_decided_rows_stop_with_the_golden_words_and_the_baseline_runs_all_seeds(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    asked = fakes.run(study)
    first = {look.row: look for look in fakes.folder.looks() if len(look.seeds) == 3 and look.word != "baseline"}
    assert [first[name].word for name in NAMES] == [row["word"] for row in CASE["out"]]
    assert [first[name].adjusted for name in NAMES] == pytest.approx([row["adjusted"] for row in CASE["out"]], abs=1e-3)
    assert asked[0] == dict.fromkeys(["fedavg", *NAMES], 3)
    assert asked[1] == {"fedavg": 2, "fedprox": 2, "moon": 2, "feddw": 2}
    assert asked[2:] == [{"fedavg": 2, "moon": 2, "feddw": 2}, {"fedavg": 3, "feddw": 3}]
    alphas = {len(look.seeds): look.alpha for look in fakes.folder.looks()}
    assert alphas == {3: 0.01, 5: 0.01, 7: 0.01, 10: 0.02}
    # At the second look only the open rows are a family.
    alone = compare_family(
        [fakes.points[name][:5] for name in ("fedprox", "moon", "feddw")], 0.01, points=1, alpha=0.01
    )
    second = {look.row: look for look in fakes.folder.looks() if len(look.seeds) == 5}
    assert [second[name].word for name in ("fedprox", "moon", "feddw")] == [judged.word for judged in alone]
    assert [second[name].adjusted for name in ("fedprox", "moon", "feddw")] == [judged.adjusted for judged in alone]
    words = fakes.words(study)
    assert words["fedsc"].startswith("behind, -2.8 points, 95 % interval")
    assert words["fedsc"].endswith("3 of 3 seeds, adjusted p .0029 of 6 at level .01")
    assert words["fedskc"].startswith("equivalent within ±1 point, +0.1 points")
    assert words["fedprox"].endswith("5 of 5 seeds, adjusted p .0012 of 3 at level .01")
    assert words["feddw"].endswith("of 1 at level .02")
    ended = outcome(study, fakes.folder, study.cells)
    assert (len(ended.done), len(ended.spared), ended.remaining) == (41, 29, [])
    assert Counter(job_states(study, fakes.folder, study.cells, [])[1].values()) == {"done": 41, "spared": 29}


def test_a_study_that_was_cut_off_resumes_and_takes_each_look_once(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    steps = stages(study, fakes.folder, study.cells)
    fakes.folder.claim(study)
    for cell in next(steps)[:8]:
        fakes._end(cell)
    steps.close()
    assert fakes.folder.looks() == []
    assert fakes.words(study)["fedprox"].startswith("undecided (no look taken), +2.1 points, 95 % interval")
    fakes.run(study)
    text = (fakes.folder.path / "looks.json").read_text()
    assert [sum(of.values()) for of in fakes.run(study)] == [41]  # finished ones, in one stage
    assert (fakes.folder.path / "looks.json").read_text() == text


def test_a_row_with_a_failed_cell_misses_the_look_and_joins_the_next(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    fakes.broken = {("scaffold", 1)}
    fakes.run(study)
    assert {(look.row, len(look.seeds)) for look in fakes.folder.looks()} >= {("fedsc", 3), ("moon", 5)}
    assert not [look for look in fakes.folder.looks() if look.row == "scaffold"]
    text = (fakes.folder.path / "looks.json").read_text()
    fakes.broken.clear()
    fakes.run(study)
    assert (fakes.folder.path / "looks.json").read_text() == text  # a look is over


def test_without_its_baseline_or_all_its_cells_no_look_is_taken(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    assert len(fakes.run(study, study.chosen(["moon"]))) == 1
    assert fakes.folder.looks() == []
    fakes.broken = {("fedavg", 2)}
    assert len(fakes.run(study)) == 1
    assert fakes.folder.looks() == []
    assert fakes.words(study)["moon"].startswith("too few seeds")


def test_a_diverged_row_stops_and_stays_counted(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    fakes.diverging = {("scaffold", 0)}
    asked = fakes.run(study)
    assert sum(of["scaffold"] for of in asked) == 3
    assert {look.word for look in fakes.folder.looks() if look.row == "scaffold"} == {"diverged"}
    assert " of 5 of 6 at level .01" in fakes.words(study)["fedsc"]
    assert "scaffold diverged with 1 of 3" in verdict(result_table(ended_runs(fakes, study)))


def ended_runs(fakes: Fakes, study: StudyPlan) -> list[Any]:
    ended: Outcome = outcome(study, fakes.folder, study.cells)
    return ended.cell_results


def test_rows_that_come_later_have_no_looks_and_change_no_word(fakes: Fakes) -> None:
    study = parse_study(KEYS)
    fakes.run(study)
    before = fakes.words(study)
    fakes.points["fednova"] = [9.0 + k / 10 for k in range(10)]
    grown = parse_study({**KEYS, "methods": [*KEYS["methods"], "fednova"]})
    assert fakes.run(grown)[-1]["fednova"] == 10
    after = fakes.words(grown)
    assert "adjusted p <.001 of 1 added later" in after.pop("fednova")
    assert after == before


def test_what_was_planned_is_fixed_and_a_study_needs_its_baseline(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    folder.claim(parse_study(KEYS))
    with pytest.raises(RunFolderError, match=r"seeds = a number or a list: .* was planned with \{'until': 'decided'"):
        folder.check(parse_study({**KEYS, "seeds": 10}))
    with pytest.raises(RunFolderError, match=r"margin = 2\.0: .* was planned with 1\.0"):
        folder.check(parse_study({**KEYS, "margin": 2}))
    (tmp_path / "s" / "looks.json").write_text('[{"row": "moon"}]')
    with pytest.raises(RunFolderError, match=r"looks\.json: damaged \("):
        folder.plans()
    with pytest.raises(ConfigError, match=r"rows are compared with fedavg, which is not among the methods; add it"):
        parse_study({**KEYS, "methods": NAMES})


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ({"until": "decided", "most": 4}, r"seeds.most = 4: .*5, 7 or 10"),
        ({"until": "settled"}, r"seeds.until = 'settled'"),
        ({"most": 10}, "seeds.until"),
        ({"until": "decided", "mots": 10}, "did you mean 'most'"),
        ({}, "seeds"),
    ],
)
def test_wrong_keys_of_seeds_are_one_line(seeds: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse_study({**KEYS, "seeds": seeds})
    assert "\n" not in str(error.value)


def test_fewer_looks_spend_the_same_level() -> None:
    for most, looks in ((5, {3: 0.01, 5: 0.04}), (7, {3: 0.01, 5: 0.01, 7: 0.03})):
        assert parse_study({**KEYS, "seeds": {"until": "decided", "most": most}}).looks == looks
