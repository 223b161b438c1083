"""Serves the status of a run on a local port: to Prometheus, and to people as a page."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, printable
from fedloom.core.text import bytes_text, seconds_text, value_text
from fedloom.flower.findings import require_free
from fedloom.flower.status import Failure, NodeStatus, Status, read_status


def node_table(status: Status, now: float) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the clients; columns that are empty in all rows are left out. now: since 1970."""
    by_column: dict[str, Callable[[NodeStatus], str]] = {
        "client": lambda node: str(node.client),
        "online": lambda node: ("yes" if node.online else "no") if node.node else "",
        "samples": lambda node: str(node.samples or ""),
        "last round": lambda node: str(node.round or ""),
        status.metric: lambda node: "" if node.value is None else value_text(status.metric, node.value, 1),
        "doing": lambda node: "" if node.progress is None else node.progress.text(now),
        "up": lambda node: _bytes(node.bytes_up + (node.progress.bytes_up if node.progress else 0)),
        "down": lambda node: _bytes(node.bytes_down + (node.progress.bytes_down if node.progress else 0)),
        "compared with others": lambda node: ", ".join(
            ["stands out"] * node.outlier
            + [f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value in node.scores.items()]
        ),
        "node": lambda node: node.node,
    }
    cells = {column: [printable(text(node)) for node in status.nodes] for column, text in by_column.items()}
    used = [column for column, texts in cells.items() if any(texts)]
    return used, [list(row) for row in zip(*(cells[column] for column in used), strict=True)]


def failure_text(failure: Failure) -> str:
    """Return an error, and the last line of its traceback, in one line."""
    return printable("; ".join([failure.error, *map(str.strip, failure.traceback.strip().splitlines()[-1:])]))


def _bytes(value: int) -> str:
    return bytes_text(value) if value else ""


def round_table(status: Status, last: int) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the `last` rounds that the status keeps."""
    rows = [
        [
            str(entry.round),
            value_text(status.metric, entry.value, 1),
            str(entry.uploads),
            "–" if entry.seconds is None else seconds_text(entry.seconds),
        ]
        for entry in status.history[-last:]
    ]
    return ["round", status.metric, "uploads", "time"], rows


def serve_metrics(run: Path, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve the status of a `run` to Prometheus at `host`:`port`; return a function that ends this."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ConfigError("prometheus-client is not installed; pip install 'fedloom[prometheus]'") from None
    read_status(run)  # a wrong folder is an error now, and not at the first scrape
    require_free(port, host)

    class Collector:
        def collect(self) -> Iterator[Any]:
            return _metrics(run)

    registry: Any = CollectorRegistry()
    registry.register(Collector())
    server, thread = start_http_server(port, host, registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _metrics(run: Path) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    status = read_status(run)
    wait = status.wait
    gauges: dict[str, tuple[str, float]] = {
        "round": ("Last whole round", status.round),
        "rounds": ("Rounds of the run", status.rounds),
        "nodes": ("Clients whose nodes are online", sum(node.online for node in status.nodes)),
        "waiting_clients": ("Clients that the server waits for", len(wait.clients) if wait else 0),
        "waiting_since_seconds": ("When the wait began, seconds since 1970; 0: none", wait.since if wait else 0),
        "written_seconds": ("When the status was written, seconds since 1970", status.written),
        "failed": ("1 if the run ended without a result", int(status.state == "failed")),
        "finished": ("1 if the run ended with one", int(status.state == "finished")),
    }
    if status.history:
        last = status.history[-1]
        gauges["uploads"] = ("Uploads that the last round used", last.uploads)
        gauges["round_seconds"] = ("Duration of the last round", last.seconds or math.nan)
        gauges["test"] = (f"Test of the last round: {status.metric}", math.nan if last.value is None else last.value)
    counters = {
        "upload_bytes": ("Bytes of payloads from clients", status.bytes_up),
        "download_bytes": ("Bytes of payloads to clients", status.bytes_down),
        "refused": ("Uploads and tests that were refused", status.refused),
        "failures": ("Exceptions in clients' work", status.failures),
    }
    labels = [status.run, status.method]
    for kind, family in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (text, value) in family.items():
            metric = kind(f"fedloom_{name}", text, labels=["run", "method"])
            metric.add_metric(labels, value)
            yield metric
    by_client: dict[str, tuple[str, Callable[[NodeStatus], float | None]]] = {
        "online": ("1 if the client's node is online", lambda node: node.online),
        "last_round": ("Last round with a result of the client", lambda node: node.round),
        "test": (f"Last test of the client: {status.metric}", lambda node: node.value),
        "progress_ratio": (
            "Share of the phase that is done",
            lambda node: node.progress.fraction if node.progress else None,
        ),
        "moved_seconds": (
            "When its work last moved, since 1970",
            lambda node: node.progress.changed if node.progress else None,
        ),
        "outlier": ("1 if the client stands out from the others", lambda node: node.outlier),
    }
    for name, (text, measure) in by_client.items():
        metric = GaugeMetricFamily(f"fedloom_client_{name}", text, labels=["run", "method", "client"])
        for node in status.nodes:
            if (measured := measure(node)) is not None:
                metric.add_metric([*labels, str(node.client)], measured)
        yield metric
