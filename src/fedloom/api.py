"""The functions of the top level: `fedloom.scenario`, `run`, `compare`, `inspect`, `read`, `diagnose` and `advise`.

Diagnosis and advice are imported when they are called, because a run does not need them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from torch import nn

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import expand_home
from fedloom.core.plugins import with_plugins
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.text import split_names
from fedloom.data.scenario import Scenario
from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback, callback_list
from fedloom.runs.config.grid import variants, variants_with_references
from fedloom.runs.config.keys import is_python_object, with_user_models
from fedloom.runs.config.keywords import describe, scenario_section, suited
from fedloom.runs.config.run_config import RunConfig, load, note_unused_options, parse
from fedloom.runs.config.scenario_config import ScenarioConfig
from fedloom.runs.run import Existing
from fedloom.runs.run import run as run_config
from fedloom.runs.storage.finished_runs import STUDY_FILE, is_run, unfinished
from fedloom.runs.storage.schemas import leaves
from fedloom.runs.studies.live_progress import Event, Forward, progress_listener
from fedloom.runs.studies.outcome import collect
from fedloom.runs.studies.run_study import check_jobs
from fedloom.runs.studies.run_study import compare as compare_runs

if TYPE_CHECKING:
    from fedloom.diagnosis.advice import Advice
    from fedloom.diagnosis.diagnosis import Diagnosis
    from fedloom.keys import CompareKeys, NeedsKeys, RunKeys
    from fedloom.nets.net import Net
    from fedloom.results.report.holdings_table import Inspection

_log = logging.getLogger(__name__)

Described: TypeAlias = str | ScenarioConfig | Scenario | Mapping[str, Any]
Model: TypeAlias = str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module]


def run(
    method: str = "fedavg",
    scenario: Described | None = None,
    *,
    model: Model | Sequence[Model] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
    **keys: Unpack[RunKeys],
) -> Result:
    """Train and test one method.

    Args:
        method: name of the method; `base+wrapper` for a method in a wrapper.
        scenario: a description from `fedloom.scenario`, its arguments as a mapping, or your `Scenario`; a name is short
            for `fedloom.scenario(name)`.
        model: a name or a mapping as in a config; a module, which every run copies with its weights; or a function that
            makes one. A function may take `input_shape` and `num_classes`, and draws weights from the run's seed. With
            a list, clients have different models. None takes the default of the source; for your data that is mlp
            for features [n, d] and bilstm for token ids.
        out: run folder; None keeps nothing on disk.
        existing: what to do with a folder that holds an unfinished run of the same config: "refuse" it, "resume" it, or
            start "fresh".
        callbacks: objects that watch the run (`fedloom.runs.callbacks.Callback`).
        progress: show it, in a terminal and a notebook as bars, elsewhere as lines of the logger "fedloom".
        keys: those of a config. The ten that matter first: `rounds`, `participation`, `local_epochs`, `batch_size`,
            `optimizer`, `seed`, `evaluation`, `engine`, `precision`, and the section with the method's own options, as
            in `fedsc={"tau": 0.1}`. `fedloom config` explains them all.

    Raises what `fedloom.runs.run.run` raises.
    """
    if isinstance(method, ScenarioConfig | Scenario):
        raise ConfigError("method is a scenario; write fl.run('fedavg', scenario), or fl.run(scenario=scenario)")
    watchers, user_scenario = callback_list(callbacks), scenario if isinstance(scenario, Scenario) else None
    values = with_plugins({"method": method, **keys, "scenario": scenario_section(scenario)})
    if is_python_object(model):
        config = parse(values)
        with reproducible_settings():
            # Handed on to the run, because a model from Python is tried on samples, and data are read once.
            user_scenario = user_scenario or config.scenario.build(config.seed)
            model = with_user_models(model, user_scenario.train_set)
    config = parse({**values, "model": suited(model, user_scenario)})
    note_unused_options(dict(leaves(keys)), {config.method})
    with progress_listener([config], progress) as listener:
        result = run_config(
            config,
            scenario=user_scenario,
            out=None if out is None else expand_home(out),
            existing=existing,
            callbacks=[Forward(0, listener), *watchers],
            result_type=Result,
        )
        listener(Event(0, config.rounds))  # also for a run that had finished before
    return result


def compare(
    methods: str | Sequence[str] | None = None,
    scenario: Described | Sequence[Described] | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    model: Model | Sequence[Any] | None = None,
    out: Path | str | None = None,
    existing: Existing = "resume",
    jobs: int = 1,
    callbacks: Callback | Sequence[Callback] = (),
    references: bool = False,
    progress: bool = True,
    **keys: Unpack[CompareKeys],
) -> Comparison:
    """Train and test several methods with several seeds, on equal terms.

    Args:
        methods: names of methods, in a list or separated by commas; None compares fedavg and fedsc.
        scenario: a description or a `Scenario`, as for `run`; or a list of descriptions to compare.
        seeds: the seeds, or how many from 0 on; None takes 3.
        model: as for `run`; a list is one value, for clients that differ, and a list of lists compares several.
        out: folder of the run folders; runs that have finished there are reused. None keeps nothing on disk.
        existing: "resume" continues unfinished runs in `out`, "fresh" starts all again, "refuse" refuses them.
        jobs: processes at a time; more than one needs `out`, and a script with `if __name__ == "__main__":`, as always
            with Python's `multiprocessing`.
        callbacks: objects that watch the runs; they are copied for every run.
        references: add the rows that a gain has to beat, `REFERENCES` in `fedloom.runs.config.grid`.
        progress: as in `run`.
        keys: those of a config. Each may be a list of values, which are compared as well, e.g. `rounds=[10, 30]`,
            `fedsc={"tau": [0.1, 0.2]}`.

    Raises what `fedloom.runs.config.grid.variants` and `fedloom.runs.studies.run_study.compare` raise.
    """
    if isinstance(methods, Mapping):
        raise ConfigError("methods: a mapping of labels to keys is for fl.Study; fl.compare takes a list of names")
    check_jobs(jobs)
    user_scenario = scenario if isinstance(scenario, Scenario) else None
    scenarios = list(scenario) if isinstance(scenario, list | tuple) else [scenario]
    if len(scenarios) > 1 and any(isinstance(entry, Scenario) for entry in scenarios):
        raise ConfigError("scenario: scenarios that are objects can be compared only one at a time")
    sections = [scenario_section(entry) for entry in scenarios]
    if is_python_object(model):
        with reproducible_settings():
            # A model is described for the shapes and classes of the first scenario, which no seed changes.
            data = user_scenario or parse({"scenario": sections[0]}).scenario.build(run_seed=0)
            model = with_user_models(model, data.train_set)
    values = with_plugins({**keys, "model": suited(model, user_scenario), "scenario": sections})
    make = variants_with_references if references else variants
    configs = make(values, split_names(methods) if isinstance(methods, str) else methods, seeds)
    note_unused_options(dict(leaves(keys)), {config.method for config in configs})
    folder = None if out is None else expand_home(out)
    how: dict[str, Any] = {"existing": existing, "jobs": jobs, "scenario": user_scenario, "result_type": Result}
    how["callbacks"] = callback_list(callbacks)
    with progress_listener(configs, progress) as listener:
        return Comparison(compare_runs(configs, out=folder, listener=listener, **how))


def inspect(scenario: str | ScenarioConfig | Scenario | Any, seed: int = 0) -> Inspection:
    """Show who holds what: clients by classes, and how far they differ.

    A notebook shows the table and the picture; `print` shows the table, `save` writes the picture to a file.

    Args:
        scenario: a scenario as for `fedloom.run`, or your data as for `fedloom.scenario`.
        seed: the run seed; a description without `seed` is dealt by it.

    Raises `ConfigError` and `DataError` as `fedloom.scenario`.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed = {short_repr(seed)}: need a whole number, 0 or more")
    from fedloom.data import describe_scenario
    from fedloom.data.leak import leak
    from fedloom.results.report.holdings_table import Inspection

    dealt = _dealt(scenario, seed)
    return Inspection(describe_scenario(dealt) | {"leak": leak(dealt)})


def read(folder: Path | str, allow_mixed: bool = False) -> Result | Comparison:
    """Read finished runs: the folder of a run gives its `Result`, that of a comparison or a study a `Comparison`.

    A folder with several of them gives one comparison of all runs. Runs that have not finished are left out, and a
    warning of the log counts them.

    Args:
        folder: the folder.
        allow_mixed: join runs of different versions of fedloom.

    Raises `ConfigError` for a folder without a finished run, and `RunFolderError` for damaged files.
    """
    path = expand_home(folder)
    if path.is_file():
        raise ConfigError(f"{path}: a file; runs are folders, and fl.load reads the file of a model")
    if (path / STUDY_FILE).exists():
        from fedloom.study import Study

        return Study.read(path).results(allow_mixed)
    if is_run(path):
        result = Result.read(path)
        if result is None:
            raise ConfigError(f"{path}: {unfinished(path)}; the same call with existing='resume' continues it")
        return result
    collected = collect([path], allow_mixed)
    for left_out, why in collected.left_out:
        _log.warning("note: %s is left out: %s", left_out, why)
    return Comparison(collected.results)


def diagnose(target: Any, net: Net | None = None, seed: int = 0) -> Diagnosis:
    """Diagnose how heterogeneous data are: labels, amounts and features.

    Args:
        target: a scenario, as `fedloom.run` takes it; a config; or the result of a finished run.
        net: a network whose features are compared, for a scenario; None compares labels and amounts alone. A config and
            a result have their own.
        seed: the run seed; a scenario without `seed` is dealt by it.

    Returns the diagnosis: `rows()` in words, `facts()` as JSON values.

    Example:
        >>> import fedloom as fl
        >>> diagnosis = fl.diagnose(fl.scenario("digits", partition="iid", clients=5))
        >>> diagnosis.sentences()
        ['labels differ no more than random dealing explains']
    """
    from fedloom.diagnosis.diagnosis import diagnose_config, diagnose_result, diagnose_scenario

    with reproducible_settings():
        if isinstance(target, Result):
            return diagnose_result(target)
        if isinstance(target, RunConfig):
            return diagnose_config(target)
        return diagnose_scenario(_dealt(target, seed), net, seed=seed)


def _dealt(scenario: Any, seed: int) -> Scenario:
    """Return the scenario that `run` would train on with this seed."""
    if not isinstance(scenario, ScenarioConfig | Scenario):
        scenario = describe(scenario)
    with reproducible_settings():
        return scenario if isinstance(scenario, Scenario) else scenario.build(run_seed=seed)


def advise(
    target: Any,
    *,
    trial: bool = False,
    out: Path | str | None = None,
    jobs: int = 1,
    progress: bool = True,
    **needs: Unpack[NeedsKeys],
) -> Advice:
    """Say which methods to try on a federation's data, and why; with `trial`, try them.

    Args:
        target: a config: its file, the name of a ready one, its keys as a mapping, or a `RunConfig`; or a scenario, as
            `fedloom.run` takes it.
        trial: train the short list and the reference on the scenario, and recommend by validation data.
        out: folder of the trial's runs; None keeps nothing on disk.
        jobs: processes of the trial at a time; more than one needs `out`, and a target that is no `Scenario`.
        progress: show that of the trial, as in `fedloom.run`.
        needs: constraints: goal, nets, traffic, stateless, newcomers, secret_labels, secure_sums and dp, as
            `fedloom.diagnosis.evidence.Needs` describes them.

    Raises `ConfigError` for unknown and contradictory needs, for one client and one class, and for a trial without
    validation data.

    Example:
        >>> import fedloom as fl
        >>> digits = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=5)
        >>> fl.advise(digits, goal="personal", nets="different").reference
        'local'
    """
    from fedloom.diagnosis.advice import advise_scenario, with_trial
    from fedloom.diagnosis.evidence import Needs
    from fedloom.runs.config.keys import built

    wanted = built(Needs, needs, "")
    config, scenario = _config_of(target)
    with reproducible_settings():
        dealt = config.scenario.build(config.seed) if scenario is None else scenario
        advice = advise_scenario(config, dealt, wanted)
    if not trial:
        return advice
    folder, show = None if out is None else expand_home(out), partial(progress_listener, progress=progress)
    return with_trial(advice, config, scenario=scenario, out=folder, jobs=jobs, show=show)


def _config_of(target: Any) -> tuple[RunConfig, Scenario | None]:
    """Return the config that a target stands for, and the scenario where it is an object."""
    if isinstance(target, RunConfig):
        return target, None
    if isinstance(target, str | Path):
        from fedloom.runs.config.reference import find_config

        return parse(load(find_config(Path(target)))), None
    if isinstance(target, Mapping):
        return parse(target), None
    if not isinstance(target, ScenarioConfig | Scenario):
        target = describe(target)
    scenario = target if isinstance(target, Scenario) else None
    return parse({"scenario": scenario_section(target), "model": suited(None, scenario)}), scenario
