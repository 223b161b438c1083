"""Scenarios from Python values. The types of their keys are in `keys.pyi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, overload

from fedloom.core.errors import ConfigError
from fedloom.core.process_settings import reproducible_settings
from fedloom.data.scenario import Scenario
from fedloom.data.sources import SOURCES
from fedloom.data.sources.nodes import Nodes
from fedloom.data.sources.python import splits_from
from fedloom.data.sources.tables.frames import as_parquet, is_frame, title_of
from fedloom.runs.config.run_config import parse
from fedloom.runs.config.scenario_config import ScenarioConfig

if TYPE_CHECKING:
    from fedloom.keys import ScenarioKeys


@overload
def scenario(source: str, **keys: Unpack[ScenarioKeys]) -> ScenarioConfig: ...
@overload
def scenario(source: Any, **keys: Unpack[ScenarioKeys]) -> Scenario: ...
def scenario(source: Any = None, *more: Any, **keys: Any) -> ScenarioConfig | Scenario:
    """Describe a scenario, e.g. `scenario("digits", partition="dirichlet", alpha=0.1, clients=10)`.

    Args:
        source: the name of a source, or your data: a data frame of pandas, polars or Arrow with `label=` and the other
            keys of the source `parquet`, a pair of arrays (x, y), a torch Dataset of (sample, label), a list of either
            (one per client), or a Hugging Face `Dataset` or `DatasetDict`. For options, pass the result of
            `fedloom.data.from_arrays`, `from_torch`, `from_clients` or `from_huggingface`. Your data are dealt at once,
            by `seed` (default 0), and every run gets the same clients.
        keys: keys of the config's section `scenario`, and of the source, the partition and the like that they name.

    Without `partition` and its keys, each owner becomes a client if samples have owners; otherwise the samples are
    dealt at random (`iid`). Raises `ConfigError` for unknown names or keys and for values out of range, and `DataError`
    for data of an unknown type or of shapes that do not fit."""
    if more:
        raise ConfigError("fl.scenario takes one value and keys; samples and labels are a pair: fl.scenario((x, y))")
    if is_frame(source):
        return _of_frame(source, keys)
    with reproducible_settings():
        splits = None if isinstance(source, str) else splits_from(source, keys.get("labels", "single"))
    named = {"source": source} if splits is None else {"source": "given", "digest": ""}
    dealt: dict[str, Any] = {}
    if splits is not None and splits.owner_count and keys.get("partition", "natural") == "natural":
        dealt = {"partition": "natural", "clients": splits.owner_count}
    # A key that only a partition knows, as alpha, selects the default partition of the config, dirichlet.
    elif keys.keys() <= {*ScenarioConfig.model_fields, *SOURCES.get(named["source"]).model_fields}:
        dealt = {} if named["source"] == Nodes.kind else {"partition": "iid"}
    described = parse({"scenario": {**named, **dealt, **keys}}).scenario
    if splits is None:
        return described
    with reproducible_settings():
        return described.build(run_seed=0, splits=splits)


def _of_frame(frame: Any, keys: Mapping[str, Any]) -> Scenario:
    if "label" not in keys:
        raise ConfigError(f"label: name the column of {title_of(frame)} that holds the classes, as label='diagnosis'")
    if keys.get("owner"):
        keys = {"partition": "natural", **keys}
    with as_parquet(frame) as (path, named), reproducible_settings():
        dealt: Scenario = describe("parquet", **{**keys, "path": str(path)}).build(run_seed=0)
    return replace(dealt, notes=tuple(map(named, dealt.notes)))


describe = scenario  # other functions have a parameter of that name


def suited(model: Any, user_scenario: Scenario | None) -> Any:
    """Return `model`; if it is None and the user's data are no images, the name of a model that takes them."""
    train_set = None if user_scenario is None else user_scenario.train_set
    if model is not None or train_set is None or train_set.x.dim() != 2:
        return model
    return "mlp" if train_set.x.is_floating_point() else "bilstm"


def scenario_section(scenario: Any) -> dict[str, Any]:
    """Return the section `scenario` of a config for a name, a mapping or a description; else raise `ConfigError`."""
    if isinstance(scenario, str):
        scenario = describe(scenario)
    if isinstance(scenario, Mapping) and isinstance(scenario.get("source"), str):
        scenario = describe(**scenario)
    if isinstance(scenario, Scenario):
        partition = "natural" if scenario.by_owners else "iid"
        return {"source": "given", "digest": scenario.digest(), "partition": partition, "clients": scenario.clients}
    if not isinstance(scenario, ScenarioConfig):
        problem = "missing" if scenario is None else f"a {type(scenario).__name__}"
        need = "need the name of a source, its keys as a mapping, or your data as fl.scenario((x, y)) gives them"
        need = "make it one: fl.scenario(df, label='diagnosis')" if is_frame(scenario) else need
        raise ConfigError(f"scenario is {problem}; {need}")
    return scenario.resolved()
