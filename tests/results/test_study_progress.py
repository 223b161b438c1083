"""How far a study is: every cell is told once, as done, failed with its reason, or not run yet."""

from fedloom.results.data_table import DataTable
from fedloom.results.page_sections import progress
from fedloom.runs.studies.outcome import Outcome
from fedloom.runs.studies.plan import parse_study

STUDY = parse_study(
    {
        "scenario": {"source": "digits", "partition": "iid", "clients": 2},
        "methods": ["fedavg", "fedprox", "local"],
        "seeds": 3,
    }
)


def test_seeds_stand_under_what_became_of_them_with_every_reason() -> None:
    done = {"fedavg/seed0": "a", "fedavg/seed1": "b", "fedavg/seed2": "c"}
    failed = {"fedprox/seed0": "OSError: full", "fedprox/seed1": "OSError: full", "fedprox/seed2": "ValueError: nan"}
    part = progress(STUDY, Outcome(done, failed, [f"local/seed{k}" for k in range(3)]))
    told, sheet, rest = part.blocks
    assert told == "3 of 9 cells done, 3 failed, 3 not run yet."
    assert part.limits == ["3 of 9 cells done, 3 failed, 3 not run yet: the report names them in Cells of the study."]
    assert isinstance(sheet, DataTable)
    assert sheet.texts == [
        ["fedavg", "0, 1, 2", "–", "–", ""],
        ["fedprox", "–", "0, 1, 2", "–", "seeds 0 and 1: OSError: full; seed 2: ValueError: nan"],
    ]
    assert sheet.numeric == [False, True, True, True, False]
    assert rest == "Rows of which no seed was run yet: local."


def test_a_whole_study_limits_nothing() -> None:
    part = progress(STUDY, Outcome({cell.name: cell.folder for cell in STUDY.cells}))
    assert part.blocks[0] == "9 of 9 cells done, 0 failed, 0 not run yet."
    assert (len(part.blocks), part.limits) == (2, [])
