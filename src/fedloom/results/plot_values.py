"""Values of figures from groups of runs: which method and setting they are of, and their notes. Needs no matplotlib."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from statistics import fmean

from fedloom.core.errors import ConfigError, check_choice, short_repr
from fedloom.core.text import BASELINE, is_share, listed, seed_counts_text
from fedloom.results import group as grouping
from fedloom.results.comparability import panel_titles, row_names, same_runs, same_runs_notes
from fedloom.results.difference import LEVEL, MIN_SEEDS, t_interval
from fedloom.results.pairs import POOLED, differences_against, family_note
from fedloom.results.plots import palette
from fedloom.results.table import grouped
from fedloom.runs.storage.log import curve
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A group of runs as charts show it. method: its name within its setting. panel: the words that tell apart settings
    and protocols. tone: number of the method's colour and dash, the same in every setting."""

    group: grouping.Group
    method: str
    panel: str
    tone: int

    @property
    def row(self) -> grouping.ResultRow:
        """The numbers of the group."""
        return self.group.row

    @property
    def words(self) -> str:
        """The method and its setting."""
        return f"{self.method} {self.panel}".rstrip()

    def curve(self, measure: str, scale: float = 1.0, over: palette.Over = "round") -> palette.Curve | None:
        """Return a measure of the tests by round, times `scale`, or over virtual time, the mean of the seeds; None
        without a round with a finite value of each seed, or without virtual time."""
        by_run = [dict(zip(*curve(result.rows, measure, "test"), strict=True)) for result in self.group.results]
        # A mean over fewer seeds in some rounds would jump where a run ends early.
        common = set.intersection(*map(set, by_run))
        rounds = sorted(r for r in common if all(isfinite(values[r]) for values in by_run))
        if not rounds:
            return None
        seeds = [[values[r] for r in rounds] for values in by_run]
        means, stds = zip(*map(grouping.mean_std, zip(*seeds, strict=True)), strict=True)
        known = [std for std in stds if std is not None]
        scaled = [[scale * value for value in values] for values in (means, known, *seeds)]
        at: Sequence[float] = rounds
        if over != "round":
            curves = [curve(result.rows, "virtual_seconds", "system") for result in self.group.results]
            passed = [dict(zip(logged, accumulate(seconds), strict=True)) for logged, seconds in curves]
            if not all(passed):
                return None
            at = [fmean(seconds[r] for seconds in passed) for r in rounds]
        return palette.Curve(self.method, self.tone, at, scaled[0], scaled[1] or None, scaled[2:])


def chart_rows(groups: Sequence[grouping.Group]) -> list[ChartRow]:
    """Name all rows, and give each method its colour."""
    rows = [group.row for group in groups]
    names = row_names(rows)
    titles = panel_titles(rows, names)
    baseline = next((name.method for name, row in zip(names, rows, strict=True) if row["method"] == BASELINE), None)
    tones = palette.tones_of([name.method for name in names], baseline)
    return [
        ChartRow(group, name.method, title, tones[name.method])
        for group, name, title in zip(groups, names, titles, strict=True)
    ]


def plot_values(
    results: Sequence[RunData], kind: str, metric: str = "accuracy", against: str | None = None
) -> palette.PlotData:
    """Return the values of a figure. Runs that differ in the seed only are one method in one setting.
    The `kind` is one of `PLOT_KINDS`. With `against`, dots are differences of the `metric` from that method, seed by
    seed. Raises `ConfigError` for an unknown name, and if there is nothing to draw."""
    check_choice("kind", kind, palette.PLOT_KINDS)
    if against is not None and kind != "dots":
        raise ConfigError(f"against = {short_repr(against)}: differences are drawn as dots, not as {kind}")
    if not results:
        raise ConfigError("a figure needs at least one finished run, got none")
    rows = chart_rows(grouped(results))
    match kind:
        case "curves" | "times":
            return _curves(rows, metric, "round" if kind == "curves" else "virtual seconds")
        case "dots" if against is not None:
            return _differences(rows, metric, against)
        case _:
            return _estimates(rows, metric)


def _curves(rows: Sequence[ChartRow], metric: str, over: palette.Over) -> palette.PlotData:
    grouping.check_measure(metric, _measures_by_round(rows))
    scale = 100.0 if is_share(metric) else 1.0
    panels: dict[str, list[palette.Series]] = {row.panel: [] for row in rows}
    missing, shortened = [], []
    for row in rows:
        drawn = row.curve(metric, scale, over)
        if drawn is None:
            missing.append(row.words)
            continue
        panels[row.panel].append(drawn)
        if any(len(curve(run.rows, metric, "test")[0]) > len(drawn.rounds) for run in row.group.results):
            shortened.append(row.words)
    seeds = seed_counts_text(row.row["n"] for row in rows)
    band = "" if seeds == "1 seed" else "; band: ± 1 sample standard deviation"
    note = f"Line: mean over {seeds}{band}."
    why = "no round has a finite value of every seed" if over == "round" else "they lack virtual time or finite values"
    note += _about(f"Left out, because {why}", missing)
    note += _about("Only the rounds in which every seed has a finite value", shortened)
    note += _about("Ended early", [row.words for row in rows if row.row["stopped"] and row.words not in missing])
    diverged = [row.words for row in rows if row.row["diverged"] and row.words not in missing]
    return replace(_plot("curves", rows, panels, metric, note + _about("A run diverged", diverged)), over=over)


def _about(remark: str, rows: Sequence[str]) -> str:
    return f" {remark}: {listed(rows)}." if rows else ""


def _measures_by_round(rows: Sequence[ChartRow]) -> list[str]:
    names = ["accuracy"]
    for row in rows:
        for run in row.group.results:
            tested = (r["name"] for r in run.rows if r["split"] == "test" and r["client"] is None)
            names += dict.fromkeys(name for name in tested if name not in names)
    return names


def _estimates(rows: Sequence[ChartRow], metric: str) -> palette.PlotData:
    grouping.check_measure(metric, grouping.measures_of([row.group for row in rows]))
    scale = 100.0 if is_share(metric) else 1.0
    panels: dict[str, list[palette.Series]] = {row.panel: [] for row in rows}
    diverged, undefined = [], []
    for row in rows:
        values = grouping.values_by_seed(row.group, metric)
        if row.row["diverged"]:
            diverged.append(row.words)
        elif values is not None:
            scaled = [scale * value for value in values]
            mean, _ = grouping.mean_std(scaled)
            bounds = t_interval(scaled, LEVEL, scale * row.row["step"]) if len(scaled) >= MIN_SEEDS else None
            panels[row.panel].append(palette.Estimate(row.method, row.tone, mean, bounds, hollow=bounds is None))
        else:
            undefined.append(row.words)
    note = (
        f"Dot: mean over {seed_counts_text(row.row['n'] for row in rows)}; line: {100 * LEVEL:.0f} % t interval of the "
        f"mean, from {MIN_SEEDS} seeds on (hollow: fewer). Methods share seeds, so overlapping intervals decide "
        "nothing."
    )
    note += _about(_DIVERGED, diverged)
    note += _about("Left out, because the measure is not defined for every seed", undefined)
    return _plot("dots", rows, panels, metric, note)


def _differences(rows: Sequence[ChartRow], metric: str, against: str) -> palette.PlotData:
    groups = [row.group for row in rows]
    grouping.check_measure(metric, grouping.measures_of(groups))
    scale = 100.0 if is_share(metric) else 1.0
    values = [grouping.values_by_seed(group, metric) for group in groups]
    methods, titles = [row.method for row in rows], [row.panel for row in rows]
    panels: dict[str, list[palette.Series]] = {title: [] for title in titles}
    differences = differences_against(against, groups, methods, titles, values, metric)
    if not differences:
        raise ConfigError(f"against = {short_repr(against)}: there is no other row to compare with it")
    for index, outcome in differences.items():
        low, high = outcome.low, outcome.high
        bounds = None if low is None or high is None or outcome.n < MIN_SEEDS else (scale * low, scale * high)
        hollow = outcome.word not in ("ahead", "behind")
        mean = scale * outcome.mean
        panels[titles[index]].append(palette.Estimate(methods[index], rows[index].tone, mean, bounds, hollow=hollow))
    higher = grouping.higher_is_better(metric, groups)
    apart = "told apart" if higher is None else "ahead or behind"
    note = (
        f"Dot: mean difference from {against} over common seeds; line: its {100 * LEVEL:.0f} % t interval, alone. "
        f"Filled: {apart} (adjusted p at most .05); hollow: undecided, equivalent, or too few seeds. "
        f"{family_note([row.row for row in rows])}"
    )
    note += " Lower is better." if higher is False else ""
    note += _left_out(rows, differences, against)
    note += "".join(f" {sentence}." for sentence in same_runs_notes([row.row for row in rows]))
    plot = _plot("dots", rows, panels, metric, note)
    unit_words = " (points)" if scale == 100.0 else ""
    quantity = f"test {grouping.display_name(metric)} over {against}{unit_words}"
    # Differences may be negative: the range of the measure is not theirs.
    return replace(plot, quantity=quantity, bounded=None)


def _left_out(rows: Sequence[ChartRow], drawn: Collection[int], against: str) -> str:
    """Return sentences that say which rows the plot omits, and why; runs of `against` itself need none."""
    others = [row for index, row in enumerate(rows) if index not in drawn]
    diverged = [row.words for row in others if row.row["diverged"]]
    references = [row.row for row in rows if against in (row.method, row.row["method"])]
    others = [row for row in others if not row.row["diverged"]]
    others = [row for row in others if not any(same_runs(row.row, reference) for reference in references)]
    pooled = [row.words for row in others if row.row["method"] == POOLED]
    unpaired = [row.words for row in others if row.row["method"] != POOLED]
    return (
        _about(_DIVERGED, diverged)
        + _about("Left out, because it is trained on pooled data", pooled)
        + _about(f"Left out, because no seed of its setting has both its value and one of {against}", unpaired)
    )


_DIVERGED = "Left out, because a run diverged"


def _plot(
    kind: palette.PlotKind, rows: Sequence[ChartRow], panels: dict[str, list[palette.Series]], metric: str, note: str
) -> palette.PlotData:
    drawn = [palette.PlotPanel(title, series) for title, series in panels.items() if series]
    if not drawn:
        raise ConfigError(f"metric = {short_repr(metric)}: no method has a finite value of it in all its runs")
    methods = list(dict.fromkeys(row.method for row in rows))
    bounded = (0.0, 100.0) if is_share(metric) else None
    return palette.PlotData(kind, drawn, methods, grouping.words_of(metric), note, bounded)
