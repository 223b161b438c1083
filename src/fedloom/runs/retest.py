"""Tests finished runs again, with the same bits where a run recorded them. Nothing is trained but what a test itself
trains, such as a newcomer's tuning."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from pydantic import ValidationError

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, UnknownKeyError, suggest_name
from fedloom.core.files import expand_home, json_digest, json_text, parse_json, without_nan
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.text import ACCURACY
from fedloom.data import Dataset, Scenario
from fedloom.data.sources.source import Splits
from fedloom.data.views import Views
from fedloom.engine import Federation, Serial
from fedloom.engine.device import device_settings
from fedloom.engine.jobs import kept_since
from fedloom.evaluation import METRICS, Evaluator, Metric, MetricStates, Predictions
from fedloom.evaluation.metrics import metric_kinds
from fedloom.evaluation.own_metrics import PerSample, own_sources
from fedloom.runs.config.keys import explain_validation_error
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EvaluationConfig
from fedloom.runs.export.modules import OwnModel, config_of
from fedloom.runs.export.run_at_checkpoint import Memory, RunAtCheckpoint
from fedloom.runs.export.samples import read_labelled
from fedloom.runs.export.trained import Note, open_result
from fedloom.runs.newcomers import NewcomerTests, newcomer_notes
from fedloom.runs.protocol_tests import ProtocolTests
from fedloom.runs.storage.checkpoint import report_misfits, restore
from fedloom.runs.storage.folders import refuse_links
from fedloom.runs.storage.log import At
from fedloom.runs.storage.run_data import R, RunData
from fedloom.runs.storage.run_folder import EVALUATIONS, RunFolder
from fedloom.runs.summary import newcomer_numbers, scores_of

Samples: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # x [n, ...] and their classes [n]
_NOT_BY_GROUP = ("attack_success", "domain_accuracy")
_MOST_VALUES = 10  # of a column of numbers, which is cut at its quartiles if it has more
_MAJORITY = "is not above the"  # of a note on the tests in training


def evaluate_run(
    run: R,
    *,
    protocols: str | Sequence[str] | None = None,
    metrics: str | Sequence[str | PerSample | type[Metric]] | None = None,
    newcomers: Mapping[str, Any] | bool | None = None,
    by: str | None = None,
    interval: str | None = None,
    at: At | None = None,
    data: Any = None,
    label: str | None = None,
    model: OwnModel | None = None,
    note: Note = lambda _: None,
    loaded: dict[str, Splits] | None = None,
    **unknown: Any,
) -> R:
    """Test a finished run, and return it as these tests show it. protocols, metrics, newcomers, by, interval, at, data,
    label, model, note: as in `fedloom.Result.evaluate`. loaded: data of runs before, as in `Memory`."""
    for key in unknown:
        raise UnknownKeyError("", key, ("protocols", "metrics", "newcomers", "by", "interval", "at", "data", "label"))
    scenario, memory = data if isinstance(data, Scenario) else None, run.memory or Memory(config_of(run.config, model))
    memory = replace(memory, scenario=memory.scenario or scenario, loaded={} if loaded is None else loaded)
    config = memory.config
    values: dict[str, Any] = config.evaluation.model_dump() | {"select": "last", "select_by": ACCURACY.name}
    names = [protocols] if isinstance(protocols, str) else list(protocols or config.evaluation.tested_protocols)
    values |= {"protocol": names[0], "protocols": () if names == ["few-shot"] else names}
    # few-shot has no metrics, and those of a script that has not run here are unknown
    recorded = [name for name in values["metrics"] if name in METRICS and names != ["few-shot"]]
    values["metrics"] = recorded if metrics is None else [metrics] if isinstance(metrics, str) else metrics
    served = newcomers not in (None, False)
    changes = newcomers if served and newcomers is not True else {}
    values["newcomers"] = {**values["newcomers"], **changes} if isinstance(changes, Mapping) else changes
    new_data = data is not None and scenario is None  # without validation samples
    if new_data or not any(name.startswith("global") for name in names):
        values["decision"] = None
    values["intervals"] = None if names == ["few-shot"] else values["intervals"]
    if interval is not None:
        values["intervals"] = {**(values["intervals"] or {}), "by": interval}
    values["also"] = values["also"] if by is None else ()  # values by group are those of main predictors
    try:
        evaluation = EvaluationConfig(**{key: value for key, value in values.items() if value != ()})
    except ValidationError as error:
        raise explain_validation_error(error, "evaluation", EvaluationConfig) from None
    source, _ = config.scenario.parts()
    if source.kind == "nodes":
        raise ConfigError("source nodes: the samples of this run stay on its nodes, so they cannot be tested here")
    if scenario is not None and scenario.digest() != source.model_dump().get("digest"):
        raise ConfigError("data: not the scenario that this run was given, by their digests; pass that or none")
    select: At = ("best_val" if run.numbers["select"] == "best_val" else "last") if at is None else at
    with reproducible_settings():
        opened, new = open_result(replace(run, memory=memory), select), None
        request = {"by": by, "at": at, "newcomers": newcomers, "protocols": protocols and names, "version": __version__}
        request["metrics"] = None if metrics is None else evaluation.metrics
        request |= {} if interval is None else {"interval": interval}
        if data is not None and not isinstance(data, Scenario):
            new = read_labelled(expand_home(data) if isinstance(data, Path | str) else data, opened, label, note)
            request["data"] = [hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in new]
        digest = json_digest(request)[:12]
        folder = run.folder and RunFolder(run.folder)
        is_known = not own_sources(evaluation.metrics)  # a function may have changed under its name
        content = folder.read_evaluation(digest, run.numbers) if folder and is_known else None
        if content is None:
            if interval == "group" and opened.scenario.test_set.group is None:
                raise ConfigError("interval = 'group': scenario.group names none in this run; take 'row'")
            config = config.model_copy(update={"evaluation": evaluation, "early_stopping": None})
            content = _tests(run, opened, config, new, served, by)
            content |= {} if new is None else {"source": str(data) if isinstance(data, Path | str) else "new data"}
            content["select"] = select if select in ("last", "best_val") else f"round {select}"
            content["evaluation"]["digest"] = digest
            content = parse_json(json_text({"run": run.numbers["checkpoint_sha256"], **content}))  # as it will be read
            if folder:
                refuse_links([folder.path / EVALUATIONS])
                (folder.path / EVALUATIONS).mkdir(exist_ok=True)
                folder.write_json(f"{EVALUATIONS}/{digest}.json", content, indent=None)
    for text in content["evaluation"].get("notes", []):
        note(text)
    return run.as_evaluated(content)


def _tests(
    run: RunData, opened: RunAtCheckpoint, config: RunConfig, new: Samples | None, served: bool, by: str | None
) -> dict[str, Any]:
    """Test a run after the round of a checkpoint. new: replaces the test set. served: whether newcomers are tested."""
    scenario = opened.scenario if new is None else _on(new, opened.scenario, config)
    if served and scenario.newcomers is None:
        why = "every client of this run trained, so none is new to it" if new is None else "new data name no clients"
        raise ConfigError(f"newcomers: {why}; train with scenario.held_out, e.g. {{share: 0.2}}")
    setup, start = opened.setup, opened.checkpoint
    away = next((client for client, state in start.states.items() if kept_since(state) is not None), None)
    if away is not None and "personal" in str(config.evaluation.tested_protocols):
        raise ConfigError(f"client {away}: its personal model stays on its own node; take a global/... protocol")
    worker, nets = setup.worker(config, scenario.train_set), [net.functional for net in setup.nets]
    settings: dict[str, Any] = {"participation": config.participation, "nets": nets}
    federation = Federation(opened.method, Serial(worker), setup.tasks, scenario, **settings)
    restore(federation, start)
    tests, zero_shot_note = ProtocolTests(config, setup, worker, federation), None
    groups = None if by is None else _groups_by(by, scenario, range(scenario.clients))
    if by is not None and not worker.evaluators:
        raise ConfigError(f"by = {by}: few-shot draws episodes and tests no group; take another protocol")
    by_group = [(evaluator, groups) for evaluator in worker.evaluators.values() if groups is not None]
    for evaluator, _ in by_group:
        evaluator.kept = {}
    on_device = device_settings(worker.device, config.precision, config.engine.deterministic)
    with on_device, report_misfits(start, federation):
        rows, notes = tests.rows(start.round), tests.notes()
        if served:
            newcomers = NewcomerTests(federation, worker, scenario, config.evaluation)
            if by is not None:
                members = _groups_by(by, newcomers.scenario, scenario.newcomer_ids)
                newcomers.service.evaluator.kept, by_group = {}, [*by_group, (newcomers.service.evaluator, members)]
            rows += newcomers.rows(start.round)
            zero_shot_note, notes = newcomers.zero_shot_note(), [*notes, *newcomer_notes(config, scenario, newcomers)]
    place = itemgetter("round", "client", "split", "protocol", "name")
    recorded = {place(row): repr(float(row["value"])) for row in run.rows if row["protocol"] and new is None}
    repeated = [row for row in rows if place(row) in recorded]
    differing = [row["name"] for row in repeated if recorded[place(row)] != repr(float(row["value"]))]
    if differing:
        which = f"{len(differing)} of {len(repeated)} values, such as {differing[0]}, are"
        notes.append(f"{which} not the bits that the run recorded on {run.numbers.get('device')}")
    about: dict[str, Any] = {"round": start.round, "repeated": len(repeated), "differing": len(differing)}
    about["replaces"] = served or new is not None or start.round != run.numbers["rounds"]
    about |= {"notes": notes, "groups": [r for of in by_group for r in _values_by_group(*of, config.evaluation)]}
    numbers = scores_of(config, federation, rows, tests) | {"evaluation": about}
    numbers |= newcomer_numbers(federation, rows, zero_shot_note) if served else {}
    of_training = [text for text in run.numbers["degenerate"] if _MAJORITY not in text]
    numbers["degenerate"] = of_training + [diagnostic.message for diagnostic in tests.not_above_majority(rows)]
    return numbers | {"rows": rows, "client_details": tests.client_details}


def _on(new: Samples, scenario: Scenario, config: RunConfig) -> Scenario:
    """Return a scenario whose test set is new, of which no sample has a client."""
    if local := [name for name in config.evaluation.tested_protocols if not name.endswith("/global")]:
        why = "new data do not say which client a sample belongs to"
        raise ConfigError(f"protocol {local[0]}: {why}; take global/global or personal/global")
    no_samples = Views(np.zeros(0, np.int64), np.zeros(scenario.clients + 1, np.int64))
    reset: dict[str, Any] = {"test_origin": "official", "test_rows": None, "attack": None, "bad": (), "newcomers": None}
    former = scenario.test_set
    test_set = Dataset(*new, former.classes, former.mean, former.std, features=former.features)
    return replace(scenario, test_set=test_set, test=no_samples, val=no_samples, **reset)


def _groups_by(by: str, scenario: Scenario, clients: Sequence[int]) -> dict[str, np.ndarray]:
    """Return whether each test sample [n] is in a group, by the group's name; `clients` are the ids of its clients."""
    data = scenario.test_set
    if by == "owner" and data.domain is not None:
        return {name: data.domain.cpu().numpy() == k for k, name in enumerate(data.domains)}
    if by == "group" and data.group is not None:
        ids = data.group.cpu().numpy()
        return {f"group {k}": ids == k for k in np.unique(ids)}
    if by == "owner":
        return {f"client {name}": np.isin(np.arange(len(data)), scenario.test[k]) for k, name in enumerate(clients)}
    columns = [k for k, name in enumerate(data.features) if name.partition("=")[0] == by]
    if not columns:
        names = dict.fromkeys(name.partition("=")[0] for name in data.features)
        why = "scenario.group names none in this run" if by == "group" else suggest_name(by, ["owner", *names])
        raise ConfigError(f"by = {by!r}: {why}")
    x = data.x[:, columns].cpu().numpy()
    if "=" in data.features[columns[0]]:
        return {data.features[k]: x[:, place] == 1 for place, k in enumerate(columns)}
    x, values = x[:, 0], np.unique(x)
    if len(values) <= _MOST_VALUES:
        return {f"{by}={value:g}": x == value for value in values}
    edges = -np.inf, *np.unique(np.quantile(x, [0.25, 0.5, 0.75])), np.inf
    return {f"{by} in ({a:g}, {b:g}]": (x > a) & (x <= b) for a, b in pairwise(edges)}


def _values_by_group(
    evaluator: Evaluator, groups: Mapping[str, np.ndarray], evaluation: EvaluationConfig
) -> list[dict[str, Any]]:
    """Return a record for each kind of test and group with its test samples, and its metrics over the samples of all
    tests; None where one is not defined, and where scores of several models would be ranked together."""
    all_kinds = metric_kinds(evaluation.metrics, evaluator.scenario.train_set.multi)
    kinds = {name: kind for name, kind in all_kinds.items() if name not in _NOT_BY_GROUP}
    scores_bytes, records = int(evaluation.scores_mib * 2**20), list[dict[str, Any]]()
    is_single = evaluator.model_kind == "global" and evaluator.test_name.startswith("global")  # newcomers' are tuned
    for (protocol, kept), (name, is_member) in product((evaluator.kept or {}).items(), groups.items()):
        tests = [(rows, is_member[rows], *scored) for rows, *scored in kept if is_member[rows].any()]
        parts = [Predictions(logits[of], labels[of], scores_bytes=scores_bytes) for _, of, logits, labels in tests]
        states = [MetricStates.new(part, kinds) for part in parts]
        merged = MetricStates.merged(states if is_single else [s.poolable() for s in states])
        samples = len({row for rows, of, *_ in tests for row in rows[of].tolist()})
        values = without_nan({metric: merged.value(metric) for metric in kinds})
        records += [{"protocol": protocol, "group": name, "samples": samples, **values}] if samples else []
    return records
