"""The table of clients that never trained: accuracy on them by method and by how they were served. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedloom.core.text import percent, plus_minus
from fedloom.results.fairness import Fairness, fairness, mean_fairness
from fedloom.results.formats import as_csv, diverged_field, label_with_notes, text_table
from fedloom.results.group import Group
from fedloom.results.statistics import mean_std
from fedloom.runs.storage.run_data import RunData

NEWCOMERS_CAPTION = (
    "Accuracy after the last round on the test data of clients that never trained, as a mean over these clients, ± "
    "sample std over n seeds: zero-shot, and tuned on k samples of each class (k-shot/what is tuned/passes) at the "
    "rate of the last round. local: the first weights of the run, tuned in the same way. own majority: always "
    "predicting each one's most frequent class."
)
_SPLIT = "newcomers"  # of their rows in metrics.jsonl
_ZERO_SHOT = "zero-shot"
_TUNES = ("all", "head", "lp_ft", "own", "local")


@dataclass(frozen=True, slots=True)
class NewcomerRow:
    """One method in one setting; accuracies are shares in [0, 1].

    - served: by how newcomers were served, each seed's mean accuracy over them.
    - spread: in the same way, how accuracy spreads over newcomers, as a mean over seeds.
    - majority: the mean accuracy of always predicting each newcomer's most frequent class; None where it is not known.
    - note: why the zero-shot model is at chance.
    - diverged: seeds of runs that diverged, whose accuracies mean nothing.
    """

    label: str
    seeds: int
    served: dict[str, list[float]]
    spread: dict[str, Fairness]
    majority: float | None
    note: str | None
    diverged: list[int]


def newcomer_rows(groups: Sequence[Group]) -> list[NewcomerRow]:
    """Return a row for each group whose runs tested clients that never trained, in their order.

    A run in several protocols has one row. Domains that were left out have a table of their own.
    """
    return [_row(group) for group in groups if not group.is_further and all(map(_has_newcomers, group.results))]


def _has_newcomers(run: RunData) -> bool:
    held_out = run.config.get("scenario", {}).get("held_out") or {}
    return bool(run.numbers.get("newcomers", {}).get("tests")) and "domain" not in held_out


def _row(group: Group) -> NewcomerRow:
    by_run = [run.numbers["newcomers"] for run in group.results]
    ways = sorted(set.intersection(*(set(newcomers["tests"]) for newcomers in by_run)), key=_order)
    by_client = [_by_client(run) for run in group.results]
    spread = {}
    for way in ways:
        spreads = [fairness(list(accuracies.get(way, {}).values())) for accuracies in by_client]
        measured = [fairness_of_run for fairness_of_run in spreads if fairness_of_run is not None]
        if measured:
            spread[way] = mean_fairness(measured)
    majorities = [newcomers["majority_own"] for newcomers in by_run if newcomers.get("majority_own") is not None]
    return NewcomerRow(
        group.row["label"],
        len(by_run),
        {way: [newcomers["tests"][way]["accuracy"] for newcomers in by_run] for way in ways},
        spread,
        fmean(majorities) if len(majorities) == len(by_run) else None,
        by_run[0].get("zero_shot_note"),
        group.row["diverged"],
    )


def _by_client(run: RunData) -> dict[str, dict[int, float]]:
    """The accuracies of newcomers by how they were served, and client."""
    by_way: dict[str, dict[int, float]] = {}
    for row in run.rows:
        if row["split"] == _SPLIT and row["name"] == "accuracy" and row["client"] is not None:
            by_way.setdefault(str(row["protocol"]), {})[row["client"]] = row["value"]
    return by_way


def _order(way: str) -> tuple[float, int, str]:
    """Order tests: zero-shot first, then by shots, `all` of them last, then by what is tuned."""
    if way == _ZERO_SHOT:
        return -1.0, 0, way
    shots, _, rest = way.partition("-shot/")
    tuned = rest.partition("/")[0]
    known = _TUNES.index(tuned) if tuned in _TUNES else len(_TUNES)
    return float(shots) if shots.isdigit() else float("inf"), known, rest


def newcomer_numbers(row: NewcomerRow) -> list[dict[str, Any]]:
    """Return a row as plain numbers: a line for each way of serving, with how accuracy spreads over newcomers."""
    lines = []
    for way, accuracies in row.served.items():
        mean, std = mean_std(accuracies)
        line: dict[str, Any] = {"label": row.label, "served": way, "accuracy": mean, "std_over_seeds": std}
        spread = asdict(row.spread[way]) if way in row.spread else {}
        diverged = diverged_field(row.diverged)
        lines.append(line | {"seeds": row.seeds} | spread | {"majority_own": row.majority} | diverged)
    return lines


def newcomer_columns(rows: Sequence[NewcomerRow]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the texts of the rows, for people: percent."""
    ways = sorted({way for row in rows for way in row.served}, key=_order)
    with_majority = any(row.majority is not None for row in rows)
    texts = []
    for row in rows:
        note = None if row.note is None else f"zero-shot: {row.note}"
        label = label_with_notes(row.label, note, row.diverged)
        cells = [plus_minus(*mean_std(row.served[way])) if way in row.served else "–" for way in ways]
        majority = ["–" if row.majority is None else percent(row.majority)] if with_majority else []
        texts.append([label, *cells, *majority, str(row.seeds)])
    return ["method", *(f"{way} %" for way in ways), *(["own majority %"] if with_majority else []), "n"], texts


def formatted_newcomers(groups: Sequence[Group], format: str) -> str:
    """Return accuracy on clients that never trained as text; empty if no run held clients out.

    Args:
        groups: groups of runs, of which those that held clients out count.
        format: "markdown", "latex", "html" or "csv".
    """
    rows = newcomer_rows(groups)
    if format == "csv":
        return as_csv([line for row in rows for line in newcomer_numbers(row)])
    if not rows:
        return ""
    names, texts = newcomer_columns(rows)
    numeric = (False, *(True,) * (len(names) - 1))
    return text_table(texts, names, numeric, format, "Accuracy on clients that never trained")
