"""Charts of cost, of single clients and of the data: groups in, HTML figures out."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from fedloom.core.text import bytes_text, listed, percent, seconds_text
from fedloom.results.group import selected_accuracies
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots.drawing import inline
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.curves import Bar, Dots, draw_bars, draw_dots
from fedloom.results.report.holdings import as_bubbles, draw_holdings, owners
from fedloom.results.report.line_charts import panels_of
from fedloom.results.report.markup import chart, chart_beside_facts, fold, grid, key

_PER_RUN = "One run, all clients and rounds; mean over seeds."
_OPEN_BARS = 16  # rows
_PHASES = ("train", "evaluate", "aggregate", "move", "checkpoint")


def cost_charts(rows: Sequence[ChartRow]) -> Markup:
    """Render bytes and seconds of every row as stacked bars; they fold if there are many."""
    traffic = [{"up": row.row["bytes_up"], "down": row.row["bytes_down"]} for row in rows]
    phases = [{phase: row.row["phases"][phase] for phase in _PHASES} for row in rows]
    sent = [" · ".join(f"{bytes_text(value)} {name}" for name, value in parts.items()) for parts in traffic]
    spent = [seconds_text(row.row["seconds"]) for row in rows]
    charts = grid(
        [
            _stacked("bytes", "Bytes on the wire", rows, traffic, sent, bytes_text),
            _stacked("seconds", "Time by phase", rows, phases, spent, seconds_text),
        ]
    )
    return charts if len(rows) <= _OPEN_BARS else fold(f"Bytes and seconds of {len(rows)} rows as bars", [charts])


def _stacked(
    name: str,
    title: str,
    rows: Sequence[ChartRow],
    parts: Sequence[Mapping[str, float]],
    totals: Sequence[str],
    text: Callable[[float], str],
) -> Markup:
    """Draw the parts of each row, which add up to its total."""
    labels = [row.row["label"] for row in rows]
    bars = [Bar(label, list(of.values()), total) for label, of, total in zip(labels, parts, totals, strict=True)]
    words = [
        f"{label}: {', '.join(f'{part} {text(value)}' for part, value in of.items())}"
        for label, of in zip(labels, parts, strict=True)
    ]
    svg = inline(partial(draw_bars, bars), name, title, f"{title} per run. {'; '.join(words)}.")
    return chart([svg], title, _PER_RUN, key((f"p{k}", part, -1) for k, part in enumerate(parts[0])))


def client_spread(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the accuracy of single clients where the protocol tests clients, a panel for each setting."""
    panels: dict[str, list[Dots]] = {}
    protocols: list[str] = []
    for row in rows:
        values = [value for result in row.group.results for value in selected_accuracies(result).values()]
        if values:
            dots = Dots(row.method, row.tone, values, majority_accuracy(row.group))
            panels.setdefault(row.panel, []).append(dots)
            protocols.append(row.row["protocol"])
    shown = listed(dict.fromkeys(protocols))
    caption = f"One dot per client and seed at the selected round, sorted, protocol {shown}. Line: median."
    if any(dots.majority is not None for members in panels.values() for dots in members):
        caption += " Dashed: mean over clients of the majority baseline."
    described = {}
    for panel, members in panels.items():
        words = "; ".join(f"{d.label} from {percent(min(d.values))} to {percent(max(d.values))} %" for d in members)
        title = f"Accuracy of single clients{f', {panel}' if panel else ''}"
        described[panel] = title, f"Test accuracy of each client: {words}."
    return panels_of(lambda panel, width: draw_dots(panels[panel], width), described, "clients", caption)


def holdings(name: str, scenario: dict[str, Any], caption: str) -> Markup:
    """Draw the samples of each client by class, next to the measures of skew.

    `name` is the prefix of ids in the page, `scenario` what scenario.json holds.
    """
    counts, classes = scenario["class_counts"], scenario["classes"]
    largest = max(max(row) for row in counts)
    shown = f"the first {len(counts)} of {scenario['clients']:,}" if len(counts) < scenario["clients"] else "all"
    mark = "Largest bubble" if as_bubbles(counts) else "Strongest colour"
    label = (
        f"Training samples by client and class, {shown} clients and {len(classes)} classes; "
        f"the largest count is {largest}."
    )
    svg = inline(partial(draw_holdings, counts, classes, owners(scenario)), name, "Who holds what", label)
    picture = chart([svg], "Who holds what", f"{caption} {mark}: {largest:,} samples; {shown} clients.".strip())
    return chart_beside_facts(picture, "Skew figures", _skew(scenario))


def _skew(scenario: dict[str, Any]) -> list[tuple[str, str]]:
    def times(value: float | None) -> str:
        return "unbounded: one is empty" if value is None else f"{value:.1f} ×"

    samples = " / ".join(f"{scenario[f'{split}_samples']:,}" for split in ("train", "val", "test"))
    pairs = [
        ("Mean total variation between clients", f"{scenario['total_variation']:.2f} of 1"),
        ("Classes held by a client", f"{scenario['classes_per_client']:.1f} of {len(scenario['classes'])}"),
        ("Largest to smallest client", times(scenario["size_ratio"])),
        ("Largest to smallest class", times(scenario["imbalance"])),
        ("Samples to train / validate / test", samples),
    ]
    if scenario.get("feature_shift") is not None:
        pairs.append(("Domains apart, in standard deviations", f"{scenario['feature_shift']:.2f}"))
    if scenario["empty_clients"]:
        pairs.append(("Clients without samples", str(scenario["empty_clients"])))
    if scenario["empty_classes"]:
        pairs.append(
            ("Classes that nobody holds", ", ".join(scenario["classes"][c] for c in scenario["empty_classes"]))
        )
    return pairs
