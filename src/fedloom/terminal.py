"""What the command line shows a person: tables, the client x class picture, live progress. Nothing else prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedloom.report import ResultRow, bytes_text, percent, plus_minus, seconds_text
from fedloom.study.compare import Event
from fedloom.study.config import RunConfig
from fedloom.study.results import SECONDS, Result

_SHADES = " ·░▒▓█"
_APART, _CELLS = 12, 50  # classes with a column each; cells for more of them


def listing(console: Console, noun: str, items: Sequence[tuple[str, str]]) -> None:
    """Names with one line each."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    table.add_column(noun, style="cyan", no_wrap=True)
    table.add_column("what it is")
    for name, line in items:
        table.add_row(name, Text(line))
    console.print(table)


def holdings(console: Console, picture: Mapping[str, Any], most: int = 20) -> None:
    """Clients x classes as shades, with the skew figures. `picture` is what scenario.json holds."""
    counts: list[list[int]] = picture["class_counts"]
    largest = max((n for row in counts for n in row), default=0) or 1
    table = Table(
        box=SIMPLE_HEAD, header_style="bold", title=f"{picture['name']}: who holds what", title_justify="left"
    )
    table.add_column("client", justify="right", no_wrap=True)
    classes = [str(label) for label in picture["classes"]]
    apart = len(classes) <= _APART
    if apart:
        for label in classes:
            table.add_column(label[:3], justify="center", no_wrap=True)
    else:
        merged = -(-len(classes) // _CELLS)
        counts = [[max(row[c : c + merged]) for c in range(0, len(row), merged)] for row in counts]
        table.add_column(f"{len(classes)} classes" + (f", {merged} a cell" if merged > 1 else ""), no_wrap=True)
    if picture["domains"]:
        table.add_column("domain", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:most]):
        shades = [_SHADES[0] if n == 0 else _SHADES[1 + min(4, int(4 * n / largest))] for n in row]
        cells = [Text(shade * 3) for shade in shades] if apart else [Text("".join(shades))]
        domain = [", ".join(_held(picture, client))] if picture["domains"] else []
        table.add_row(str(client), *cells, *domain, str(sum(picture["class_counts"][client])))
    console.print(table)
    if picture["clients"] > most:
        console.print(f"  … and {picture['clients'] - most} more clients")
    console.print(
        f"  {picture['clients']} clients hold {picture['classes_per_client']:.1f} of {len(picture['classes'])} classes "
        f"on average; label mixes differ by {picture['total_variation']:.2f} "
        "(mean total variation: 0 equal, 1 disjoint)"
    )
    ratio = "without bound" if picture["size_ratio"] is None else f"{picture['size_ratio']:.1f} times"
    console.print(
        f"  the largest client holds {ratio} as many samples as the smallest; the partition kept "
        f"{100 * picture['acceptance']:.3g} % of {picture['draws']} draws"
    )
    if picture["feature_shift"] is not None:
        console.print(
            f"  domains look {picture['feature_shift']:.2f} standard deviations apart "
            "(mean over pairs, RMS over inputs)"
        )
    if picture["empty_classes"]:
        names = ", ".join(str(picture["classes"][c]) for c in picture["empty_classes"])
        console.print(f"  nobody holds: {names}")
    if picture["empty_clients"]:
        console.print(f"  {picture['empty_clients']} clients hold nothing")


def _held(picture: Mapping[str, Any], client: int) -> list[str]:
    """Names of the domains of which a client holds samples."""
    return [name for name, n in zip(picture["domains"], picture["domain_counts"][client], strict=True) if n]


def outcome(console: Console, result: Result) -> None:
    """One finished run: what came out, and where the time went."""
    n = result.numbers
    console.print(
        f"[bold]{n['method']}[/] ({n['preset']}) on {n['source']}: accuracy [bold]{100 * n['accuracy']:.2f} %[/] "
        f"({n['protocol']}, {n['select']}), {n['rounds']} rounds, seed {n['seed']}"
    )
    console.print(
        f"  up {bytes_text(n['bytes_up'])}, down {bytes_text(n['bytes_down'])}; peak {n['peak_memory_mb']} MiB; "
        f"{n['flops'] / 1e9:,.1f} GFLOPs"
    )
    spent = n["seconds"]
    shares = ", ".join(f"{name} {spent[name]:.1f} s" for name in SECONDS if name != "total")
    console.print(f"  {spent['total']:.1f} s: {shares}; {n['samples_per_second']:.0f} training samples a second")
    if n["engine_reason"]:
        console.print(f"  engine {n['engine']}: {n['engine_reason']}")
    if stopped := n.get("stopped"):
        console.print(f"  stopped after round {stopped['round']}: {stopped['reason']}", soft_wrap=True)
    for note in n["degenerate"]:
        console.print(f"  [yellow]degenerate:[/] {note}")
    if n["run_dir"]:
        console.print(f"  {n['run_dir']}", highlight=False)


def comparison(console: Console, rows: Sequence[ResultRow]) -> None:
    """Methods side by side."""
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("preset")
    for column in ("n", "accuracy %", "best val %", "up", "down", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["label"],
            row["preset"],
            str(row["n"]),
            plus_minus(row["accuracy"], row["std"]),
            "" if row["best_val"] is None else percent(row["best_val"]),
            bytes_text(row["bytes_up"]),
            bytes_text(row["bytes_down"]),
            seconds_text(row["seconds"]),
        )
    console.print(table)
    named = sorted({(row["protocol"], row["select"]) for row in rows})
    protocols = "; ".join(f"protocol {protocol}, round selected: {select}" for protocol, select in named)
    console.print(f"  accuracy: mean ± sample std over n seeds; {protocols}")
    console.print("  best val: test accuracy at the round of best validation accuracy; up, down, time: per run")
    for row in rows:
        for told in row["stopped"]:
            console.print(f"  {row['label']}: {told}", soft_wrap=True)
        for note in row["degenerate"]:
            console.print(f"  [yellow]{row['label']} is degenerate:[/] {note}")


class Live:
    """Progress bars, one per run; silent when the output is no terminal (or on request)."""

    def __init__(self, console: Console, configs: Sequence[RunConfig], quiet: bool) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._console = console
        self._progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self._tasks = [
            self._progress.add_task(f"{c.method:<8} seed {c.seed}", total=c.rounds, accuracy=" " * 13, start=False)
            for c in configs
        ]

    def __enter__(self) -> Live:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show the news of one run."""
        task = self._tasks[event.position]
        if event.note is not None:
            self._console.print(f"[yellow]note:[/] {event.note}")
            return
        self._progress.start_task(task)
        shown = {} if event.accuracy is None else {"accuracy": f"accuracy {100 * event.accuracy:4.1f}"}
        self._progress.update(task, completed=event.round, **shown)  # type: ignore[arg-type]
