"""The report of one finished round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedloom.methods.contract.contexts import Diagnostic


@dataclass(slots=True)
class Seconds:
    """Wall-clock seconds of a round: clients' work, aggregation, and everything between server and clients."""

    train: float = 0.0
    aggregate: float = 0.0
    move: float = 0.0

    def plus(self, seconds: Seconds) -> Seconds:
        """Return the sum of both, phase by phase."""
        return Seconds(self.train + seconds.train, self.aggregate + seconds.aggregate, self.move + seconds.move)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One finished round. An opening round is part of the report of the first round, a closing round of the last one.

    Attributes:
        bytes_up, bytes_down: serialised uploads and payloads.
        terms: mean of each loss term over the clients, weighted by samples.
        steps, samples: gradient steps and samples that all clients processed.
        samples_by_group: training samples of the participating clients, by architecture group.
        diagnostics: what method, engine and loop report.
        closing_samples_by_group: the same as `samples_by_group` for the closing round, which all clients join; its
            bytes, steps and samples are included above.
        opening_samples_by_group: the same for the opening round.
        figures: numbers that the method reports (`Method.figures`).
    """

    round: int
    participants: tuple[int, ...]
    bytes_up: int
    bytes_down: int
    terms: Mapping[str, float]
    steps: int
    samples: int
    samples_by_group: Mapping[int, int]
    seconds: Seconds
    diagnostics: list[Diagnostic] = field(default_factory=list)
    closing_samples_by_group: Mapping[int, int] = field(default_factory=dict)
    opening_samples_by_group: Mapping[int, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    def with_closing(self, closing: RoundReport) -> RoundReport:
        """Return this report with that of the closing round added."""
        return replace(self._with(closing), closing_samples_by_group=closing.samples_by_group)

    def with_opening(self, opening: RoundReport) -> RoundReport:
        """Return this report with that of the opening round added."""
        return replace(self._with(opening), opening_samples_by_group=opening.samples_by_group)

    def _with(self, other: RoundReport) -> RoundReport:
        """This report with the costs and diagnostics of a round that has no report of its own."""
        return replace(
            self,
            bytes_up=self.bytes_up + other.bytes_up,
            bytes_down=self.bytes_down + other.bytes_down,
            steps=self.steps + other.steps,
            samples=self.samples + other.samples,
            seconds=self.seconds.plus(other.seconds),
            diagnostics=[*self.diagnostics, *other.diagnostics],
        )
