"""Judge what papers claim outside their tables, from the cells of the tables that were run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fedloom.papers.compared_values import ComparedValue
from fedloom.papers.measurements import ACCURACY
from fedloom.papers.recipe import Claim
from fedloom.papers.values import printed_values
from fedloom.papers.verdicts import NOT_RUN, Verdict, judge_value


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim, ours by seed in its unit, and the verdict."""

    claim: Claim
    ours: list[float]
    verdict: Verdict

    @property
    def texts(self) -> tuple[str, str, str, str, str]:
        """Return claim, printed value, ours, verdict and reason."""
        printed = f"{self.claim.printed:g} {self.claim.unit}" if self.claim.printed is not None else "–"
        if self.claim.values is not None:
            printed = f"{len(printed_values(self.claim.values))} values"
        ours = f"{fmean(self.ours):.2f}" if self.ours else "–"
        return self.claim.claim, printed, ours, self.verdict.word, self.verdict.why


def judge_claims(claims: Sequence[Claim], tables: Mapping[str, Sequence[ComparedValue]]) -> list[JudgedClaim]:
    """Judge claims by compared values.

    Args:
        claims: the claims of the papers.
        tables: by its name, the values of each table that was run.
    """
    judged = []
    for claim in claims:
        ours, reason = _ours(claim, tables.get(claim.table or "", []))
        judged.append(JudgedClaim(claim, ours, judge_value(ours, claim.printed, reason=claim.why or reason)))
    return judged


def _ours(claim: Claim, values: Sequence[ComparedValue]) -> tuple[list[float], str | None]:
    """Return our values by seed, and why they cannot be compared; None if they can."""
    by_name = {f"{value.column}/{value.row}": value for value in values if value.was_run and value.metric in ACCURACY}
    names = [name for name in (claim.row, claim.minus) if name is not None]
    cells = [by_name[name] for name in names if name in by_name]
    if not cells or len(cells) < len(names):
        missing = ", ".join(name for name in names if name not in by_name)
        return [], f"{NOT_RUN}: {missing} of `{claim.table}`" if claim.table and missing else NOT_RUN
    reasons = [value.verdict.why.partition(";")[0] for value in cells if value.verdict.word == "not comparable"]
    ours = cells[0].by_seed
    if len(cells) == 2:
        ours = {seed: ours[seed] - value for seed, value in cells[1].by_seed.items() if seed in ours}
    return list(ours.values()), reasons[0] if reasons else None
