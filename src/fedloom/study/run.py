"""One run: config in, result out; resumable at any instant, never trained twice by accident."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.streams import Streams
from fedloom.data import Scenario, describe_scenario
from fedloom.engine import PASS_BATCH, Federation, LocalTraining, Serial, Worker
from fedloom.engine.choose import choose
from fedloom.engine.speedups import Speedups
from fedloom.engine.states import States
from fedloom.evaluation import Evaluator, FewShotEvaluator
from fedloom.methods.facts import Finding, Task
from fedloom.methods.phases import Predictor
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import Net
from fedloom.study import checkpoint as checkpoints
from fedloom.study.callbacks import Callback
from fedloom.study.checkpoint import Checkpoint
from fedloom.study.config import RunConfig
from fedloom.study.early_stopping import EarlyStopping
from fedloom.study.environment import describe
from fedloom.study.folder import Row, RunFolder
from fedloom.study.results import Result
from fedloom.study.rows import score_rows, system_row, training_rows
from fedloom.study.summary import degenerate, summarise
from fedloom.study.weights import copied

Existing = Literal["refuse", "resume", "fresh"]


def run(
    config: RunConfig,
    *,
    scenario: Scenario | None = None,
    out: Path | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train and test as `config` says.

    out: the run folder; None keeps nothing on disk. scenario: used instead of the one that the config describes.
    existing: what to do with a folder that holds an unfinished run of the same config: refuse, resume it, or start
    afresh. A finished run of the same config is returned as it is, unless "fresh".

    Raises `ConfigError`, `DataError`, `RunFolderError` and `CheckpointError` before any training, `ClientError`
    if a client fails.
    """
    if out is None:
        with _one_thread():
            running = _Run(config, scenario or config.scenario.build(config.seed), None, callbacks)
            return running.go(None)
    folder = RunFolder(out)
    folder.open()
    try:
        with _full_disk_explained(out), _one_thread():
            return _in_folder(config, scenario, folder, existing, callbacks)
    finally:
        folder.close()


def _in_folder(
    config: RunConfig,
    scenario: Scenario | None,
    folder: RunFolder,
    existing: Existing,
    callbacks: Sequence[Callback],
) -> Result:
    if existing == "fresh":
        folder.clear()
    before, resolved = folder.read_config(), config.resolved()
    if before is not None and _relevant(before) != _relevant(resolved):
        raise RunFolderError(
            f"{folder.path} holds a run of another config (differs in {_difference(before, resolved)}); choose another "
            "folder with --out, or replace it with --fresh"
        )
    finished = Result.read(folder.path)
    if finished is not None:
        return finished
    if before is not None and existing == "refuse":
        raise RunFolderError(
            f"{folder.path} holds an unfinished run of this config; go on with --resume, or start again with --fresh"
        )

    def note(text: str) -> None:
        for callback in callbacks:
            callback.on_note(config, text)

    start = checkpoints.load_latest(folder.checkpoints, config.fingerprint(), note)
    running = _Run(config, scenario or config.scenario.build(config.seed), folder, callbacks)
    if before is None:
        folder.write_config(resolved)
    folder.write_json("scenario.json", describe_scenario(running.scenario))
    folder.write_json("env.json", describe())
    return running.go(start)


class _Run:
    """The pieces of one run, put together."""

    def __init__(
        self, config: RunConfig, scenario: Scenario, folder: RunFolder | None, callbacks: Sequence[Callback]
    ) -> None:
        self.config, self.scenario, self.folder, self.callbacks = config, scenario, folder, list(callbacks)
        if config.early_stopping is not None:
            self.callbacks.append(EarlyStopping(**config.early_stopping.model_dump()))
        streams, data = Streams(config.seed), scenario.train_set
        self.method = config.build_method()
        blueprints = config.blueprints(data.input_shape, scenario.num_classes, self.method)
        nets = [blueprint.build(streams) for blueprint in blueprints]
        tasks = _tasks(config, scenario, blueprints, nets, streams)  # their weights stay where the nets are now
        local = LocalTraining(config.batch_size, config.optimizer, config.augment)
        device = config.engine.torch_device()
        half, speedups = config.precision == "bfloat16", Speedups(steps=config.engine.fast)
        self.worker = Worker(self.method, nets, data, local, device, bfloat16=half, speedups=speedups)
        self.federation = Federation(
            self.method,
            Serial(self.worker),
            tasks,
            scenario,
            participation=config.participation,
            states=States(config.engine.state_budget(), folder.path / "states" if folder else None),
            net=nets[0].frozen,
        )
        self.findings = {finding.code: finding for finding in self.federation.examined}
        self.protocol = config.evaluation.protocol
        self.evaluator = self._evaluator(streams)
        self._refuse_missing_predictor()
        if config.early_stopping is not None:
            self._refuse_early_stopping()
        self.rows: list[Row] = []
        self.saved: Path | None = None  # this run's last checkpoint
        self.warning: str | None = None  # of the engine
        self.stopped: str | None = None  # why a callback ended the run before its last round

    def _evaluator(self, streams: Streams) -> Evaluator | FewShotEvaluator:
        worker, scenario, evaluation = self.worker, self.scenario, self.config.evaluation
        there = dataclasses.replace(scenario, train_set=worker.data, test_set=scenario.test_set.to(worker.device))
        if self.protocol == "few-shot":
            shape = evaluation.episode_shape()
            return FewShotEvaluator(worker.lives[0], there, shape, streams, batch=PASS_BATCH)
        worker.evaluator = Evaluator(worker.live_of, there, self.protocol, batch=PASS_BATCH, also=evaluation.also)
        return worker.evaluator

    def go(self, start: Checkpoint | None) -> Result:
        """All rounds after `start`, then the summary."""
        if start is not None:
            federation = self.federation
            federation.round, federation.server = start.round, start.server
            federation.states.update(start.states)
            federation.states.changed.clear()
            self.saved = start.path
        if self.federation.round < self.config.rounds:
            chosen = choose(self.federation, self.worker, self.config.engine)
            self.federation.engine, self.warning = chosen.engine, chosen.warning
        try:
            return self._go()
        finally:
            self.federation.engine.close()
            self.federation.states.close()

    def _go(self) -> Result:
        first = self.federation.round + 1
        self.rows = self.folder.truncate(first - 1) if self.folder else []
        for callback in self.callbacks:
            if first > 1:
                self.stopped = callback.on_resume(self.config, self.rows) or self.stopped
            callback.on_start(self.config, first)
            notes = [self.warning, *(finding.message for finding in self.findings.values())]
            for text in filter(None, notes):
                callback.on_note(self.config, text)
        written, digest = time.monotonic(), ""
        weights = functools.partial(copied, self.federation)
        while self.federation.round < self.config.rounds and self.stopped is None:
            rows = self._round()
            self.rows += rows
            if self.folder:
                self.folder.append(rows)
                last = self.federation.round == self.config.rounds
                if last or time.monotonic() - written >= self.config.checkpoint.seconds:
                    digest = self._save()
                    written = time.monotonic()
            for callback in self.callbacks:
                callback.on_weights(self.config, self.federation.round, weights)
                self.stopped = callback.on_round(self.config, self.federation.round, rows) or self.stopped
        if self.stopped is not None and self.federation.round < self.config.rounds:
            self._stop()
            digest = ""  # of an earlier round, or of one that now has a test
        return self._finish(digest or (self._save() if self.folder else ""))

    def _round(self) -> list[Row]:
        """One round and, when due, its evaluation; the rows they give."""
        began = time.perf_counter()
        report = self.federation.step()
        trained = time.perf_counter()
        self._tell(report.findings)
        rows = training_rows(report)
        now, every = report.round, self.config.evaluation.every
        if now % every == 0 or now == self.config.rounds:
            rows += self._tests(now)
        ended = time.perf_counter()
        rows += [
            system_row(now, "seconds_evaluate", ended - trained),
            system_row(now, "seconds_total", ended - began),
        ]
        return rows

    def _stop(self) -> None:
        """Make the present round the last one: it is tested, as a last one always is."""
        if self.method.closing() is not None:
            raise ConfigError(
                f"stopped after round {self.federation.round} ({self.stopped}), but {self.config.method} trains "
                "after its last round too: it cannot be stopped early"
            )
        now = self.federation.round
        if not any(row["round"] == now and row["split"] == "test" for row in self.rows):
            rows = self._tests(now)
            self.rows += rows
            if self.folder:
                self.folder.append(rows)

    def _tests(self, now: int) -> list[Row]:
        """The rows of the tests on all splits."""
        return [row for split in self.evaluator.splits for row in self._tested(now, split)]

    def _tested(self, now: int, split: str) -> list[Row]:
        """The rows of one split's test: personal models on the engine, the server's here."""
        if not isinstance(self.evaluator, Evaluator) or self.evaluator.kind == "global":
            return score_rows(now, self.evaluator.scores(split, self._predictors(now)), self.protocol)
        found = sorted(self.federation.engine.test(self.federation.tests(split)), key=lambda done: done.client)
        results = {name: {done.client: done.tested[name] for done in found} for name in self.evaluator.names}
        rows = score_rows(now, self.evaluator.joined(split, results), self.protocol)
        adapted = sum(done.samples for done in found)
        return [*rows, system_row(now, "samples_adapted", adapted)] if adapted else rows

    def _predictors(self, round_: int) -> Iterator[tuple[int, dict[str, Predictor]]]:
        """The server's predictors, or those of all clients one by one, sampled or not."""
        federation = self.federation
        if self.evaluator.kind == "global":
            yield -1, self.method.predictors(federation.server, None, federation.server_context())
            return
        for client in range(self.scenario.clients):
            state = federation.state_of(federation.client_context(client, round_))
            yield client, self.method.predictors(federation.server, state, federation.server_context(client))

    def _tell(self, findings: Sequence[Finding]) -> None:
        """Note each finding once."""
        for finding in findings:
            if finding.code not in self.findings:
                self.findings[finding.code] = finding
                for callback in self.callbacks:
                    callback.on_note(self.config, finding.message)

    def _save(self) -> str:
        assert self.folder is not None
        federation = self.federation
        state = Checkpoint(federation.round, federation.server, federation.states)
        saved = checkpoints.save(
            self.folder.checkpoints,
            state,
            self.config.fingerprint(),
            self.config.checkpoint.keep,
            last=self.saved,
            changed=federation.states.changed,
        )
        federation.states.changed.clear()
        self.saved = saved.path
        return saved.sha256

    def _finish(self, digest: str) -> Result:
        config, last = self.config, self.federation.round
        numbers = summarise(config, self.federation, self.worker, self.rows) | {
            "stopped": {"round": last, "reason": self.stopped} if last < config.rounds else None,
            "degenerate": degenerate(self.rows, self.findings),
            "fingerprint": config.fingerprint(),
            "checkpoint_sha256": digest or None,
            "run_dir": str(self.folder.path) if self.folder else None,
        }
        if self.folder:
            self.folder.write_parquet(self.rows)
            self.folder.write_json("summary.json", numbers)
        path = self.folder.path if self.folder else None
        result = Result(numbers, self.rows, config.resolved(), describe_scenario(self.scenario), path)
        for callback in self.callbacks:
            callback.on_end(config, result)
        return result

    def _refuse_early_stopping(self) -> None:
        """Say before training that early stopping cannot work here."""
        if "val" not in self.evaluator.splits:
            raise ConfigError("early_stopping: there is no validation data; set scenario.val above 0, or leave it out")
        if self.method.closing() is not None:
            raise ConfigError(
                f"early_stopping: {self.config.method} trains once more after its last round; leave it out"
            )

    def _refuse_missing_predictor(self) -> None:
        """Ask once before training whether the method offers the model that the protocol tests."""
        _, offered = next(self._predictors(0))
        self.evaluator.check(offered)


def _tasks(
    config: RunConfig, scenario: Scenario, blueprints: Sequence[Blueprint], nets: Sequence[Net], streams: Streams
) -> list[Task]:
    """The facts that hooks may use, for each of the models."""
    return [
        Task.of(
            net,
            clients=scenario.clients,
            num_classes=scenario.num_classes,
            rounds=config.rounds,
            local_epochs=config.local_epochs,
            streams=streams,
            optimizer=config.optimizer,
            batch_size=config.batch_size,
            group=group,
            blueprint=blueprint,
        )
        for group, (blueprint, net) in enumerate(zip(blueprints, nets, strict=True))
    ]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One intra-operation thread: more would change the order of sums, and so the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _full_disk_explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise RunFolderError(
            f"{path}: no space left on the device; the last checkpoint is intact: free space and go on with --resume"
        ) from error


def _relevant(resolved: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in resolved.items() if key not in ("engine", "checkpoint")}


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    keys = sorted(key for key in {*before, *now} - {"engine", "checkpoint"} if before.get(key) != now.get(key))
    return ", ".join(f"{key}: {before.get(key)} there, {now.get(key)} here" for key in keys)
