"""The library's Python door: scenarios and runs in a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, overload

from torch import nn

from fedloom.data.scenario import Scenario
from fedloom.data.sources.source import Splits
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
def scenario(source: Splits, **keys: Any) -> Scenario: ...
def scenario(source: str | Splits, **keys: Any) -> ScenarioConfig | Scenario:
    """Describe a scenario, e.g. `scenario("digits", partition="dirichlet", alpha=0.1, clients=10)`.

    Data of your own (`fedloom.data.from_arrays`, `from_torch`) are dealt at once, by `seed` (default 0): the same
    clients for every run. Raises `ConfigError` for unknown names or keys, and for values out of range.
    """
    if isinstance(source, str):
        return parse({"scenario": {"source": source, **keys}}).scenario
    described = parse({"scenario": {"source": "given", "digest": "", **keys}}).scenario
    return described.build(run_seed=0, splits=source)


def run(
    method: str = "fedavg",
    *,
    scenario: ScenarioConfig | Scenario,
    model: Model | Sequence[Model] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
    **keys: Any,
) -> Result:
    """Train and test one method; `keys` are those of a config (rounds, participation, seed, optimizer, ...).

    scenario: a description from `fedloom.scenario`, or a `Scenario` of your own. model: a name or a mapping as in a
    config; a module, of which every run trains a copy with its weights; or a function that makes one from the run's
    seed, called with those of `input_shape` and `num_classes` that it names; a list for clients that differ. out: run
    folder, None keeps nothing on disk. Raises what `fedloom.study.run.run` raises.
    """
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
