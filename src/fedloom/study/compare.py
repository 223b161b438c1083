"""Several methods and seeds on equal terms: the same scenario, the same initial weights, the same batches."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event as StopFlag
from pathlib import Path

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.interrupts import no_interrupts
from fedloom.data import Scenario
from fedloom.study import marker
from fedloom.study.callbacks import Callback
from fedloom.study.config import RunConfig
from fedloom.study.dealt import KEY, refuse_mixed_data
from fedloom.study.folder import Row
from fedloom.study.results import Result
from fedloom.study.run import Existing, run

_events: Queue[Event] | None = None
_stop: StopFlag | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """News of one of the runs: its position in the list, the round it has finished, its accuracy if tested, a note."""

    position: int
    round: int
    accuracy: float | None = None
    note: str | None = None


Listener = Callable[[Event], None]


def folder_name(config: RunConfig) -> str:
    """A run folder's name: what differs most often in words, everything else in the fingerprint."""
    return f"{config.method}-{config.preset}-seed{config.seed}-{config.fingerprint()[:8]}"


def compare(
    configs: Sequence[RunConfig],
    *,
    out: Path | None,
    existing: Existing = "resume",
    jobs: int | None = None,
    listener: Listener = lambda event: None,
    scenario: Scenario | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Result]:
    """Run all configs into folders below `out` (None keeps nothing on disk); results in the order of the configs.

    jobs: processes at a time (None: one per core, never more than runs). Numbers do not depend on it. scenario: used
    by all runs instead of the configs'. callbacks: every run gets copies of its own. Raises the first error of any run;
    runs that were under way keep their checkpoints, the others are not started. Raises `ConfigError` for runs that are
    the same, and for several processes without `out`, or with a scenario or model that came as an object;
    `RunFolderError` if `out` cannot be used, or if a process was ended from outside.
    """
    names = [folder_name(config) for config in configs]
    if len(set(names)) < len(names):
        name, _ = Counter(names).most_common(1)[0]
        raise ConfigError(f"run {name} is there twice: compare each once")
    workers = min(jobs or os.cpu_count() or 1, len(configs))
    objects = scenario is not None or any(model.maker for config in configs for model in config.models())
    if workers > 1 and (out is None or objects):
        raise ConfigError(
            f"jobs = {jobs}: several processes need out, and no scenario or model that is an object; use jobs=1"
        )
    if out is None:
        return _one_by_one(configs, [None] * len(configs), existing, listener, scenario, callbacks)
    folders = [out / name for name in names]
    marker.refuse_links(folders)
    try:
        marker.check(out, "comparison")
        out.mkdir(parents=True, exist_ok=True)
        marker.claim(out, "comparison")
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be used as the folder of a comparison ({error.strerror})") from None
    try:
        if workers <= 1:
            results = _one_by_one(configs, folders, existing, listener, scenario, callbacks)
        else:
            results = _side_by_side(configs, folders, existing, workers, listener, callbacks)
    finally:
        marker.drop_if_bare(out)
    refuse_mixed_data((str(result.folder), result.scenario.get(KEY)) for result in results)
    return results


def _one_by_one(
    configs: Sequence[RunConfig],
    folders: Sequence[Path | None],
    existing: Existing,
    listener: Listener,
    scenario: Scenario | None,
    callbacks: Sequence[Callback],
) -> list[Result]:
    results = []
    for position, (config, folder) in enumerate(zip(configs, folders, strict=True)):
        watching = [Forward(position, listener), *copy.deepcopy(callbacks)]
        results.append(run(config, scenario=scenario, out=folder, existing=existing, callbacks=watching))
        listener(Event(position, config.rounds))  # also where it had been finished before
    return results


def _side_by_side(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    existing: Existing,
    workers: int,
    listener: Listener,
    callbacks: Sequence[Callback],
) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    events: Queue[Event] = context.Queue()
    stop, (read, held) = context.Event(), context.Pipe(duplex=False)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_adopt, initargs=(events, stop, read)) as pool:
        with no_interrupts():
            futures = [
                pool.submit(_run_one, position, config, folder, existing, tuple(callbacks))
                for position, (config, folder) in enumerate(zip(configs, folders, strict=True))
            ]
            pool.submit(os.getpid)  # the pool begins to watch a process at the submission after its start
        try:
            _listen(futures, events, listener)
            for future in sorted(futures, key=lambda f: not (f.done() and f.exception())):
                future.result()
        except BrokenProcessPool:
            raise RunFolderError(
                f"{folders[0].parent}: a process of the comparison was ended from outside (out of memory?); runs keep "
                "their checkpoints: compare again to go on, with fewer --jobs if memory is short"
            ) from None
        except KeyboardInterrupt:
            held.close()
            raise
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    finished = [Result.read(folder) for folder in folders]
    return [result for result in finished if result is not None]


def _listen(futures: Sequence[Future[None]], events: Queue[Event], listener: Listener) -> None:
    """Pass events on until all runs have ended or one has failed."""
    while True:
        done, pending = wait(futures, timeout=0)
        try:
            listener(events.get(timeout=0.1))
            continue
        except queue.Empty:
            pass
        if not pending or any(future.exception() for future in done if not future.cancelled()):
            return


def _adopt(events: Queue[Event], stop: StopFlag, held: Connection) -> None:
    """In a worker process: remember where news go and what stops it, and end with the parent, however that ends."""
    global _events, _stop
    _events, _stop = events, stop
    threading.Thread(target=follow, args=(held,), daemon=True).start()


def follow(held: Connection) -> None:
    """End at once when the parent closes its end, or is gone. Checkpoints are whole at any instant."""
    with contextlib.suppress(EOFError, OSError):
        held.recv()
    os._exit(1)


def _report(event: Event) -> None:
    """Send news from a worker process; end here, between two rounds, if another run has failed."""
    assert _events is not None
    assert _stop is not None
    if _stop.is_set():
        raise RunFolderError("stopped because another run of the comparison failed; compare again to go on")
    _events.put(event)


def on_one_core(config: RunConfig) -> RunConfig:
    """The config for a process beside others: engine `auto` is serial, for the cores are taken by the other runs."""
    if config.engine.name != "auto":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"name": "serial"})})


def _run_one(position: int, config: RunConfig, folder: Path, existing: Existing, callbacks: Sequence[Callback]) -> None:
    run(on_one_core(config), out=folder, existing=existing, callbacks=[Forward(position, _report), *callbacks])
    _report(Event(position, config.rounds))  # also where it had been finished before


class Forward(Callback):
    """Turns a run's callbacks into events."""

    def __init__(self, position: int, send: Listener) -> None:
        self._position, self._send = position, send

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self._send(Event(self._position, first_round - 1))

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        tested = [r["value"] for r in rows if r["client"] is None and (r["split"], r["name"]) == ("test", "accuracy")]
        self._send(Event(self._position, round_, tested[-1] if tested else None))

    def on_end(self, config: RunConfig, result: Result) -> None:
        self._send(Event(self._position, config.rounds))

    def on_note(self, config: RunConfig, note: str) -> None:
        self._send(Event(self._position, 0, note=note))
