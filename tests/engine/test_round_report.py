"""A closing round is part of the report of the last round, an opening round of that of the first: costs are added."""

from dataclasses import fields

import pytest

from fedloom.engine.round_report import RoundReport, Seconds
from fedloom.methods.contract.contexts import Diagnostic


def report(number: int) -> RoundReport:
    """A report whose numbers tell one from another."""
    return RoundReport(
        round=number,
        participants=(number,),
        bytes_up=number * 10,
        bytes_down=number * 100,
        terms={"loss": number * 0.5},
        steps=number * 1000,
        samples=number * 10_000,
        samples_by_group={0: number},
        seconds=Seconds(number * 1.0, number * 2.0, number * 4.0),
        diagnostics=[Diagnostic(f"code{number}", "text", 0.0)],
        figures={"epsilon": number * 1.5},
    )


@pytest.mark.parametrize("stage", ["closing", "opening"])
def test_such_a_round_adds_its_costs_and_nothing_else(stage):
    joined, alone = report(2).with_stages(**{"opening": None, "closing": None, stage: report(3)}), report(2)
    assert (joined.bytes_up, joined.bytes_down) == (50, 500)
    assert (joined.steps, joined.samples) == (5000, 50_000)
    assert joined.seconds == Seconds(5.0, 10.0, 20.0)
    assert [diagnostic.code for diagnostic in joined.diagnostics] == ["code2", "code3"]
    assert getattr(joined, f"{stage}_samples_by_group") == {0: 3}
    added = {"bytes_up", "bytes_down", "steps", "samples", "seconds", "diagnostics", f"{stage}_samples_by_group"}
    unchanged = {field.name for field in fields(RoundReport)} - added
    assert all(getattr(joined, name) == getattr(alone, name) for name in unchanged)
