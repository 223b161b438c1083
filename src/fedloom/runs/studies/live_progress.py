"""Live progress of one or several runs: bars on a terminal, one output in a notebook that is replaced, else lines."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType

from rich import progress as bars
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from fedloom.core.console import console_of, recorded
from fedloom.core.errors import ConfigError, printable, short_repr
from fedloom.core.text import counted, distinct_notes
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, curve
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Event:
    """News of one run: its position in the list, the round that it finished, its accuracy if tested, a note."""

    position: int
    round: int
    accuracy: float | None = None
    note: str | None = None


Listener = Callable[[Event], None]


class Forward(Callback):
    """Turn a run's callbacks into events."""

    def __init__(self, position: int, send: Listener) -> None:
        self._position, self._send = position, send

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self._send(Event(self._position, first_round - 1))

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        _, tested = curve(rows, "accuracy", "test")
        self._send(Event(self._position, round_, tested[-1] if tested else None))

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._send(Event(self._position, config.rounds))

    def on_note(self, config: RunConfig, note: str) -> None:
        self._send(Event(self._position, 0, note=note))


def waiting(remaining: int) -> Event:
    """The news that all `remaining` jobs of a call are in the hands of other calls."""
    return Event(0, 0, note=f"{counted(remaining, 'run')} left, with other processes; waiting for them")


class ProgressEstimate:
    """Estimates the remaining time of several runs from the rounds finished since the first news. Rounds that were done
    before (of a resumed or reused run) count as done, but not towards the pace."""

    def __init__(self, rounds: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self._clock = sum(rounds), clock
        self._first, self._done = dict[int, int](), dict[int, int]()
        self._began = self._last = clock()

    def record(self, run: int, round_: int) -> None:
        """Record that run number `run` has finished this round; the first news of a run is where it begins."""
        self._last = self._clock()
        if not self._first:
            self._began = self._last
        self._first.setdefault(run, round_)
        self._done[run] = round_

    @property
    def done(self) -> int:
        return sum(self._done.values())

    @property
    def elapsed(self) -> float:
        """Seconds since the first news."""
        return self._clock() - self._began

    def remaining(self) -> float | None:
        """Seconds until the end; None before the first round is done."""
        if self._first and self.done == self.total:
            return 0.0
        finished = self.done - sum(self._first.values())
        if not finished:
            return None
        remaining = (self._last - self._began) / finished * (self.total - self.done)
        return max(0.0, remaining - (self._clock() - self._last))


_log = logging.getLogger(__name__)
_BAR_COLUMNS = 72  # columns below which bars would be cut
_MAX_BARS = 6  # with more runs than this, only those in progress get a bar
_PAUSE, _SHARE = 15.0, 0.05  # at least so many seconds between two lines, and this share of the time so far
_NOTEBOOK_PAUSE = 0.25  # seconds between two pictures of a notebook


@contextlib.contextmanager
def progress_listener(configs: Sequence[RunConfig], progress: bool) -> Iterator[Listener]:
    """Give the listener that shows the progress of runs from Python, or nothing without `progress`.

    A terminal and a notebook show bars. Elsewhere the logger of this module gets notes as warnings, other lines as
    information. Raises `ConfigError` unless `progress` is True or False."""
    if not isinstance(progress, bool):
        raise ConfigError(f"progress = {short_repr(progress)}: need True or False")
    if not progress:
        yield lambda event: None
        return
    with ProgressDisplay(configs, quiet=False, log=_log) as display:
        yield display


class ProgressDisplay:
    """Shows events of runs on stderr; nothing but notes if `quiet`. log: takes lines and notes instead where stderr is
    neither a terminal nor that of a notebook."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
    ) -> None:
        self._configs, self._clock = configs, clock
        self._pace = ProgressEstimate([config.rounds for config in configs], clock)
        self._console = console_of(True)
        self._notebook, self._handle = self._console.is_jupyter and not quiet, None  # of the output that is replaced
        self._log = None if self._console.is_terminal or self._notebook else log
        shows_bars = self._console.is_terminal and self._console.width >= _BAR_COLUMNS
        self._lines = not quiet and not shows_bars and not self._notebook
        self._due: float | None = None  # of the next line, in seconds gone
        self._next_picture = 0.0  # of a notebook, by the clock
        self._notes: list[str] = []
        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=None),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[accuracy]}"),
            bars.TimeElapsedColumn(),
            _RemainingTime(self._pace),
        )
        self._progress = bars.Progress(*columns, console=self._console, disable=quiet or not shows_bars, expand=True)
        self._all = self._task("all runs", self._pace.total, len(configs) > 1, whole=True)
        self._tasks = [
            self._task(_name(c), c.rounds, len(configs) <= _MAX_BARS, whole=len(configs) == 1) for c in configs
        ]

    def __enter__(self) -> "ProgressDisplay":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._notebook and self._next_picture:
            for task in self._tasks if len(self._tasks) > 1 else ():
                self._progress.update(task, visible=False)
            self._show_in_notebook()

    def __call__(self, event: Event) -> None:
        if event.note is not None:
            self._note(event.note)
            return
        self._pace.record(event.position, event.round)
        if self._lines:
            self._line(event)
            return
        task, rounds = self._tasks[event.position], self._configs[event.position].rounds
        self._progress.start_task(task)
        self._progress.start_task(self._all)
        under_way = event.round < rounds or len(self._tasks) <= _MAX_BARS
        shown = {} if event.accuracy is None else {"accuracy": f"accuracy {100 * event.accuracy:4.1f}"}
        self._progress.update(task, completed=event.round, visible=under_way, **shown)  # type: ignore[arg-type]
        self._progress.update(self._all, completed=self._pace.done)
        if self._notebook and self._clock() >= self._next_picture:
            self._next_picture = self._clock() + _NOTEBOOK_PAUSE
            self._show_in_notebook()

    def _show_in_notebook(self) -> None:
        """Put the bars, and the notes below them, into the output of the cell, in place of those before."""
        from IPython.display import display

        notes = (Text.from_markup(f"[yellow]note:[/] {escape(note)}") for note in distinct_notes(self._notes))
        picture = Group(self._progress.make_tasks_table(self._progress.tasks), *notes)
        bundle = recorded(lambda console: console.print(picture))
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def _note(self, note: str) -> None:
        """Print a note once; runs of several seeds repeat it."""
        if note in self._notes:
            return
        self._notes.append(note)
        if self._notebook:
            self._next_picture = self._clock()
            self._show_in_notebook()
        else:
            self._print(note, is_note=True)

    def _print(self, line: str, is_note: bool = False) -> None:
        if self._log is not None:
            level, prefix = (logging.WARNING, "note: ") if is_note else (logging.INFO, "")
            self._log.log(level, "%s%s", prefix, printable(line))
        else:
            self._console.print(f"[yellow]note:[/] {escape(line)}" if is_note else line, soft_wrap=True)

    def _task(self, name: str, rounds: int, visible: bool, whole: bool) -> bars.TaskID:
        return self._progress.add_task(name, total=rounds, visible=visible, start=False, accuracy=" " * 13, whole=whole)

    def _line(self, event: Event) -> None:
        """A line at the start, after the first round, and then at intervals that grow with the time gone."""
        pace, config = self._pace, self._configs[event.position]
        if self._due is None:
            runs = _name(config) if len(self._configs) == 1 else f"{len(self._configs)} runs"
            self._print(f"{runs}: {counted(pace.total - pace.done, 'round')} to go")
            self._due = 0.0
        seconds_left = pace.remaining()
        if seconds_left is None or pace.elapsed < self._due or pace.done == pace.total:
            return
        # a share of the time so far: a run of days would otherwise fill a log with lines
        self._due = pace.elapsed + max(_PAUSE, _SHARE * pace.elapsed)
        parts = [f"{_name(config)}: round {event.round} of {config.rounds}"]
        if event.accuracy is not None:
            parts.append(f"accuracy {100 * event.accuracy:.1f} %")
        if len(self._configs) > 1:
            parts.append(f"all runs {pace.done / pace.total:.0%}")
        self._print(", ".join([*parts, f"{_clock(pace.elapsed)} gone, {_clock(seconds_left)} left"]))


class _RemainingTime(bars.ProgressColumn):
    """Remaining time of all runs, shown on the line for the total."""

    def __init__(self, pace: ProgressEstimate) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: bars.Task) -> Text:
        if not task.fields["whole"]:
            return Text("")
        seconds_left = self._pace.remaining()
        clock = "-:--:--" if seconds_left is None else _clock(seconds_left)
        return Text(f"{clock} left", style="progress.remaining")


def _name(config: RunConfig) -> str:
    return f"{config.method} seed {config.seed}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
