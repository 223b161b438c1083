"""Metric rows of a round's report and of its tests, one measure a row."""

from __future__ import annotations

from fedloom.engine import RoundReport
from fedloom.evaluation import FewShotScores, Scores
from fedloom.runs.storage.run_folder import Row


def system_row(round_: int, name: str, value: float) -> Row:
    """Return the row of a measure of the run itself: bytes, seconds, counts.

    Args:
        round_: the round, which counts from 1.
        name: name of the measure, which says its unit.
        value: the number.
    """
    return Row(round=round_, client=None, split="system", protocol=None, name=name, value=value)


def training_rows(report: RoundReport) -> list[Row]:
    """Return rows of a round's costs, the method's figures, its diagnostics, and the mean terms of its loss."""
    round_, seconds = report.round, report.seconds
    values: dict[str, float] = {
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "participants": len(report.participants),
        "steps": report.steps,
        "samples": report.samples,
        **{f"samples_held/{group}": samples for group, samples in report.samples_by_group.items()},
        **{f"samples_closing/{group}": samples for group, samples in report.closing_samples_by_group.items()},
        **{f"samples_opening/{group}": samples for group, samples in report.opening_samples_by_group.items()},
        "seconds_train": seconds.train,
        "seconds_aggregate": seconds.aggregate,
        "seconds_move": seconds.move,
        **report.figures,
    }
    values |= {f"degenerate/{f.code}": f.figure for f in report.diagnostics}
    rows = [system_row(round_, name, value) for name, value in values.items()]
    rows += [
        Row(round=round_, client=None, split="train", protocol=None, name=name, value=value)
        for name, value in report.terms.items()
    ]
    return rows


def score_rows(round_: int, scores: Scores | FewShotScores, protocol: str) -> list[Row]:
    """Return the scores of one split, then the values of each client that was tested, with each predictor in turn.

    Args:
        round_: the round, which counts from 1.
        scores: the metrics, pooled and by client.
        protocol: which model was tested on whose data, as "personal/local".
    """
    split = scores.split
    rows = [
        Row(round=round_, client=None, split=split, protocol=protocol, name=name, value=value)
        for name, value in scores.values().items()
    ]
    rows += [
        Row(round=round_, client=client, split=split, protocol=protocol, name=name, value=value)
        for name, by_client in scores.client_values().items()
        for client, value in by_client.items()
    ]
    return rows
