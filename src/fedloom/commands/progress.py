"""Live progress of one or several runs: bars on a terminal, now and then a line where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from fedloom.commands.shared import console_of
from fedloom.config.run_config import RunConfig
from fedloom.results.text import counted
from fedloom.studies.events import Event

_BAR_COLUMNS = 72  # columns below which bars would be cut
_MAX_BARS = 6  # runs that all have a bar of their own; of more, those under way
_PAUSE, _SHARE = 15.0, 0.05  # at least so many seconds between two lines, and this share of the time so far


class ProgressEstimate:
    """Estimate of the remaining time of several runs, from the rounds finished since the first news.

    Rounds that were done before (a run that is resumed or reused) count as done, and say nothing of the pace.
    """

    def __init__(self, rounds: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds, self._clock = list(rounds), clock
        self._first: dict[int, int] = {}
        self._done: dict[int, int] = {}
        self._began = self._last = clock()

    def record(self, run: int, round_: int) -> None:
        """Run number `run` has finished this round; the first news of a run is where it begins."""
        self._last = self._clock()
        if not self._first:
            self._began = self._last
        self._first.setdefault(run, round_)
        self._done[run] = round_

    @property
    def done(self) -> int:
        """Rounds done, of all runs."""
        return sum(self._done.values())

    @property
    def total(self) -> int:
        """Rounds of all runs."""
        return sum(self._rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the first news."""
        return self._clock() - self._began

    def remaining(self) -> float | None:
        """Seconds until the end; None before the first round is done."""
        finished = self.done - sum(self._first.values())
        if not finished:
            return None
        remaining = (self._last - self._began) / finished * (self.total - self.done)
        return max(0.0, remaining - (self._clock() - self._last))


class ProgressDisplay:
    """Shows events of runs on stderr; nothing but notes if `quiet`."""

    def __init__(self, configs: Sequence[RunConfig], quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._configs = configs
        self._pace = ProgressEstimate([config.rounds for config in configs], clock)
        self._console = console_of(True)
        bars = self._console.is_terminal and self._console.width >= _BAR_COLUMNS
        self._lines = not quiet and not bars
        self._due: float | None = None  # of the next line, in seconds gone
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]}"),
            TimeElapsedColumn(),
            _RemainingTime(self._pace),
        )
        self._progress = Progress(*columns, console=self._console, disable=quiet or not bars, expand=True)
        self._all = self._task("all runs", self._pace.total, len(configs) > 1, whole=True)
        self._tasks = [
            self._task(_name(c), c.rounds, len(configs) <= _MAX_BARS, whole=len(configs) == 1) for c in configs
        ]

    def __enter__(self) -> ProgressDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show the news of one run."""
        if event.note is not None:
            self._console.print(f"[yellow]note:[/] {escape(event.note)}", soft_wrap=True)
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

    def _task(self, name: str, rounds: int, visible: bool, whole: bool) -> TaskID:
        return self._progress.add_task(name, total=rounds, visible=visible, start=False, accuracy=" " * 13, whole=whole)

    def _line(self, event: Event) -> None:
        """A line at the start, after the first round, and then at intervals that grow with the time gone."""
        pace, config = self._pace, self._configs[event.position]
        if self._due is None:
            runs = _name(config) if len(self._configs) == 1 else f"{len(self._configs)} runs"
            self._console.print(f"{runs}: {counted(pace.total - pace.done, 'round')} to go", soft_wrap=True)
            self._due = 0.0
        seconds_left = pace.remaining()
        if seconds_left is None or pace.elapsed < self._due or pace.done == pace.total:
            return
        self._due = pace.elapsed + max(_PAUSE, _SHARE * pace.elapsed)
        parts = [f"{_name(config)}: round {event.round} of {config.rounds}"]
        if event.accuracy is not None:
            parts.append(f"accuracy {100 * event.accuracy:.1f} %")
        if len(self._configs) > 1:
            parts.append(f"all runs {pace.done / pace.total:.0%}")
        self._console.print(
            ", ".join([*parts, f"{_clock(pace.elapsed)} gone, {_clock(seconds_left)} left"]), soft_wrap=True
        )


class _RemainingTime(ProgressColumn):
    """Time left of all runs, on the line that stands for all of them."""

    def __init__(self, pace: ProgressEstimate) -> None:
        super().__init__()
        self._pace = pace

    def render(self, task: Task) -> Text:
        """The time, or dashes before the first round is done."""
        if not task.fields["whole"]:
            return Text("")
        seconds_left = self._pace.remaining()
        return Text(
            "-:--:-- left" if seconds_left is None else f"{_clock(seconds_left)} left", style="progress.remaining"
        )


def _name(config: RunConfig) -> str:
    return f"{config.method} seed {config.seed}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
