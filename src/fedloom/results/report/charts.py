"""Charts of cost, of single clients and of the data: groups in, HTML figures out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from fedloom.core.text import bytes_text, listed, percent, seconds_text
from fedloom.results.report.axes import inline
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.curves import Bar, Dots, all_clients, draw_bars, draw_dots
from fedloom.results.report.holdings import as_bubbles, draw_holdings, owners
from fedloom.results.report.line_charts import ChartRow
from fedloom.results.report.markup import chart, chart_beside_facts, fold, grid, key, paragraph

_PER_RUN = "One run, all clients and rounds; mean over seeds."
_OPEN_BARS = 16  # rows
_BYTE_PARTS, _PHASES = ("up", "down"), ("train", "evaluate", "aggregate", "move", "checkpoint")


def traffic(rows: Sequence[ChartRow]) -> Markup:
    """Bytes up and down per run."""
    bars = []
    for row in rows:
        up, down = row.row["bytes_up"], row.row["bytes_down"]
        bars.append(Bar(row.row["label"], [up, down], f"{bytes_text(up)} up · {bytes_text(down)} down"))
    label = f"Bytes per run: {'; '.join(f'{bar.label} {bar.total}' for bar in bars)}."
    svg = inline(partial(draw_bars, bars), "bytes", "Bytes on the wire", label)
    return chart([svg], "Bytes on the wire", _PER_RUN, key((f"p{k}", word, -1) for k, word in enumerate(_BYTE_PARTS)))


def time_spent(rows: Sequence[ChartRow]) -> Markup:
    """Seconds by phase per run."""
    bars, words = [], []
    for row in rows:
        parts = [row.row["phases"][phase] for phase in _PHASES]
        bars.append(Bar(row.row["label"], parts, seconds_text(row.row["seconds"])))
        phases = ", ".join(f"{phase} {seconds_text(part)}" for phase, part in zip(_PHASES, parts, strict=True))
        words.append(f"{row.row['label']}: {phases}")
    label = f"Seconds by phase per run. {'; '.join(words)}."
    svg = inline(partial(draw_bars, bars), "seconds", "Time by phase", label)
    return chart([svg], "Time by phase", _PER_RUN, key((f"p{k}", word, -1) for k, word in enumerate(_PHASES)))


def cost_charts(rows: Sequence[ChartRow]) -> Markup:
    """Render bytes and seconds of every row; they fold if there are many."""
    charts = grid([traffic(rows), time_spent(rows)])
    return charts if len(rows) <= _OPEN_BARS else fold(f"Bytes and seconds of {len(rows)} rows as bars", [charts])


def client_spread(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the accuracy of single clients where the protocol tests clients, a panel for each setting."""
    panels: dict[str, list[Dots]] = {}
    for row in rows:
        values = all_clients(row.group.results)
        if values:
            dots = Dots(row.method, row.tone, values, majority_accuracy(row.group))
            panels.setdefault(row.panel, []).append(dots)
    protocols = listed(dict.fromkeys(row.row["protocol"] for row in rows if all_clients(row.group.results)))
    caption = f"One dot per client and seed at the selected round, sorted, protocol {protocols}. Line: median."
    if any(dots.majority is not None for members in panels.values() for dots in members):
        caption += " Dashed: mean over clients of the majority baseline."
    figures = []
    for k, (panel, members) in enumerate(panels.items()):
        words = "; ".join(f"{d.label} from {percent(min(d.values))} to {percent(max(d.values))} %" for d in members)
        title = f"Accuracy of single clients{f', {panel}' if panel else ''}"
        sizes = (("wide", 900.0), ("narrow", 360.0)) if len(panels) == 1 else (("", 390.0),)
        svgs = [
            inline(
                partial(draw_dots, members, width),
                f"clients-{k}{css}",
                title,
                f"Test accuracy of each client: {words}.",
                css,
            )
            for css, width in sizes
        ]
        figures.append(chart(svgs, panel, caption if len(panels) == 1 else ""))
    return figures if len(figures) < 2 else [paragraph(caption, "note"), grid(figures)]


def holdings(name: str, scenario: dict[str, Any], caption: str) -> Markup:
    """Draw the samples of each client by class, next to the measures of skew.

    name: prefix of ids in the page. scenario: the contents of scenario.json. caption: text below the picture.
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
