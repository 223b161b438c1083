"""Charts of cost, of single clients and of the data: groups in, HTML figures out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from markupsafe import Markup

from fedloom.report.bars import draw_bars, draw_dots
from fedloom.report.holdings import as_bubbles, draw_holdings, owners
from fedloom.report.markup import chart, chart_beside_facts, key, name_cell, table
from fedloom.report.measures import Bar, Dots, all_clients, by_protocol
from fedloom.report.svg import inline
from fedloom.results.fairness import fairness_columns, fairness_rows, formatted_fairness
from fedloom.results.formats import Format
from fedloom.results.left_out_domains import LEFT_OUT_CAPTION, formatted_left_out, left_out_columns, left_out_rows
from fedloom.results.page_sections import Cell
from fedloom.results.table import Group
from fedloom.results.text import bytes_text, percent, seconds_text

_PER_RUN = "One run, all clients and rounds; mean over seeds."
_SAVED: dict[str, Format] = {"csv": "csv", "md": "markdown", "tex": "latex"}
_BYTE_PARTS, _PHASES = ("up", "down"), ("train", "evaluate", "aggregate", "move", "checkpoint")


def traffic(groups: Sequence[Group]) -> Markup:
    """Bytes up and down per run."""
    bars = []
    for group in groups:
        up, down = group.row["bytes_up"], group.row["bytes_down"]
        bars.append(Bar(group.row["label"], [up, down], f"{bytes_text(up)} up · {bytes_text(down)} down"))
    label = f"Bytes per run: {'; '.join(f'{bar.label} {bar.total}' for bar in bars)}."
    svg = inline(partial(draw_bars, bars), "bytes", "Bytes on the wire", label)
    return chart([svg], "Bytes on the wire", _PER_RUN, key((f"p{k}", word) for k, word in enumerate(_BYTE_PARTS)))


def time_spent(groups: Sequence[Group]) -> Markup:
    """Seconds by phase per run."""
    bars, words = [], []
    for group in groups:
        parts = [group.row["phases"][phase] for phase in _PHASES]
        bars.append(Bar(group.row["label"], parts, seconds_text(group.row["seconds"])))
        phases = ", ".join(f"{phase} {seconds_text(part)}" for phase, part in zip(_PHASES, parts, strict=True))
        words.append(f"{group.row['label']}: {phases}")
    svg = inline(partial(draw_bars, bars), "seconds", "Time by phase", f"Seconds by phase per run. {'; '.join(words)}.")
    return chart([svg], "Time by phase", _PER_RUN, key((f"p{k}", word) for k, word in enumerate(_PHASES)))


def client_spread(groups: Sequence[Group]) -> list[Markup]:
    """Accuracy of single clients, a chart for each protocol that tests clients."""
    charts = []
    for k, (title, toned) in enumerate(by_protocol(groups)):
        rows = [Dots(g.row["label"], tone, values) for g, tone in toned if (values := all_clients(g.results))]
        if rows:
            charts.append(_client_dots(rows, title, toned[0][0].row["protocol"], f"clients{k or ''}"))
    return charts


def _client_dots(rows: Sequence[Dots], title: str, protocol: str, name: str) -> Markup:
    words = "; ".join(f"{d.label} from {percent(min(d.values))} to {percent(max(d.values))} %" for d in rows)
    label = f"Test accuracy of each client, protocol {protocol}: {words}."
    svgs = [
        inline(partial(draw_dots, rows, width), f"{name}-{css}", "Accuracy of single clients", label, css)
        for css, width in (("wide", 900.0), ("narrow", 360.0))
    ]
    caption = f"One dot per client and seed at the last round, sorted, protocol {protocol}. Line: median."
    return chart(svgs, title, caption)


def client_fairness(groups: Sequence[Group]) -> Markup | None:
    """Spread of accuracy over clients, and how many are worse off, as a table; None where no clients are tested."""
    rows = fairness_rows(groups)
    if not rows:
        return None
    names, texts = fairness_columns(rows)
    body: list[list[Cell]] = [
        [
            name_cell(cells[0]),
            *(
                text if name == "protocol" else (text, _first_number(text))
                for name, text in zip(names[1:], cells[1:], strict=True)
            ),
        ]
        for cells in texts
    ]
    caption = (
        "Accuracy over clients, means over seeds: std over all clients, means of the worst and best tenth, Jain's "
        "index (1: all alike), and clients that are strictly worse than with the same seed's reference."
    )
    saved = {end: formatted_fairness(groups, form) for end, form in _SAVED.items()}
    headings = [f"{name[:1].upper()}{name[1:]}" for name in names]
    return table("fairness-note", caption, headings, set(headings[1:]) - {"Protocol"}, body, saved)


def left_out_domains(groups: Sequence[Group]) -> Markup | None:
    """Accuracy on domains that runs left out, as a table; None where no run did."""
    rows = left_out_rows(groups)
    if not rows:
        return None
    names, texts = left_out_columns(rows)
    body: list[list[Cell]] = [
        [name_cell(cells[0]), *((text, _first_number(text)) for text in cells[1:])] for cells in texts
    ]
    saved = {end: formatted_left_out(groups, form) for end, form in _SAVED.items()}
    headings = [f"{name[:1].upper()}{name[1:]}" for name in names]
    return table("domains-note", LEFT_OUT_CAPTION, headings, set(headings[1:]), body, saved)


def _first_number(text: str) -> float | None:
    return None if text == "–" else float(text.split()[0])


def holdings(name: str, scenario: dict[str, Any], caption: str) -> Markup:
    """Draw who holds what, with the skew figures beside it.

    Args:
        name: prefix of ids in the page.
        scenario: the contents of scenario.json.
        caption: text below the picture.
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
