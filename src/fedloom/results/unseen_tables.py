"""Accuracy on unseen data: domains that were left out in turn, and clients that never trained. Needs no torch."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedloom.core.text import percent, plus_minus
from fedloom.results.data_table import DataTable, Field, diverged_field, label_with_notes, or_dash
from fedloom.results.fairness import Fairness, fairness, mean_fairness
from fedloom.results.group import Group, mean_std
from fedloom.runs.storage.log import NEWCOMERS
from fedloom.runs.storage.run_data import RunData

_KEY = "scenario.held_out.domain"
_ZERO_SHOT = "zero-shot"
LEFT_OUT_CAPTION = (
    "Accuracy after the last round on all test data of a domain that took no part in the training (zero-shot), by "
    "domain, and the unweighted mean over domains, ± sample std over n seeds."
)


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """One method in one setting; accuracies are shares in [0, 1].
    `domains` has the mean accuracy over seeds of the model that trained without each domain. `mean` and `std` are over
    domains, then over the `seeds` that ran all of them; None without such seeds, or where another row has a domain
    more. `note` says why the model is at chance; the accuracies of `diverged` seeds mean nothing."""

    label: str
    domains: dict[str, float]
    mean: float | None
    std: float | None
    seeds: int
    note: str | None
    diverged: list[int]


def left_out_rows(groups: Sequence[Group]) -> list[LeftOutRow]:
    """Return a row for each method and setting that held domains out, in the order of the groups."""
    by_row: dict[tuple[Any, ...], dict[str, Group]] = {}
    for group in groups:
        domain = _domain(group.results[0])
        if domain is not None and not group.is_further:
            by_row.setdefault(_row_key(group, domain), {})[domain] = group
    all_domains = {domain for by_domain in by_row.values() for domain in by_domain}
    return [_left_out_row(by_domain, all_domains) for by_domain in by_row.values()]


def _domain(result: RunData) -> str | None:
    """The domain that a run left out; None if it left none out."""
    held_out = result.config.get("scenario", {}).get("held_out") or {}
    tested = result.numbers.get("newcomers", {}).get("tests", {}).get(_ZERO_SHOT)
    return held_out.get("domain") if tested else None


def _row_key(group: Group, domain: str) -> tuple[Any, ...]:
    """The facts that runs of one row share: all but the domain."""
    row, cell = group.row, group.row["cell"]
    setting = tuple((key, value) for key, value in row["setting"].items() if key != _KEY)
    return row["method"], row["preset"], cell and (_setting_name(cell[0], domain), cell[1]), setting


def _setting_name(name: str, domain: str) -> str:
    """The name of a study's setting before it was made for each domain."""
    return name.removesuffix(f"without {domain}").removesuffix(", ")


def _left_out_row(by_domain: dict[str, Group], all_domains: Collection[str]) -> LeftOutRow:
    first_domain, first = next(iter(by_domain.items()))
    cell = first.row["cell"]
    name = first.row["method"] if cell is None else cell[1]
    setting = "" if cell is None else _setting_name(cell[0], first_domain)
    accuracies = {
        domain: {
            run.numbers["seed"]: run.numbers["newcomers"]["tests"][_ZERO_SHOT]["accuracy"]
            for run in group.results
            if _domain(run) is not None
        }
        for domain, group in by_domain.items()
    }
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in accuracies.values())))
    means = [fmean(by_seed[seed] for by_seed in accuracies.values()) for seed in seeds]
    # A mean over fewer domains would not compare with the other rows.
    mean, std = mean_std(means) if means and by_domain.keys() == all_domains else (None, None)
    domains = {domain: fmean(by_seed.values()) for domain, by_seed in accuracies.items()}
    note = first.results[0].numbers["newcomers"].get("zero_shot_note")
    diverged = sorted({seed for group in by_domain.values() for seed in group.row["diverged"]})
    return LeftOutRow("/".join(filter(None, (setting, name))), domains, mean, std, len(seeds), note, diverged)


def left_out_table(groups: Sequence[Group]) -> DataTable:
    """Return the accuracy on each left-out domain, and their mean; without rows if no run left one out."""
    rows = left_out_rows(groups)
    domains = dict.fromkeys(domain for row in rows for domain in row.domains)
    columns: list[Field[LeftOutRow]] = [
        Field("method", lambda row: label_with_notes(row.label, row.note, row.diverged)),
        *(Field.of(f"without {domain} %", _accuracy_of(domain), percent) for domain in domains),
        Field("mean %", lambda row: or_dash(row.mean, lambda mean: plus_minus(mean, row.std)), lambda row: row.mean),
        Field("n", lambda row: str(row.seeds), lambda row: row.seeds),
    ]
    records: list[dict[str, Any]] = [
        {"label": row.label, **row.domains, "mean": row.mean, "std": row.std, "seeds": row.seeds}
        | diverged_field(row.diverged)
        for row in rows
    ]
    return DataTable.of("domains", LEFT_OUT_CAPTION, columns, rows, records=records)


def _accuracy_of(domain: str) -> Callable[[LeftOutRow], float | None]:
    return lambda row: row.domains.get(domain)


NEWCOMERS_CAPTION = (
    "Accuracy after the last round on the test data of clients that never trained, as a mean over these clients, ± "
    "sample std over n seeds: zero-shot, and tuned on k samples of each class (k-shot/what is tuned/passes) at the "
    "rate of the last round. local: the first weights of the run, tuned in the same way. own majority: always "
    "predicting each one's most frequent class."
)
_TUNES = ("all", "head", "lp_ft", "own", "local")


@dataclass(frozen=True, slots=True)
class NewcomerRow:
    """One method in one setting; accuracies are shares in [0, 1].
    `served` has each seed's mean accuracy by how newcomers were served, `spread` its fairness over newcomers,
    `majority` that of predicting each one's most frequent class. `note` says why the zero-shot model is at chance."""

    label: str
    seeds: int
    served: dict[str, list[float]]
    spread: dict[str, Fairness]
    majority: float | None
    note: str | None
    diverged: list[int]


def newcomer_rows(groups: Sequence[Group]) -> list[NewcomerRow]:
    """Return a row for each group whose runs tested clients that never trained, a run in several protocols once."""
    main = (group for group in groups if not group.is_further)
    return [_newcomer_row(group) for group in main if all(map(_has_newcomers, group.results))]


def _has_newcomers(run: RunData) -> bool:
    held_out = run.config.get("scenario", {}).get("held_out") or {}
    return bool(run.numbers.get("newcomers", {}).get("tests")) and "domain" not in held_out


def _newcomer_row(group: Group) -> NewcomerRow:
    by_run = [run.numbers["newcomers"] for run in group.results]
    ways = sorted(set.intersection(*(set(newcomers["tests"]) for newcomers in by_run)), key=_order)
    by_client = [_by_client(run) for run in group.results]
    spreads = {way: [fairness(list(of.get(way, {}).values())) for of in by_client] for way in ways}
    measured = {way: [spread for spread in of_way if spread is not None] for way, of_way in spreads.items()}
    majorities = [newcomers["majority_own"] for newcomers in by_run if newcomers.get("majority_own") is not None]
    return NewcomerRow(
        group.row["label"],
        len(by_run),
        {way: [newcomers["tests"][way]["accuracy"] for newcomers in by_run] for way in ways},
        {way: mean_fairness(of_way) for way, of_way in measured.items() if of_way},
        fmean(majorities) if len(majorities) == len(by_run) else None,
        by_run[0].get("zero_shot_note"),
        group.row["diverged"],
    )


def _by_client(run: RunData) -> dict[str, dict[int, float]]:
    by_way: dict[str, dict[int, float]] = {}
    for row in run.rows:
        if row["split"] == NEWCOMERS and row["name"] == "accuracy" and row["client"] is not None:
            by_way.setdefault(str(row["protocol"]), {})[row["client"]] = row["value"]
    return by_way


def _order(way: str) -> tuple[float, int, str]:
    """Sort key of a test: zero-shot first, then by shots with `all` last, then by the tuned part of the model."""
    if way == _ZERO_SHOT:
        return -1.0, 0, way
    shots, _, rest = way.partition("-shot/")
    tuned = rest.partition("/")[0]
    known = _TUNES.index(tuned) if tuned in _TUNES else len(_TUNES)
    return float(shots) if shots.isdigit() else float("inf"), known, rest


def newcomer_table(groups: Sequence[Group]) -> DataTable:
    """Return the accuracy on clients that never trained; without rows if no run held clients out."""
    rows = newcomer_rows(groups)
    columns: list[Field[NewcomerRow]] = [
        Field("method", lambda row: label_with_notes(row.label, row.note and f"zero-shot: {row.note}", row.diverged)),
        *map(_served, sorted({way for row in rows for way in row.served}, key=_order)),
    ]
    if any(row.majority is not None for row in rows):
        columns.append(Field.of("own majority %", lambda row: row.majority, percent))
    columns.append(Field("n", lambda row: str(row.seeds), lambda row: row.seeds))
    records = [record for row in rows for record in _records(row)]
    title = "Accuracy on clients that never trained"
    return DataTable.of("newcomers", NEWCOMERS_CAPTION, columns, rows, records=records, title=title)


def _served(way: str) -> Field[NewcomerRow]:
    return Field(
        f"{way} %",
        lambda row: plus_minus(*mean_std(row.served[way])) if way in row.served else "–",
        lambda row: fmean(row.served[way]) if way in row.served else None,
    )


def _records(row: NewcomerRow) -> list[dict[str, Any]]:
    records = []
    for way, accuracies in row.served.items():
        mean, std = mean_std(accuracies)
        record: dict[str, Any] = {"label": row.label, "served": way, "accuracy": mean, "std_over_seeds": std}
        record |= {"seeds": row.seeds} | (asdict(row.spread[way]) if way in row.spread else {})
        records.append(record | {"majority_own": row.majority} | diverged_field(row.diverged))
    return records
