"""One run: config in, result out; resumable at any instant, never trained twice by accident."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from fedloom.core.console import end_if_stopped, stop_requested
from fedloom.core.errors import ConfigError, RunFolderError, check_choice
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.text import listed
from fedloom.data import Scenario, describe_input, describe_scenario
from fedloom.data.leak import flow_of, leak, leak_sentences
from fedloom.engine import Engine, Federation, Serial, Worker
from fedloom.engine.choose import choose_engine
from fedloom.engine.device import device_name, device_note, device_settings
from fedloom.engine.states import ClientStates
from fedloom.evaluation.own_metrics import own_sources
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.runs.callbacks import Callback, CallbackMeasures, EarlyStopping, check_reason, copy_weights
from fedloom.runs.client_models import ClientModelKeeper
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.drift.decomposition import RunDrift
from fedloom.runs.export.run_at_checkpoint import Memory
from fedloom.runs.newcomers import NewcomerTests, newcomer_notes
from fedloom.runs.protocol_tests import ProtocolTests, training_rows
from fedloom.runs.setup import Setup, bfloat16_advice, check_devices
from fedloom.runs.storage import checkpoint as checkpoint_store
from fedloom.runs.storage import data_record
from fedloom.runs.storage.checkpoint import Checkpoint, report_misfits, restore
from fedloom.runs.storage.data_record import data_record_of, describe_environment, on_kept_device, refuse_other_data
from fedloom.runs.storage.folders import explain_shortage
from fedloom.runs.storage.log import NEWCOMERS, START, Row, best_val, new_row
from fedloom.runs.storage.predictions import no_predictions, write_predictions
from fedloom.runs.storage.run_data import CLIENTS_FILE, RunData
from fedloom.runs.storage.run_folder import PREDICTIONS, RunFolder
from fedloom.runs.storage.schemas import difference
from fedloom.runs.summary import degenerate, summarise

Existing = Literal["refuse", "resume", "fresh"]
# Makes an engine for a federation, given the server's worker, and whom to tell what happens.
R = TypeVar("R", bound=RunData)
EngineFactory: TypeAlias = Callable[[Federation, Worker, Callable[[str], None]], Engine]


def run(
    config: RunConfig,
    *,
    scenario: Scenario | None = None,
    out: Path | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
    engine_factory: EngineFactory | None = None,
    result_type: type[R] = RunData,  # type: ignore[assignment]
) -> R:
    """Train and test as a config says.

    Args:
        config: the config of the run.
        scenario: used instead of the one that the config describes.
        out: the run folder; None keeps nothing on disk.
        existing: what to do with a folder that holds an unfinished run of the same config: "refuse" it, "resume" it, or
            start "fresh". A finished run of the same config is returned as it is, unless "fresh".
        callbacks: objects that watch the run.
        engine_factory: builds the engine, which replaces that of the config.
        result_type: the class of the result, `RunData` or one that adds methods to it.

    Raises `ConfigError`, `DataError`, `RunFolderError` and `CheckpointError` before any training, `ClientError` if a
    client fails."""
    check_choice("existing", existing, get_args(Existing))
    watchers = callbacks, engine_factory, result_type
    if out is None:
        with reproducible_settings():
            return _Run(config, scenario, None, *watchers).execute(None)
    folder, fresh = RunFolder(out), existing == "fresh"
    folder.open()
    try:
        with explain_shortage(out, existing == "resume"), reproducible_settings():
            stored = None if fresh else folder.read_config()
            finished = None if stored is None else _finished(config, folder, stored, existing, result_type)
            if finished is not None:
                _note_on_finished(config, folder, callbacks)
                return dataclasses.replace(finished, memory=Memory(config, scenario))
            folder.check_files()
            config = config if fresh else on_kept_device(config, folder)
            running, start = _Run(config, scenario, folder, *watchers), None
            if fresh:
                folder.clear()  # once nothing speaks against the new run
            else:
                start = checkpoint_store.load_latest(folder.checkpoints, config.fingerprint(), running.note, folder.log)
                refuse_other_data(folder, running.data)
            if stored is None:
                folder.write_config(config.resolved())
            folder.write_json("scenario.json", running.scenario_record())
            folder.write_json("env.json", describe_environment() | {"device": device_name(running.worker.device)})
            return running.execute(start)
    finally:
        folder.close()


def _finished(
    config: RunConfig, folder: RunFolder, stored: dict[str, Any], existing: Existing, result_type: type[R]
) -> R | None:
    """Return the finished run in a folder. Raises `RunFolderError` for another run than the one to be continued."""
    if differences := difference(stored, config.resolved()):
        remedy = "choose another folder with out=..., or delete this one and run again"
        raise RunFolderError(f"{folder.path} holds a run of another config ({differences}); {remedy}")
    finished = result_type.read(folder.path)
    if finished is None and existing == "refuse":
        detail = "continue with existing='resume', or start again with existing='fresh'"
        raise RunFolderError(f"{folder.path} holds an unfinished run of this config; {detail}")
    return finished


def _note_on_finished(config: RunConfig, folder: RunFolder, callbacks: Sequence[Callback]) -> None:
    """Say what a finished run, which is returned as it is, may lack or have had in another definition."""
    names, why = list(own_sources(config.evaluation.metrics)), "this run has finished, and is returned as it is"
    by_name = f"a config knows {listed(names)} by name alone, so if its code has changed, say existing='fresh'"
    lacks = config.checkpoint.predictions and not (folder.path / PREDICTIONS).exists()
    for text in [by_name] * bool(names) + [f"it has no {PREDICTIONS}; existing='fresh' makes them"] * lacks:
        for callback in callbacks:
            callback.on_note(config, f"{why}: {text}")


class _Run(Generic[R]):
    def __init__(
        self,
        config: RunConfig,
        user_scenario: Scenario | None,
        folder: RunFolder | None,
        callbacks: Sequence[Callback],
        engine_factory: EngineFactory | None,
        result_type: type[R],
    ) -> None:
        scenario = user_scenario or config.scenario.build(config.seed)
        self.config, self.scenario, self.folder, self.callbacks = config, scenario, folder, list(callbacks)
        self.result_type, self.engine_factory = result_type, engine_factory
        if config.checkpoint.predictions and (why := no_predictions(config, folder is None, bool(engine_factory))):
            raise ConfigError(f"checkpoint.predictions: {why}")
        if config.early_stopping is not None:
            self.callbacks.append(EarlyStopping(**config.early_stopping.model_dump()))
        self.memory = Memory(config, user_scenario)
        self.data = data_record_of(config, scenario) if folder else None
        data = scenario.train_set
        # the tasks' weights stay where the nets are now
        setup = Setup.from_config(config, data.input_shape, scenario.num_classes, scenario.clients)
        self.method, nets, self.streams = setup.method, setup.nets, setup.streams
        self.worker = setup.worker(config, data)
        model_diagnostics = setup.diagnostics(config, data)
        self.leak = leak(scenario)
        model_diagnostics += [Diagnostic("leak", text, 1.0) for text in leak_sentences(self.leak)]
        by = config.evaluation.intervals and config.evaluation.intervals.by
        if by == "group" and scenario.test_set.group is None and not scenario.remote:
            text = "evaluation.intervals.by = group: the data have no groups, so single rows are drawn, and intervals"
            text += " are too narrow where several rows belong to one person; name a group, or say by: row"
            model_diagnostics.append(Diagnostic("rows_drawn", text, 1.0))
        states = ClientStates(config.engine.state_budget(), folder.states if folder else None)
        check_devices(config, self.method, over_flower=engine_factory is not None)
        facts: dict[str, Any] = {"participation": config.participation, "devices": config.devices, "states": states}
        facts["nets"] = [net.functional for net in nets]
        self.federation = Federation(self.method, Serial(self.worker), setup.tasks, scenario, **facts)
        diagnostics = [*self.federation.initial_diagnostics, *model_diagnostics]
        self.diagnostics = {diagnostic.code: diagnostic for diagnostic in diagnostics}
        self.tests = ProtocolTests(config, setup, self.worker, self.federation)
        served = self.federation, self.worker, self.scenario, config.evaluation
        self.newcomer_tests = None if self.scenario.newcomers is None else NewcomerTests(*served)
        self.drift = RunDrift(config, self.federation, self.worker, folder, engine_factory is not None)
        kept = self.federation, folder.client_models if folder else None, self.note
        self.client_models = ClientModelKeeper(config, *kept) if config.checkpoint.keep_clients else None
        self.rows: list[Row] = []
        self.best: tuple[int, float] | None = None  # round and validation value, where it selects the round
        self.checkpoint: Path | None = None  # the last checkpoint of this run
        self.checkpoint_sha256, self.checkpoint_round = "", 0  # sha256 of its content, and its round
        self.engine_warning: str | None = None  # of the engine
        self.stop_reason: str | None = None  # why a callback ended the run before its last round

    def execute(self, start: Checkpoint | None) -> R:
        if start is not None:
            restore(self.federation, start)
            self.checkpoint, self.checkpoint_sha256, self.checkpoint_round = start.path, start.sha256, start.round
        if self.engine_factory is not None:
            self.federation.engine = self.engine_factory(self.federation, self.worker, self.note)
        else:
            chosen = choose_engine(self.federation, self.worker, self.config.engine, self.note)
            self.federation.engine, self.engine_warning = chosen.engine, chosen.warning
        try:
            settings = device_settings(self.worker.device, self.config.precision, self.config.engine.deterministic)
            with settings, report_misfits(start, self.federation):
                return self._train_rounds(start)
        finally:
            self.federation.engine.close()
            self.federation.engine = Serial(self.worker)  # an engine may refer to the federation: nets go with the run
            self.federation.states.close()

    def _train_rounds(self, start: Checkpoint | None) -> R:
        first = self.federation.round + 1
        if self.folder:
            self.rows = self.folder.log.truncate(start.metrics if start else START)
        self.drift.resume(first - 1)
        self._update_best(self.rows)
        if self.client_models is not None:
            self.client_models.resume(first - 1)
        for callback in self.callbacks:
            if first > 1:
                self.stop_reason = callback.on_resume(self.config, self.rows) or self.stop_reason
            callback.on_start(self.config, first)
            notes = [
                device_note(self.config.engine.device, self.worker.device),
                self.engine_warning,
                *self.scenario.notes,
                *self.tests.notes(),
                *newcomer_notes(self.config, self.scenario, self.newcomer_tests),
                *(diagnostic.message for diagnostic in self.diagnostics.values()),
            ]
            for text in filter(None, notes):
                callback.on_note(self.config, text)
        saved_at, weights = time.monotonic(), functools.partial(copy_weights, self.federation)
        callback_measures = CallbackMeasures(self.callbacks)
        while self.federation.round < self.config.rounds and self.stop_reason is None:
            if stop_requested():
                self._save_unsaved()
                end_if_stopped(f" after round {self.federation.round} of {self.config.rounds}")
            rows = self._train_round()
            rows += callback_measures.rows(self.config, self.federation, rows)
            # before the checkpoint, which holds the size of the log: a resumed run has each row once
            self._store_rows(rows)
            must_save = self._update_best(rows) or self.federation.round == self.config.rounds or stop_requested()
            if self.folder and (must_save or time.monotonic() - saved_at >= self.config.checkpoint.seconds):
                rows.append(self._save_checkpoint(self.folder))
                self._store_rows(rows[-1:])
                saved_at = time.monotonic()
            elif not self.folder and must_save and self.config.engine.state_budget() is None:
                self._keep_weights()
            for callback in self.callbacks:
                callback.on_weights(self.config, self.federation.round, weights)
                reason = callback.on_round(self.config, self.federation.round, rows)
                check_reason(callback, reason)
                self.stop_reason = reason or self.stop_reason
        if self.federation.round < self.config.rounds:
            self._end_early()
        return self._finish()

    def _end_early(self) -> None:
        """End the run after this round, which is therefore tested and saved."""
        round_ = self.federation.round
        if self.method.closing() is not None:
            raise ConfigError(
                f"stopped after round {round_} ({self.stop_reason}), but {self.config.method} trains once more after "
                "its last round: it cannot be stopped early"
            )
        # with `evaluation.every`, the round may not have been tested
        if not any(row["round"] == round_ and row["split"] == "test" for row in self.rows):
            rows = self.tests.rows(round_)
            self._update_best(rows)
            self._store_rows(rows)
        self._store_rows(self._newcomer_rows(round_))
        self._save_unsaved()
        if not self.folder and self.config.engine.state_budget() is None:
            self._keep_weights()

    def _save_unsaved(self) -> None:
        if self.folder and self.checkpoint_round < self.federation.round:
            self._store_rows([self._save_checkpoint(self.folder)])

    def _store_rows(self, rows: list[Row]) -> None:
        self.rows += rows
        if self.folder:
            self.folder.log.append(rows)

    def _train_round(self) -> list[Row]:
        began = time.perf_counter()
        report = self.federation.step()
        if self.client_models is not None:
            began += self.client_models.store()  # which takes none of the run's seconds
        trained = time.perf_counter()
        self._note_once(report.diagnostics)
        trains_here = not self.scenario.remote  # nodes train on other processors
        if trains_here and (advice := bfloat16_advice(self.config, self.worker, report.round, trained - began)):
            self.note(advice)
        rows = training_rows(report) + self.drift.store(report.round)
        round_, every = report.round, self.config.evaluation.every
        if round_ % every == 0 or round_ == self.config.rounds:
            rows += self.tests.rows(round_)
        if round_ == self.config.rounds:
            rows += self._last_newcomer_rows(rows)
        ended = time.perf_counter()
        rows.append(new_row(round_, "seconds_evaluate", ended - trained))
        return [*rows, new_row(round_, "seconds_total", ended - began)]

    def _last_newcomer_rows(self, rows: list[Row]) -> list[Row]:
        """Return the rows of the tests on newcomers. If one fails, the rows so far and the trained state are kept."""
        try:
            return self._newcomer_rows(self.federation.round)
        except BaseException:
            self._store_rows(rows)
            self._save_unsaved()
            raise

    def _newcomer_rows(self, round_: int) -> list[Row]:
        tests, done = self.newcomer_tests, any(row["split"] == NEWCOMERS for row in self.rows)  # before a resume
        return [] if tests is None or tests.ran or done else tests.rows(round_)

    def _update_best(self, rows: Sequence[Row]) -> bool:
        """Return whether `rows` have the best validation value so far, which selects the round; remember it."""
        criterion = self.config.evaluation.criterion()
        best = best_val(rows, criterion) if self.config.evaluation.select == "best_val" else None
        if best is None or (self.best is not None and criterion.sign * (best[1] - self.best[1]) <= 0):
            return False
        self.best = best
        return True

    def _keep_weights(self) -> None:
        """Keep the weights of this round, and of the best one, for `Result.model`."""
        federation, weights = self.federation, self.memory.weights
        best = None if self.best is None else self.best[0]
        for round_ in weights.keys() - {best}:
            del weights[round_]
        weights[federation.round] = Checkpoint(federation.round, federation.server, dict(federation.states))

    def scenario_record(self) -> dict[str, Any]:
        """Return the content of scenario.json: the samples of each client, and the shape of the input."""
        scenario = self.scenario
        rows = scenario.train.order[:0] if scenario.remote else scenario.train.order  # nodes tell no ranges of theirs
        record = describe_scenario(scenario) | {"input": describe_input(scenario.train_set, rows)}
        record |= {key: value for key, value in (("leak", self.leak), ("flow", flow_of(scenario))) if value}
        return record if self.data is None else record | {data_record.KEY: self.data}

    def _note_once(self, diagnostics: Sequence[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            if diagnostic.code not in self.diagnostics:
                self.diagnostics[diagnostic.code] = diagnostic
                self.note(diagnostic.message)

    def note(self, text: str) -> None:
        for callback in self.callbacks:
            callback.on_note(self.config, text)

    def _save_checkpoint(self, folder: RunFolder) -> Row:
        """Write a checkpoint and return the row of its cost, which the checkpoint itself does not contain."""
        began, federation = time.perf_counter(), self.federation
        clock = {} if federation.clock is None else federation.clock.record()
        state = Checkpoint(federation.round, federation.server, federation.states, folder.log.flush(), clock=clock)
        self.checkpoint, self.checkpoint_sha256 = checkpoint_store.save(
            folder.checkpoints,
            state,
            self.config.fingerprint(),
            self.config.checkpoint.keep,
            previous=self.checkpoint,
            changed=federation.states.changed,
            best_round=None if self.best is None else self.best[0],
            for_rewind=self.engine_factory is not None,
        )
        federation.states.changed.clear()
        self.checkpoint_round = federation.round
        return new_row(federation.round, "seconds_checkpoint", time.perf_counter() - began)

    def _finish(self) -> R:
        config, last = self.config, self.federation.round
        zero_shot_note = None if self.newcomer_tests is None else self.newcomer_tests.zero_shot_note()
        self._store_rows(self._newcomer_rows(last))  # none if they are there: only a run whose tests failed lacks them
        if self.tests.lacks_details:
            self.tests.rows(last)  # the run ended before its summary was written
        self._note_once(self.tests.not_above_majority(self.rows))
        numbers = summarise(config, self.federation, self.worker, self.rows, self.tests, zero_shot_note) | {
            "stopped": {"round": last, "reason": self.stop_reason} if last < config.rounds else None,
            "degenerate": degenerate(self.rows, self.diagnostics),
            "fingerprint": config.fingerprint(),
            "checkpoint_sha256": self.checkpoint_sha256 or None,
            "run_dir": str(self.folder.path) if self.folder else None,
        }
        if self.folder:
            self.folder.write_parquet(self.rows)
            if config.checkpoint.predictions:
                write_predictions(self.folder.path, self.scenario, config.fingerprint(), self.tests.predictions())
            if any(self.tests.client_details.values()):
                self.folder.write_json(CLIENTS_FILE, self.tests.client_details, indent=None)
            # Last, because a folder with a summary counts as finished.
            self.folder.write_summary(numbers)
        path = self.folder.path if self.folder else None
        more: dict[str, Any] = {"client_details": self.tests.client_details, "drift_rounds": self.drift.rounds}
        result = self.result_type(
            numbers, self.rows, config.resolved(), self.scenario_record(), path, memory=self.memory, **more
        )
        self._notify_end(result)
        return result

    def _notify_end(self, result: RunData) -> None:
        """Tell all callbacks, whatever one of them raises: the run is stored, so no resume would tell them again."""
        errors = []
        for callback in self.callbacks:
            try:
                callback.on_end(self.config, result)
            except Exception as error:
                errors.append(error)
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors) - 1} more of the callbacks failed: {'; '.join(map(repr, errors[1:]))}")
        if errors:
            raise errors[0]
