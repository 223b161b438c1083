"""Where tables and progress are printed, and the signals that end a command.

The console lets no foreign text act, and prints a row that is wider than itself as one line for each cell. A terminal
sends Ctrl-C to every process that it shows, so only the first process listens, and ends the others."""

import contextlib
import io
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from fedloom.core.errors import StoppedError, printable
from fedloom.core.text import render_template

_RECORDED_COLUMNS = 90
_STYLE = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,Consolas,'DejaVu Sans Mono',monospace"
_HTML = f'<pre style="{_STYLE}">{{code}}</pre>'
_UNBOUNDED = 10_000  # columns, also of a file or pipe, which have no edge


class PlainConsole(Console):
    """A console that escapes control characters in names of classes, files and columns."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as `Console`, with control characters of texts escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text, keep_lines=True), style, control)


def console_of(as_json: bool) -> Console:
    """Where tables and progress go: stderr if stdout is reserved for JSON."""
    console = PlainConsole(stderr=as_json, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console


def fits(console: Console, table: Table, wraps: bool) -> bool:
    """Tell whether a table can be printed without cutting a cell, or a word if its texts may be wrapped (`wraps`)."""
    needed = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table)
    return (needed.minimum if wraps else needed.maximum) <= console.width


def print_table(console: Console, table: Table, wraps: bool = False) -> None:
    """Print a table, or one line for each cell where it is too wide. wraps: whether its texts may be wrapped."""
    if fits(console, table, wraps):
        console.print(table)
        return
    if table.title:
        console.print(table.title, soft_wrap=True)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            console.print(f"[bold]{column.header}[/]", cell, soft_wrap=True)
        console.print()


def print_template(console: Console, package: str, name: str, /, wraps: bool, **values: object) -> None:
    """Print the template `name` of a package on a console, as `render_template` does, with plain text in its values.
    wraps: whether lines are wrapped at the console's width."""
    text = render_template(package, name, lambda value: escape(str(value)), **values)
    console.print(text, end="", soft_wrap=not wraps)


def recorded(print_on: Callable[[Console], None]) -> dict[str, str]:
    """Return what a function prints on a console, as "text/html" and as "text/plain", for notebooks."""
    terminal: dict[str, Any] = {"force_jupyter": False, "force_terminal": True, "color_system": "truecolor"}
    shape: dict[str, Any] = {"width": _RECORDED_COLUMNS, "highlight": False, "legacy_windows": False}
    console = PlainConsole(file=io.StringIO(), record=True, **terminal, **shape)
    print_on(console)
    markup = console.export_html(code_format=_HTML, inline_styles=True, clear=False)
    lines = (line.rstrip() for line in console.export_text().splitlines())
    return {"text/html": markup, "text/plain": "\n".join(lines).strip("\n")}


@contextlib.contextmanager
def quiet_logger(name: str) -> Iterator[None]:
    """Keep back the logger's messages below the level of errors, such as warnings that do not concern the caller."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_STOP = {signal.SIGUSR1} if hasattr(signal, "SIGUSR1") else set()  # ends a run between two rounds; none on Windows
_BURST_SECONDS = 3.0  # signals that follow each other faster count as one


@contextlib.contextmanager
def block_interrupts(*, spawn: bool = False) -> Iterator[None]:
    """Start processes in this block that get neither Ctrl-C nor SIGUSR1; this process gets them after the block."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    blocked = {signal.SIGINT, *_STOP}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        if spawn:  # the first spawned process starts a helper, and multiprocessing unblocks signals then
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


class _Stop:
    requested = False  # SIGUSR1 has come


def stop_requested() -> bool:
    """Whether SIGUSR1 has asked this process to save its run after the present round, and to end."""
    return _Stop.requested


def end_if_stopped(when: str = "") -> None:
    """Raise `StoppedError` if SIGUSR1 has come. when: follows its name in the message."""
    if _Stop.requested:
        raise StoppedError(f"stopped by SIGUSR1{when}")


def listen_for_stop() -> None:
    """Let SIGUSR1 stop the runs of this process, and of those that it has started, between two rounds."""
    _Stop.requested = False
    for number in _STOP:
        signal.signal(number, _request_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})


def _request_stop(number: int, frame: Any) -> None:
    _Stop.requested = True
    for child in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid or os.getpid(), number)


class Interrupts:
    """The number of the signal that came first, or None."""

    signal: int | None = None


@contextlib.contextmanager
def raise_first_interrupt() -> Iterator[Interrupts]:
    """Raise a `KeyboardInterrupt` in this block, in the main thread, for Ctrl-C, SIGTERM and SIGHUP: once for several
    within three seconds, so that clean-up goes on. One that is ignored on entry, as by `nohup`, stays so."""
    last_time, interrupts = -_BURST_SECONDS, Interrupts()

    def handle(number: int, frame: Any) -> None:
        nonlocal last_time
        is_first, last_time = time.monotonic() - last_time > _BURST_SECONDS, time.monotonic()
        if is_first:
            interrupts.signal = number
            raise KeyboardInterrupt

    previous_handlers = {}
    for number in _SIGNALS:
        if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            previous_handlers[number] = signal.signal(number, handle)
    try:
        yield interrupts
    finally:
        # Later signals of a burst are ignored: the default handler would kill the process during its clean-up.
        is_ending = time.monotonic() - last_time <= _BURST_SECONDS
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_IGN if is_ending else handler)
