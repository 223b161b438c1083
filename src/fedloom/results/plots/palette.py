"""Names, colours and plain values of figures: the same in figures and reports. Needs no matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args


def shortened(name: str, letters: float) -> str:
    """Return as much of a name as fits into so many letters, at least two.

    >>> shortened("fedprox (mu=0.01)", 10)
    'fedprox (…'
    """
    room = max(int(letters), 2)
    return name if len(name) <= room else f"{name[: room - 1]}…"


def shortened_names(names: Sequence[str], letters: float) -> list[str]:
    """Shorten names to so many letters without making two different ones equal.

    They lose their ends, or their middles if two would become equal, as names often differ only at the end. If both
    fail, they get twice the letters; if that fails too, they become numbers.

    >>> shortened_names(["fedprox (mu=0.1)", "fedprox (mu=1.0)", "fedavg"], 10)
    ['fedpr…0.1)', 'fedpr…1.0)', 'fedavg']
    """
    room = max(int(letters), 3)
    numbers = {name: f"… {k}" for k, name in enumerate(dict.fromkeys(names), start=1)}
    # In this order of preference; the first way that keeps all names different wins.
    ways = [
        [shortened(name, room) for name in names],
        *([_without_middle(name, wider) for name in names] for wider in range(room, 2 * room + 1)),
    ]
    numbered = [f"{name[: max(room - len(numbers[name]), 1)]}{numbers[name]}" for name in names]
    return next((cut for cut in ways if len(set(cut)) == len(set(names))), numbered)


def _without_middle(name: str, letters: int) -> str:
    end = len(name) - (letters - 1 - letters // 2)
    return name if len(name) <= letters else f"{name[: letters // 2]}…{name[end:]}"


TONES = 8  # colours for groups: c0 (the baseline's grey) to c7
_DASHES: tuple[Any, ...] = ("solid", (0, (5, 2.5)), (0, (1.5, 2)))  # when colours come a second and third time


def tone_name(tone: int) -> str:
    """Return the name of the colour of a tone; the baseline's comes only once, the others repeat."""
    return f"c{tone if tone < TONES else 1 + (tone - 1) % (TONES - 1)}"


def dash(tone: int) -> Any:
    """Return the line style of a tone: solid until the colours come a second time."""
    return _DASHES[dash_number(tone)]


def dash_number(tone: int) -> int:
    """Return which dash a tone has: 0 for solid, 1 and 2 when the colours come a second and a third time."""
    return max(tone - 1, 0) // (TONES - 1) % len(_DASHES)


def tones_of(methods: Sequence[str], baseline: str | None) -> dict[str, int]:
    """Return the tone of each method: 0 for the baseline, 1, 2, ... for the others in order of appearance."""
    others = [method for method in dict.fromkeys(methods) if method != baseline]
    tones = {method: number for number, method in enumerate(others, start=1)}
    return tones if baseline is None else {baseline: 0, **tones}


PlotKind = Literal["curves", "times", "dots"]
Over = Literal["round", "virtual seconds"]  # the x axis of curves
PLOT_KINDS: tuple[str, ...] = get_args(PlotKind)
COLUMN, PAGE = 3.3, 6.9  # inches: the text widths of a paper's column and of its page


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure of one method by round: mean over seeds, sample deviation (None for one seed), and each seed."""

    method: str
    tone: int
    rounds: Sequence[float]
    mean: Sequence[float]
    std: Sequence[float] | None
    seeds: Sequence[Sequence[float]] = ()
    faint: bool = False  # drawn thin and grey, because there are too many


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of one method over seeds, with its bounds: None where there are too few seeds for them."""

    method: str
    tone: int
    mean: float
    bounds: tuple[float, float] | None
    text: str = ""  # in words, where the drawing has room for them
    hollow: bool = False  # whether the dot is not filled

    @property
    def ends(self) -> tuple[float, ...]:
        """The mean and its bounds, which an axis has to reach."""
        return (self.mean, *(self.bounds or ()))


Series: TypeAlias = Curve | Estimate


@dataclass(frozen=True, slots=True)
class PlotPanel:
    """One setting of a figure, with its methods; `title` is empty for the only one."""

    title: str
    series: list[Series]


@dataclass(frozen=True, slots=True)
class PlotData:
    """A figure as plain values: its `methods` in their order, the measure with its unit, a `note` that says what bands,
    lines and bars are, and the values by which the measure is `bounded`."""

    kind: PlotKind
    panels: list[PlotPanel]
    methods: list[str]
    quantity: str
    note: str
    bounded: tuple[float, float] | None = None
    over: Over = "round"

    @property
    def drawn(self) -> list[str]:
        """Return the methods that some panel shows, in their order."""
        shown = {series.method for panel in self.panels for series in panel.series}
        return [method for method in self.methods if method in shown]
