"""Plain values that figures are drawn from. Nothing in here needs matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from fedloom.core.errors import ConfigError, short_repr, suggest_name

PlotKind = Literal["curves", "dots", "bars", "critical-difference"]
PLOT_KINDS: tuple[str, ...] = get_args(PlotKind)
COLUMN, PAGE = 3.3, 6.9  # inches: the text widths of a paper's column and of its page


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure of one method by round: the mean over seeds, and its sample standard deviation; None for one seed."""

    method: str
    rounds: list[int]
    mean: list[float]
    std: list[float] | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of one method over seeds, with its bounds: None where there are too few seeds for them."""

    method: str
    mean: float
    bounds: tuple[float, float] | None
    text: str  # the value in words, as tables have it
    hollow: bool = False  # whether the dot is not filled


@dataclass(frozen=True, slots=True)
class Ranking:
    """Mean ranks of methods, best first, with Nemenyi's critical difference, and the ranks between which bars reach."""

    ranks: dict[str, float]
    critical: float
    bars: list[tuple[float, float]]


Series: TypeAlias = Curve | Estimate | Ranking


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One setting of a figure, with its methods; `title` is empty for the only one."""

    title: str
    series: list[Series]


@dataclass(frozen=True, slots=True)
class PlotData:
    """A figure as plain values.

    methods: all methods of the runs in their order, which gives each its colour. quantity: the measure with its unit.
    note: a sentence that says what bands, lines and bars are.
    """

    kind: PlotKind
    panels: list[PlotPanel]
    methods: list[str]
    baseline: str | None
    quantity: str
    note: str
    bounded: tuple[float, float] | None = None  # the values that the measure can have
    line_at: float | None = None  # where a line crosses the rows: at no difference

    @property
    def drawn(self) -> list[str]:
        """Return the methods that some panel shows, in their order."""
        shown = {series.method for panel in self.panels for series in panel.series if not isinstance(series, Ranking)}
        return [method for method in self.methods if method in shown]


def check_kind(kind: str) -> None:
    """Raise `ConfigError` for a kind of figure that does not exist."""
    if kind not in PLOT_KINDS:
        hint = suggest_name(kind, PLOT_KINDS)
        raise ConfigError(f"kind = {short_repr(kind)}: {hint}; figures are {', '.join(PLOT_KINDS)}")
