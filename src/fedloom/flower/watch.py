"""The status of a run for people and Prometheus: as sentences and tables, and as a page on a local port."""

import base64
import contextlib
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, TypeAlias

from markupsafe import Markup

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError, printable, short_repr
from fedloom.core.text import bytes_text, counted, seconds_text, value_text
from fedloom.flower.status import SILENT, Failure, NodeStatus, Status, StatusWriter, client_list
from fedloom.results.report.markup import asset, environment
from fedloom.runs.config.run_config import RunConfig

Table: TypeAlias = tuple[list[str], list[list[str]]]  # columns and rows
Read: TypeAlias = Callable[[], tuple[Status, Failure | None]]
_TEMPLATES = {"/": ("watch.html", "text/html"), "/metrics": ("metrics.txt", "text/plain; version=0.0.4")}
_LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
_MOST_ROWS = 200  # of clients, in the page
_LAST_ROUNDS = 20  # in the page
_LINGER = 3.0  # seconds that the page of a simulation waits at its end for a browser that shows it


def status_lines(status: Status, failure: Failure | None) -> list[str]:
    """Return in a few lines what a run does now, and what went wrong."""
    return [line for name in ("now.txt", "errors.txt") for line in _render(name, status, failure, False).splitlines()]


def client_table(status: Status, most: int | None = None) -> Table:
    """Return a table of the clients without columns that are empty; at most some, first those that need attention."""
    waiting = set[int]() if status.wait is None else {*status.wait.clients}

    def urgency(node: NodeStatus) -> int:
        return 0 if node.outlier else 1 if node.node and not node.online else 2 if node.client in waiting else 3

    by_column: dict[str, Callable[[NodeStatus], str]] = {
        "client": lambda node: str(node.client),
        "online": lambda node: ("yes" if node.online else "no") if node.node else "",
        "doing": lambda node: "" if node.progress is None else node.progress.text(status.written),
        "compared with others": lambda node: ", ".join(
            ["stands out"] * node.outlier
            + [f"{name} {'–' if value is None else f'{value:.3g}'}" for name, value in node.scores.items()]
        ),
        status.metric: lambda node: "" if node.value is None else value_text(status.metric, node.value, 1),
        "last round": lambda node: str(node.round or ""),
        "samples": lambda node: str(node.samples or ""),
        "up": lambda node: _bytes_text(node.bytes_up + (node.progress.bytes_up if node.progress else 0)),
        "down": lambda node: _bytes_text(node.bytes_down + (node.progress.bytes_down if node.progress else 0)),
        "node": lambda node: node.node,
    }
    nodes = status.nodes if most is None else sorted(status.nodes, key=urgency)[:most]
    cells = {column: [printable(text(node)) for node in nodes] for column, text in by_column.items()}
    used = [column for column, texts in cells.items() if any(texts)]
    return used, [list(row) for row in zip(*(cells[column] for column in used), strict=True)]


def round_table(status: Status, last: int) -> Table:
    """Return a table of the `last` rounds that the status keeps."""
    rows = []
    for entry in status.history[-last:]:
        seconds = "–" if entry.seconds is None else seconds_text(entry.seconds)
        rows.append([str(entry.round), value_text(status.metric, entry.value, 1), str(entry.uploads), seconds])
    return ["round", status.metric, "uploads", "time"], rows


def _bytes_text(value: int) -> str:
    return bytes_text(value) if value else ""


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))


@cache
def _style_and_script() -> tuple[str, str]:
    style, script = (environment("fedloom.flower").get_template(f"watch.{kind}").render() for kind in ("css", "js"))
    return asset("style.css") + style, script


def _render(name: str, status: Status, failure: Failure | None, escapes: bool = True) -> str:
    now, (style, script) = time.time(), _style_and_script()
    columns, rows = client_table(status, _MOST_ROWS)
    caption = counted(len(status.nodes), "client")
    if len(rows) < len(status.nodes):
        caption += f": the {len(rows)} that need attention most"
    tests = [(entry.round, entry.value) for entry in status.history if entry.value is not None]
    times = [(entry.round, entry.seconds) for entry in status.history if entry.seconds is not None]
    functions = {of.__name__: of for of in (value_text, bytes_text, client_list, printable, zip)}
    template = environment("fedloom.flower").overlay(autoescape=escapes).get_template(name)
    return template.render(
        functions,
        status=status,
        failure=failure,
        now=now,
        silent=status.state == "running" and now - status.written > SILENT,
        caption=caption,
        columns=columns,
        rows=rows,
        rounds=round_table(status, _LAST_ROUNDS),
        charts=[("test", status.metric, tests), ("time", "seconds per round", times)],
        clock=_clock,
        style=Markup(style),
        script=Markup(script),
        version=__version__,
    )


class _Server(ThreadingTCPServer):
    """Serves what `read` returns. asked: when a page was last asked for, monotonic seconds. served: set after each."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, host: str, port: int, read: Read) -> None:
        self.read, self.is_local = read, host in _LOCAL_NAMES
        self.asked, self.served = -math.inf, threading.Event()
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0  # seconds that a client may be silent

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the browser has gone
            super().handle()

    def do_GET(self) -> None:
        self._reply(*self._answer())

    def _answer(self) -> tuple[int, str, str]:
        name = re.sub(r":\d+$", "", self.headers.get("Host", ""))
        # A site whose name resolves to this machine must not read the page through a browser of this machine.
        if self.server.is_local and name not in _LOCAL_NAMES:
            return 421, "text/plain", f"{short_repr(name)} is not this page's host; it is http://127.0.0.1\n"
        template, kind = _TEMPLATES.get(self.path.partition("?")[0], ("", ""))
        if not template:
            return 404, "text/plain", "there is nothing here; the page is at /\n"
        self.server.asked = time.monotonic()
        try:
            return 200, kind, _render(template, *self.server.read())
        except RunFolderError as error:
            return 503, "text/plain", f"{error}\n"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._reply(code, "text/plain", f"{message or HTTPStatus(code).phrase}\n")

    def _reply(self, code: int, kind: str, text: str) -> None:
        style, script = (base64.b64encode(sha256(part.encode()).digest()).decode() for part in _style_and_script())
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": f"default-src 'none'; img-src data:; style-src 'sha256-{style}'; "
            f"script-src 'sha256-{script}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        body = text.encode(errors="backslashreplace")
        self.send_response(code)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.served.set()

    def version_string(self) -> str:
        return "fedloom"

    def log_message(self, format: str, *values: Any) -> None:
        pass


@contextlib.contextmanager
def served(read: Read, port: int, host: str = "127.0.0.1") -> Iterator[_Server]:
    """Serve, within the block, what `read` returns: to people at /, to Prometheus at /metrics.
    Raises `ConfigError` for a port in use, and what `read` raises now."""
    read()
    try:
        server = _Server(host, port, read)
    except OSError as error:
        raise ConfigError(
            f"port {port} of {host} cannot be used ({error.strerror}); name another with --port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def watched(config: RunConfig, name: str, port: int) -> Iterator[StatusWriter]:
    """Serve, within the block and at `port` of the loopback, the page of a simulation with a `config` and a `name`.
    The callback that is returned must watch the run, whose folder and numbers stay as they are."""
    writer = StatusWriter(config, None)
    writer.begin(name, 0)

    def read() -> tuple[Status, None]:
        return writer.status.model_copy(update={"written": time.time()}), None  # the writer is in this process

    with served(read, port) as server:
        try:
            yield writer
        except BaseException as error:
            writer.set_failed(error)
            raise
        finally:
            if time.monotonic() - server.asked < 2 * _LINGER:  # a browser shows the page
                server.served.clear()
                server.served.wait(_LINGER)
