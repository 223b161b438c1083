"""The cells of a table that are done, beside the printed values: one line a printed value, and one an order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedloom.papers.recipe import Recipe
from fedloom.papers.values import Printed
from fedloom.papers.verdicts import Order, Verdict, judged, order, order_judged
from fedloom.study.costs import epoch_ms
from fedloom.study.results import Result, best_val
from fedloom.study.targets import reached
from fedloom.study.text import listed

_ACCURACY = ("acc_pct", "test_accuracy_pct", "mean_acc_pct")
_VARIANT = re.compile(r" \[(authors|sound)\]$")
Done = Mapping[tuple[str, str], Sequence[Result]]  # by setting and row


@dataclass(frozen=True, slots=True)
class Line:
    """One value: ours by seed, and theirs. `row`: as in the study; `method`: as printed."""

    column: str
    row: str
    method: str
    metric: str
    domain: str | None
    seeds: list[int]
    ours: list[float]
    theirs: float | None
    theirs_std: float | None
    seconds: float | None  # of a run, on average
    verdict: Verdict

    def plain(self) -> dict[str, Any]:
        """As CSV has it; `read` is the way back."""
        told = {key: value for key, value in asdict(self).items() if key not in ("verdict", "seeds", "ours")}
        seeds = {"seeds": " ".join(map(str, self.seeds)), "ours": " ".join(f"{one:.6g}" for one in self.ours)}
        return told | seeds | {"verdict": self.verdict.word, "why": self.verdict.why}

    @staticmethod
    def read(row: Mapping[str, str]) -> Line:
        """A line from a row of CSV."""
        return Line(
            row["column"],
            row["row"],
            row["method"],
            row["metric"],
            row["domain"] or None,
            [int(seed) for seed in row["seeds"].split()],
            [float(one) for one in row["ours"].split()],
            _number(row["theirs"]),
            _number(row["theirs_std"]),
            _number(row["seconds"]),
            Verdict(row["verdict"], row["why"]),  # type: ignore[arg-type]
        )


@dataclass(frozen=True, slots=True)
class OrderLine:
    """The order of the methods in one column."""

    column: str
    metric: str
    domain: str | None
    found: Order | None
    verdict: Verdict


def lines(recipe: Recipe, done: Done, other: str | None = None) -> list[Line]:
    """Every printed value, and every variant of a method (`authors`, `sound`) against the same one.

    A value that was not run, or cannot be compared, is there with the reason. other: in what the cells are not the
    paper's setting (a smaller scale, changed keys), which makes every value incomparable; None where they are.
    """
    made = []
    for value in recipe.values:
        column = recipe.column(value.column)
        for row in _rows(recipe, value.method):
            made.append(_line(recipe, value, column, row, done, other))
    return made


def orders(found: Sequence[Line]) -> list[OrderLine]:
    """How far the order of the methods is the printed one, by column and measure. Variants do not count."""
    groups: dict[tuple[str, str, str | None], list[Line]] = {}
    for line in found:
        if line.row == line.method or not _VARIANT.search(line.row):
            groups.setdefault((line.column, line.metric, line.domain), []).append(line)
    made = []
    for (column, metric, domain), members in groups.items():
        both = [(fmean(line.ours), line.theirs) for line in members if line.ours and line.theirs is not None]
        agree = order([ours for ours, _ in both], [theirs for _, theirs in both])
        reason = None if both else "not run"
        made.append(OrderLine(column, metric, domain, agree, order_judged(agree, reason)))
    return made


def notes(found: Sequence[Line]) -> list[str]:
    """What limits the comparison: single seeds, and numbers of seeds that differ between methods."""
    run = [line for line in found if line.ours]
    made = []
    single = list(dict.fromkeys(line.row for line in run if len(line.seeds) == 1))
    if single:
        made.append(f"One seed only, so without an interval: {listed(single)}.")
    for column in dict.fromkeys(line.column for line in run):
        counts = {line.row: tuple(line.seeds) for line in run if line.column == column}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{row} {len(seeds)}" for row, seeds in counts.items())
            made.append(f"{column}: methods were run with different seeds ({told}).")
    missing = list(dict.fromkeys(f"{line.row} in {line.column}" for line in found if line.verdict.why == "not run"))
    if missing and run:
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        made.append(f"Not run yet: {', '.join(missing[:8])}{more}.")
    return made


def _number(text: str) -> float | None:
    return float(text) if text else None


def _rows(recipe: Recipe, method: str) -> Iterator[str]:
    yield method
    yield from (row for row in recipe.rows if _VARIANT.search(row) and _VARIANT.sub("", row) == method)


def _line(recipe: Recipe, value: Printed, column: str | None, row: str, done: Done, other: str | None) -> Line:
    name, predictor = recipe.table.beside.get(row, (row, ""))
    results = done.get((column or "", name), [])
    measured = [(run.numbers["seed"], _measure(recipe, value, run, predictor, done)) for run in results]
    known = [(seed, ours) for seed, ours in sorted(measured) if ours is not None]
    ours = [one for _, one in known]
    reason = _reason(recipe, value, column, name, row, other)
    if reason is None and results and not known:
        reason = f"no run gives {value.metric}{f' of {value.domain}' if value.domain else ''}"
    verdict = judged(ours, value.value, near=None if value.metric.startswith("rounds_to") else 1.0, reason=reason)
    spent = [float(run.numbers["seconds"]["total"]) for run in results]
    return Line(
        column or value.column,
        row,
        value.method,
        value.metric,
        value.domain,
        [seed for seed, _ in known],
        ours,
        value.value,
        value.std,
        fmean(spent) if spent else None,
        verdict,
    )


def _reason(recipe: Recipe, value: Printed, column: str | None, name: str, row: str, other: str | None) -> str | None:
    """Why a printed value cannot be compared with ours, whatever ours is."""
    if column is None:
        return "a mean over other columns"
    if name in recipe.table.columns[column].get("without", []):
        return "left out here; see what the recipe leaves open"
    if value.metric == "ms_per_epoch":
        return "times of another machine: only their order is compared"
    if other is not None:
        return f"{other}: only the order is compared"
    return "released code, not the printed method" if row.endswith("[authors]") else None


def _measure(recipe: Recipe, value: Printed, run: Result, predictor: str, done: Done) -> float | None:
    """Our value of a printed one, in its unit; None where the run does not have it."""
    metric = value.metric
    if metric.startswith("rounds_to_"):
        first = reached(run, float(metric.removeprefix("rounds_to_")) / 100)
        return None if first is None else float(first.round)
    if metric == "ms_per_epoch":
        return epoch_ms(run)
    if metric == "gain_over_fedavg_points":
        base = done.get((recipe.column(value.column) or "", recipe.table.baseline or ""), [])
        same = [other.numbers["accuracy"] for other in base if other.numbers["seed"] == run.numbers["seed"]]
        return 100 * (run.numbers["accuracy"] - same[0]) if same else None
    if metric not in _ACCURACY:
        return None
    name = f"accuracy/{predictor}" if predictor else "accuracy"
    if value.domain not in (None, "Avg"):
        return _of_domain(recipe, value.domain, run, name)
    if not predictor:
        return 100 * float(run.numbers["accuracy"])
    _, found = run.curve(name)
    return 100 * found[-1] if found else None


def _of_domain(recipe: Recipe, domain: str, run: Result, name: str) -> float | None:
    """Accuracy of the client that holds a domain, in the round that the run's rule selects. name: the measure."""
    if domain not in recipe.table.domains:
        return None
    best = best_val(run.rows) if run.numbers["select"] == "best_val" else None
    rounds, _ = run.curve()
    at, client = best[0] if best else rounds[-1], recipe.table.domains.index(domain)
    own = [
        r["value"] for r in run.rows if (r["client"], r["split"], r["name"], r["round"]) == (client, "test", name, at)
    ]
    return 100 * own[0] if own else None
