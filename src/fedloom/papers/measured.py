"""What cells gave, one line for each printed value and seed: written as CSV, read again, joined with earlier ones."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedloom.papers.recipe import Recipe
from fedloom.papers.values import Printed
from fedloom.study.costs import epoch_ms
from fedloom.study.environment import in_words, version_in
from fedloom.study.folder import RunFolder
from fedloom.study.formats import as_csv
from fedloom.study.results import Result, at_selected, best_val
from fedloom.study.targets import reached
from fedloom.study.versions import refuse_mixed

ACCURACY = ("acc_pct", "test_accuracy_pct", "mean_acc_pct")
GAIN = "gain_over_fedavg_points"
VARIANT = re.compile(r" \[(authors|sound)\]$")
_SOURCE = re.compile(r"\bscenario(\.source=|=\{source: )")
Done = Mapping[tuple[str, str], Sequence[Result]]  # by setting and row


@dataclass(frozen=True, slots=True)
class Measured:
    """One printed value as one run gives it. `row`: as in the study. `ours`: in the unit of `metric`; None where the
    run does not have it. `seconds`: of one core, training and tests, None of a run that took several; `estimated`: what
    was foreseen. `changed`: what is not as in the recipe, in words; `comparable`: it is within what the paper itself
    ran."""

    column: str
    row: str
    metric: str
    domain: str | None
    seed: int
    ours: float | None
    seconds: float | None
    estimated: float | None
    machine: str
    changed: str
    comparable: bool

    @property
    def key(self) -> tuple[str, str, str, str | None, int]:
        """What there is one of."""
        return self.column, self.row, self.metric, self.domain, self.seed

    @property
    def stand_in(self) -> bool:
        """Whether other data stand in for the paper's."""
        return _SOURCE.search(self.changed) is not None


def measured(
    recipe: Recipe, done: Done, estimates: Mapping[str, float], changed: str = "", comparable: bool = True
) -> list[Measured]:
    """What the finished cells give for printed values. estimates: seconds by "column/row"; the rest: see `Measured`."""
    made = []
    for value, column, row in pairs(recipe):
        if column is None:
            continue
        name, predictor = recipe.table.beside.get(row, (row, ""))
        for run in done.get((column, name), []):
            ours = _measure(recipe, value, run, predictor, done)
            made.append(
                Measured(
                    column,
                    row,
                    value.metric,
                    value.domain,
                    run.numbers["seed"],
                    None if ours is None else float(f"{ours:.6g}"),
                    _spent(run),
                    _rounded(estimates.get(f"{column}/{name}")),
                    _machine(run),
                    changed,
                    comparable,
                )
            )
    return made


def pairs(recipe: Recipe) -> Iterator[tuple[Printed, str | None, str]]:
    """Every printed value with its column of the study, if it has one, and the rows that stand for it: the method's
    own, and its variants (`authors`, `sound`)."""
    for value in recipe.values:
        column = recipe.column(value.column)
        yield value, column, value.method
        for row in recipe.rows:
            if VARIANT.search(row) and VARIANT.sub("", row) == value.method:
                yield value, column, row


def measured_csv(found: Sequence[Measured]) -> str:
    """As tidy CSV; `read_measured` is the way back."""
    return as_csv([asdict(one) for one in found]) + "\n" if found else ",".join(_names()) + "\n"


def read_measured(path: Path) -> list[Measured]:
    """Raises `OSError` for a file that cannot be read, `ValueError` for one of another form."""
    reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))
    if reader.fieldnames is None or list(reader.fieldnames) != _names():
        raise ValueError(f"{path}: columns {reader.fieldnames}; need {', '.join(_names())}")
    return [
        Measured(
            row["column"],
            row["row"],
            row["metric"],
            row["domain"] or None,
            int(row["seed"]),
            _number(row["ours"]),
            _number(row["seconds"]),
            _number(row["estimated"]),
            row["machine"],
            row["changed"],
            row["comparable"] == "True",
        )
        for row in reader
    ]


def joined(earlier: Sequence[Measured], later: Sequence[Measured], allow_mixed: bool = False) -> list[Measured]:
    """Both together; what was measured again counts as measured last. Raises `ValueError` for different settings, and
    `ConfigError` for values of different versions of fedloom unless `allow_mixed`."""
    settings = {one.changed for one in (*earlier, *later)}
    if len(settings) > 1:
        told = " and ".join(one or "the paper's own" for one in sorted(settings))
        raise ValueError(f"values of different settings: {told}; keep them in files of their own")
    known = {one.key for one in earlier if one.ours is not None}
    new = [one for one in later if one.ours is not None or one.key not in known]  # as a gain without its baseline
    both = list(({one.key: one for one in earlier} | {one.key: one for one in new}).values())
    if not allow_mixed:
        refuse_mixed({f"{one.column}/{one.row}/seed{one.seed}": version_in(one.machine) for one in both})
    return both


def _names() -> list[str]:
    return [field.name for field in fields(Measured)]


def _number(text: str) -> float | None:
    return float(text) if text else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _spent(run: Result) -> float | None:
    """Seconds of one core; of other engines than the serial one the clock alone is known."""
    if not run.numbers["engine"].startswith("serial"):
        return None
    return round(float(run.numbers["seconds"]["train"] + run.numbers["seconds"]["evaluate"]), 1)


def _machine(run: Result) -> str:
    """Processor and versions, in words."""
    told: dict[str, Any] | None = None if run.folder is None else RunFolder(run.folder).read_json("env.json")
    return "not known" if told is None else in_words(told)


def _measure(recipe: Recipe, value: Printed, run: Result, predictor: str, done: Done) -> float | None:
    """Our value of a printed one, in its unit; None where the run does not have it."""
    metric = value.metric
    if metric.startswith("rounds_to_"):
        first = reached(run, float(metric.removeprefix("rounds_to_")) / 100)
        return None if first is None else float(first.round)
    if metric == "ms_per_epoch":
        return epoch_ms(run)
    if metric == GAIN:
        base = done.get((recipe.column(value.column) or "", recipe.table.baseline or ""), [])
        same = [other.numbers["accuracy"] for other in base if other.numbers["seed"] == run.numbers["seed"]]
        return 100 * (run.numbers["accuracy"] - same[0]) if same else None
    if metric not in ACCURACY:
        return None
    if value.domain not in (None, "Avg"):
        domains = [name.casefold() for name in run.scenario["domains"]]
        name = f"accuracy/{predictor}" if predictor else "accuracy"
        own = value.domain.casefold()
        return of_client(domains.index(own), run, name) if own in domains else None  # another source has others
    return accuracy(recipe, run, predictor)


def accuracy(recipe: Recipe, run: Result, predictor: str = "") -> float | None:
    """The test accuracy of a run as its table counts it, in percent, in the round that the run's rule selects; of
    another `predictor` where one is named. None where it was not measured."""
    name = f"accuracy/{predictor}" if predictor else "accuracy_pooled" if recipe.table.pooled else "accuracy"
    if name == "accuracy":
        return 100 * float(run.numbers["accuracy"])
    last_k = run.config.get("evaluation", {}).get("last_k", 1)
    found = at_selected(run.rows, name, run.numbers["select"], last_k)
    return None if found is None else 100 * found


def of_client(client: int, run: Result, name: str = "accuracy") -> float | None:
    """Test accuracy of one client in percent, in the round of best validation accuracy if the run goes by it, else in
    the last one; None where it has none.

    name: the measure, where it is of another predictor, e.g. "accuracy/online".
    """
    best = best_val(run.rows) if run.numbers["select"] == "best_val" else None
    at = best[0] if best else run.curve()[0][-1]
    own = [
        r["value"] for r in run.rows if (r["client"], r["split"], r["name"], r["round"]) == (client, "test", name, at)
    ]
    return 100 * own[0] if own else None
