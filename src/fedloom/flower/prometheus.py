"""The status of a federation for Prometheus (extra `prometheus`), read from the run's folder at every scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.flower.processes import require_free
from fedloom.flower.status import read_status


def serve_metrics(run: Path, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve a run's status as Prometheus text in a thread, and return a function that ends it.

    Raises `ConfigError` if the package is missing or the port in use, `RunFolderError` if there is no status.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ConfigError("prometheus-client is not installed; pip install 'fedloom[prometheus]'") from None
    read_status(run)
    require_free(port, host)
    registry: Any = CollectorRegistry()
    registry.register(_StatusCollector(run))
    server, thread = start_http_server(port, host, registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


class _StatusCollector:
    def __init__(self, run: Path) -> None:
        self._run = run

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        status = read_status(self._run)
        wait = status.wait
        gauges = {
            "round": ("Last whole round", status.round),
            "rounds": ("Rounds of the run", status.rounds),
            "nodes": ("Clients whose nodes are there", sum(node.online for node in status.nodes)),
            "waiting_clients": ("Clients that the server waits for", len(wait.clients) if wait else 0),
            "waiting_since_seconds": ("When the wait began, seconds since 1970; 0: none", wait.since if wait else 0),
            "written_seconds": ("When the status was written, seconds since 1970", status.written),
            "failed": ("1 if the run ended without a result", int(status.state == "failed")),
            "finished": ("1 if the run ended with one", int(status.state == "finished")),
        }
        counters = {
            "upload_bytes": ("Bytes of payloads from clients", status.bytes_up),
            "download_bytes": ("Bytes of payloads to clients", status.bytes_down),
            "refused": ("Uploads and tests that were refused", status.refused),
            "failures": ("Exceptions in clients' work", status.failures),
        }
        for kind, family in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
            for name, (text, value) in family.items():
                metric = kind(f"fedloom_{name}", text, labels=["run", "method"])
                metric.add_metric([status.run, status.method], value)
                yield metric
