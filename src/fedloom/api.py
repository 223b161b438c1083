"""The library's Python door: scenarios and runs in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.data.scenario import Scenario
from fedloom.data.sources import SOURCES, own_data
from fedloom.study.callbacks import Callback
from fedloom.study.config import ScenarioConfig, parse
from fedloom.study.models import in_words, is_given
from fedloom.study.results import Result
from fedloom.study.run import Existing
from fedloom.study.run import run as run_config

Model: TypeAlias = str | Mapping[str, Any] | nn.Module | Callable[..., nn.Module]


@overload
def scenario(source: str, **keys: Any) -> ScenarioConfig: ...
@overload
def scenario(source: Any, **keys: Any) -> Scenario: ...
def scenario(source: Any, **keys: Any) -> ScenarioConfig | Scenario:
    """Describe a scenario, e.g. `scenario("digits", partition="dirichlet", alpha=0.1, clients=10)`.

    source: the name of a source, or data of your own: a pair of arrays (x, y), a torch Dataset of (sample, label), a
    list of either (one a client), a Hugging Face `Dataset` or `DatasetDict`, or what `fedloom.data.from_arrays`,
    `from_torch`, `from_clients` and `from_huggingface` give, which take options. Data of your own are dealt at once, by
    `seed` (default 0): the same clients for every run.

    Without `partition` and its keys, each owner becomes a client where samples have owners; other samples are dealt
    alike (`iid`). Raises `ConfigError` for unknown names or keys and for values out of range, `DataError` for data that
    it does not know or that do not fit.
    """
    splits = None if isinstance(source, str) else own_data(source)
    named = {"source": source} if splits is None else {"source": "given", "digest": ""}
    dealt: dict[str, Any] = {}
    if splits is not None and splits.owners and keys.get("partition", "natural") == "natural":
        dealt = {"partition": "natural", "clients": splits.owners}
    elif keys.keys() <= {*ScenarioConfig.model_fields, *SOURCES.get(named["source"]).model_fields}:
        dealt = {"partition": "iid"}
    described = parse({"scenario": {**named, **dealt, **keys}}).scenario
    return described if splits is None else described.build(run_seed=0, splits=splits)


describe = scenario  # `run` has a parameter of that name


def run(
    method: str = "fedavg",
    *,
    scenario: str | ScenarioConfig | Scenario,
    model: Model | Sequence[Model] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
    **keys: Any,
) -> Result:
    """Train and test one method; `keys` are those of a config (rounds, participation, seed, optimizer, ...).

    scenario: a description from `fedloom.scenario`, or a `Scenario` of your own; a name is `fedloom.scenario(name)`.
    model: a name or a mapping as in a config; a module, of which every run trains a copy with its weights; or a
    function that makes one from the run's seed, called with those of `input_shape` and `num_classes` that it names; a
    list for clients that differ. out: run folder, None keeps nothing on disk. Raises what `fedloom.study.run.run`
    raises.
    """
    if isinstance(scenario, str):
        scenario = describe(scenario)
    if not isinstance(scenario, ScenarioConfig | Scenario):
        kind = type(scenario).__name__
        raise ConfigError(f"scenario is a {kind}; need the name of a source, or what fl.scenario(...) gives")
    own = scenario if isinstance(scenario, Scenario) else None
    if isinstance(scenario, Scenario):
        described = {
            "source": "given",
            "digest": scenario.digest(),
            "partition": "iid",
            "clients": scenario.clients,
        }
    else:
        described = scenario.resolved()
    values = {"method": method, **keys, "scenario": described}
    if is_given(model):
        config = parse(values)
        own = own or config.scenario.build(config.seed)
        model = in_words(model, own.train_set)
    config = parse({**values, "model": model})
    return run_config(
        config, scenario=own, out=None if out is None else Path(out), existing=existing, callbacks=callbacks
    )
