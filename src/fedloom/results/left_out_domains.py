"""The table of domains that were left out in turn: accuracy on each, and their mean. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedloom.core.text import percent, plus_minus
from fedloom.results.formats import as_csv, diverged_field, label_with_notes, text_table
from fedloom.results.group import Group
from fedloom.results.statistics import mean_std
from fedloom.runs.storage.run_data import RunData

_KEY = "scenario.held_out.domain"
_ZERO_SHOT = "zero-shot"
LEFT_OUT_CAPTION = (
    "Accuracy after the last round on all test data of a domain that took no part in the training (zero-shot), by "
    "domain, and the unweighted mean over domains, ± sample std over n seeds."
)


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """One method in one setting.

    domains: by domain, the mean accuracy over seeds of the model that trained without it, on all its test data; shares
    in [0, 1]. mean, std: unweighted mean over the domains, and its sample standard deviation over the seeds that ran
    all of them; None without such seeds, or where another row has a domain more; std also with one seed. note: why the
    tested model is at chance. diverged: seeds of runs that diverged, whose accuracies mean nothing.
    """

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
    return [_row(by_domain, all_domains) for by_domain in by_row.values()]


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


def _row(by_domain: dict[str, Group], all_domains: Collection[str]) -> LeftOutRow:
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
    mean, std = mean_std(means) if means and by_domain.keys() == all_domains else (None, None)
    domains = {domain: fmean(by_seed.values()) for domain, by_seed in accuracies.items()}
    note = first.results[0].numbers["newcomers"].get("zero_shot_note")
    diverged = sorted({seed for group in by_domain.values() for seed in group.row["diverged"]})
    return LeftOutRow("/".join(filter(None, (setting, name))), domains, mean, std, len(seeds), note, diverged)


def formatted_left_out(groups: Sequence[Group], format: str) -> str:
    """Return accuracy on each left-out domain, and the mean, as text; empty if no run left one out.

    Args:
        groups: groups of runs, of which those that left a domain out count.
        format: "markdown", "latex", "html" or "csv".
    """
    rows = left_out_rows(groups)
    if format == "csv":
        return as_csv([left_out_numbers(row) for row in rows])
    if not rows:
        return ""
    names, texts = left_out_columns(rows)
    return text_table(texts, names, (False, *(True,) * (len(names) - 1)), format)


def left_out_numbers(row: LeftOutRow) -> dict[str, Any]:
    """Return a row as plain numbers."""
    numbers = {"label": row.label, **row.domains, "mean": row.mean, "std": row.std, "seeds": row.seeds}
    return numbers | diverged_field(row.diverged)


def left_out_columns(rows: Sequence[LeftOutRow]) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the texts of the rows, for people: percent."""
    domains = list(dict.fromkeys(domain for row in rows for domain in row.domains))
    texts = []
    for row in rows:
        label = label_with_notes(row.label, row.note, row.diverged)
        cells = [percent(row.domains[domain]) if domain in row.domains else "–" for domain in domains]
        mean = "–" if row.mean is None else plus_minus(row.mean, row.std)
        texts.append([label, *cells, mean, str(row.seeds)])
    return ["method", *(f"without {domain} %" for domain in domains), "mean %", "n"], texts
