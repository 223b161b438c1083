"""The library's Python door: scenarios and runs in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from fedloom.data.scenario import Scenario
from fedloom.data.sources.source import Splits
from fedloom.study.callbacks import Callback
from fedloom.study.compare import compare as compare_runs
from fedloom.study.comparison import Comparison
from fedloom.study.config import ScenarioConfig, parse
from fedloom.study.grid import variants
from fedloom.study.results import Result
from fedloom.study.run import Existing
from fedloom.study.run import run as run_config


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
    model: str | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    callbacks: Sequence[Callback] = (),
    **keys: Any,
) -> Result:
    """Train and test one method; `keys` are those of a config (rounds, participation, seed, optimizer, ...).

    scenario: a description from `fedloom.scenario`, or a `Scenario` of your own. out: run folder, None keeps nothing
    on disk. Raises what `fedloom.study.run.run` raises.
    """
    own = scenario if isinstance(scenario, Scenario) else None
    config = parse({"method": method, "model": model, **keys, "scenario": _described(scenario)})
    return run_config(
        config, scenario=own, out=None if out is None else Path(out), existing=existing, callbacks=callbacks
    )


def compare(
    methods: Sequence[str] | None = None,
    *,
    scenario: ScenarioConfig | Scenario | Sequence[ScenarioConfig],
    seeds: int | Sequence[int] | None = None,
    out: Path | str | None = None,
    existing: Existing = "resume",
    jobs: int = 1,
    callbacks: Sequence[Callback] = (),
    **keys: Any,
) -> Comparison:
    """Train and test several methods with several seeds, on equal terms.

    methods: None compares fedavg and fedsc. seeds: the seeds, or how many from 0 on (3). Every key of `keys` may be a
    list of values, which are compared as well, e.g. `rounds=[10, 30]`, `fedsc={"tau": [0.1, 0.2]}`; so may `scenario`.
    Where a key takes a list itself, a list is one value, and a list of lists compares several. out: folder of the run
    folders; runs that have finished there are reused. jobs: processes at a time; more than one needs `out`, and, as
    Python's `multiprocessing` does, a script whose work stands below `if __name__ == "__main__":`. callbacks: every run
    gets copies of its own. Raises what `fedloom.study.grid.variants` and `fedloom.study.compare.compare` raise.
    """
    own = scenario if isinstance(scenario, Scenario) else None
    if isinstance(scenario, Scenario | ScenarioConfig):
        described: Any = _described(scenario)
    else:
        described = [_described(one) for one in scenario]
    configs = variants({**keys, "scenario": described}, methods, seeds)
    folder = None if out is None else Path(out)
    return Comparison(
        compare_runs(configs, out=folder, existing=existing, jobs=jobs, scenario=own, callbacks=callbacks)
    )


def _described(scenario: ScenarioConfig | Scenario) -> dict[str, Any]:
    """The section of a config that stands for a scenario."""
    if isinstance(scenario, Scenario):
        return {"source": "given", "digest": scenario.digest(), "partition": "iid", "clients": scenario.clients}
    return scenario.resolved()
