"""The library's Python door: scenarios and runs in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Unpack, overload

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_home
from fedloom.core.process_settings import reproducible_settings
from fedloom.data.scenario import Scenario
from fedloom.data.sources import SOURCES, splits_from
from fedloom.data.sources.nodes import Nodes
from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.grid import variants
from fedloom.runs.config.keywords import CompareKeywords, RunKeywords, ScenarioKeywords
from fedloom.runs.config.model_key import is_python_object, with_user_models
from fedloom.runs.config.references import variants_with_references
from fedloom.runs.config.run_config import parse
from fedloom.runs.config.scenario_config import ScenarioConfig
from fedloom.runs.run import Existing
from fedloom.runs.run import run as run_config
from fedloom.runs.studies.compare import compare as compare_runs
from fedloom.runs.studies.events import Event, Forward
from fedloom.runs.studies.live_progress import progress_listener

Model: TypeAlias = str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module]


# First overloads: keywords that editors complete. The others take sections of methods, and keys of parts, as well.
@overload
def scenario(source: str, **keys: Unpack[ScenarioKeywords]) -> ScenarioConfig: ...
@overload
def scenario(source: str, **keys: Any) -> ScenarioConfig: ...
@overload
def scenario(source: Any, **keys: Any) -> Scenario: ...
def scenario(source: Any, **keys: Any) -> ScenarioConfig | Scenario:
    """Describe a scenario, e.g. `scenario("digits", partition="dirichlet", alpha=0.1, clients=10)`.

    Args:
        source: the name of a source, or data of your own: a pair of arrays (x, y), a torch Dataset of (sample, label),
            a list of either (one a client), a Hugging Face `Dataset` or `DatasetDict`, or what
            `fedloom.data.from_arrays`, `from_torch`, `from_clients` and `from_huggingface` give, which take options.
            Data of your own are dealt at once, by `seed` (default 0): the same clients for every run.
        keys: keys of the config's section `scenario`, and of the source, the partition and the like that they name.

    Without `partition` and its keys, each owner becomes a client where samples have owners; other samples are dealt
    alike (`iid`). Raises `ConfigError` for unknown names or keys and for values out of range, `DataError` for data that
    it does not know or that do not fit.
    """
    with reproducible_settings():
        splits = None if isinstance(source, str) else splits_from(source)
    named = {"source": source} if splits is None else {"source": "given", "digest": ""}
    dealt: dict[str, Any] = {}
    if splits is not None and splits.owner_count and keys.get("partition", "natural") == "natural":
        dealt = {"partition": "natural", "clients": splits.owner_count}
    elif keys.keys() <= {*ScenarioConfig.model_fields, *SOURCES.get(named["source"]).model_fields}:
        dealt = {} if named["source"] == Nodes.kind else {"partition": "iid"}
    described = parse({"scenario": {**named, **dealt, **keys}}).scenario
    if splits is None:
        return described
    with reproducible_settings():
        return described.build(run_seed=0, splits=splits)


describe = scenario  # `run` has a parameter of that name


@overload
def run(
    method: str = ...,
    *,
    scenario: str | ScenarioConfig | Scenario | Mapping[str, Any],
    model: Model | Sequence[Model] | None = ...,
    out: Path | str | None = ...,
    existing: Existing = ...,
    callbacks: Sequence[Callback] = ...,
    progress: bool = ...,
    **keys: Unpack[RunKeywords],
) -> Result: ...
@overload
def run(method: str = ..., *, scenario: Any, **keys: Any) -> Result: ...
def run(
    method: str = "fedavg",
    *,
    scenario: str | ScenarioConfig | Scenario | Mapping[str, Any],
    model: Model | Sequence[Model] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **keys: Any,
) -> Result:
    """Train and test one method.

    Args:
        method: name of the method; `base+wrapper` for a method in a wrapper.
        scenario: a description from `fedloom.scenario`, its arguments as a mapping, or a `Scenario` of your own; a name
            is `fedloom.scenario(name)`.
        model: a name or a mapping as in a config; a module, of which every run trains a copy with its weights; or a
            function that makes one from the run's seed, called with those of `input_shape` and `num_classes` that it
            names; a list for clients that differ; None takes mlp for features [n, d] of your own, bilstm for token ids
            of your own, and else what suits the source.
        out: run folder; None keeps nothing on disk.
        existing: what to do with a folder that holds an unfinished run of the same config: "refuse" it, "resume" it, or
            start "fresh".
        callbacks: objects that watch the run (`fedloom.runs.callbacks.Callback`).
        progress: show it, in a terminal and a notebook as bars, elsewhere as lines of the logger "fedloom".
        keys: those of a config (rounds, participation, seed, optimizer, ...).

    Raises what `fedloom.runs.run.run` raises.
    """
    user_scenario = scenario if isinstance(scenario, Scenario) else None
    values = {"method": method, **keys, "scenario": scenario_section(scenario)}
    if is_python_object(model):
        config = parse(values)
        with reproducible_settings():
            user_scenario = user_scenario or config.scenario.build(config.seed)
            model = with_user_models(model, user_scenario.train_set)
    config = parse({**values, "model": suited(model, user_scenario)})
    with progress_listener([config], progress) as listener:
        result = run_config(
            config,
            scenario=user_scenario,
            out=None if out is None else expand_home(out),
            existing=existing,
            callbacks=[Forward(0, listener), *callbacks],
            result_type=Result,
        )
        listener(Event(0, config.rounds))  # also for a run that had finished before
    return result


@overload
def compare(
    methods: str | Sequence[str] | None = ...,
    *,
    scenario: str | ScenarioConfig | Scenario | Mapping[str, Any] | Sequence[str | ScenarioConfig | Mapping[str, Any]],
    seeds: int | Sequence[int] | None = ...,
    model: Model | Sequence[Any] | None = ...,
    out: Path | str | None = ...,
    existing: Existing = ...,
    jobs: int = ...,
    callbacks: Sequence[Callback] = ...,
    references: bool = ...,
    progress: bool = ...,
    **keys: Unpack[CompareKeywords],
) -> Comparison: ...
@overload
def compare(methods: str | Sequence[str] | None = ..., *, scenario: Any, **keys: Any) -> Comparison: ...
def compare(
    methods: str | Sequence[str] | None = None,
    *,
    scenario: str | ScenarioConfig | Scenario | Mapping[str, Any] | Sequence[str | ScenarioConfig | Mapping[str, Any]],
    seeds: int | Sequence[int] | None = None,
    model: Model | Sequence[Any] | None = None,
    out: Path | str | None = None,
    existing: Existing = "resume",
    jobs: int = 1,
    callbacks: Sequence[Callback] = (),
    references: bool = False,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Train and test several methods with several seeds, on equal terms.

    Args:
        methods: names of methods; None compares fedavg and fedsc.
        scenario: a description or a `Scenario`, as for `run`; or a list of descriptions to compare.
        seeds: the seeds, or how many from 0 on; None takes 3.
        model: as for `run`; a list is one value, for clients that differ, and a list of lists compares several.
        out: folder of the run folders; runs that have finished there are reused. None keeps nothing on disk.
        existing: "resume" continues unfinished runs in `out`, "fresh" starts all again, "refuse" refuses them.
        jobs: processes at a time; more than one needs `out`, and, as Python's `multiprocessing` does, a script whose
            work stands below `if __name__ == "__main__":`.
        callbacks: objects that watch the runs; every run gets copies of its own.
        references: add the rows that a gain has to beat, `REFERENCES` in `fedloom.runs.config.references`.
        progress: as in `run`.
        keys: those of a config. Each may be a list of values, which are compared as well, e.g. `rounds=[10, 30]`,
            `fedsc={"tau": [0.1, 0.2]}`.

    Raises what `fedloom.runs.config.grid.variants` and `fedloom.runs.studies.compare.compare` raise.
    """
    user_scenario = scenario if isinstance(scenario, Scenario) else None
    scenarios = list(scenario) if isinstance(scenario, list | tuple) else [scenario]
    if len(scenarios) > 1 and any(isinstance(entry, Scenario) for entry in scenarios):
        raise ConfigError("scenario: scenarios that are objects can be compared only one at a time")
    sections = [scenario_section(entry) for entry in scenarios]
    if is_python_object(model):
        with reproducible_settings():
            data = user_scenario or parse({"scenario": sections[0]}).scenario.build(run_seed=0)
            model = with_user_models(model, data.train_set)
    values = {**keys, "model": suited(model, user_scenario), "scenario": sections}
    make = variants_with_references if references else variants
    configs = make(values, [methods] if isinstance(methods, str) else methods, seeds)
    folder = None if out is None else expand_home(out)
    how: dict[str, Any] = {"existing": existing, "jobs": jobs, "scenario": user_scenario, "callbacks": callbacks}
    how["result_type"] = Result
    with progress_listener(configs, progress) as listener:
        return Comparison(compare_runs(configs, out=folder, listener=listener, **how))


def suited(model: Any, user_scenario: Scenario | None) -> Any:
    """`model`, or for data of one's own without images the name of one that takes them."""
    train_set = None if user_scenario is None else user_scenario.train_set
    if model is not None or train_set is None or train_set.x.dim() != 2:
        return model
    return "mlp" if train_set.x.is_floating_point() else "bilstm"


def scenario_section(scenario: Any) -> dict[str, Any]:
    """The section of a config that stands for a scenario. Raises `ConfigError` for what is none."""
    if isinstance(scenario, str):
        scenario = describe(scenario)
    if isinstance(scenario, Mapping) and isinstance(scenario.get("source"), str):
        scenario = describe(**scenario)
    if isinstance(scenario, Scenario):
        partition = "natural" if scenario.by_owners else "iid"
        return {"source": "given", "digest": scenario.digest(), "partition": partition, "clients": scenario.clients}
    if not isinstance(scenario, ScenarioConfig):
        kind = type(scenario).__name__
        raise ConfigError(
            f"scenario is a {kind}; need the name of a source, its keys as a mapping, or what fl.scenario(...) gives"
        )
    return scenario.resolved()
