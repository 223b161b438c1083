"""Look at a scenario before any training."""

from __future__ import annotations

from typing import Any

from fedloom.api import scenario as describe
from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.process_settings import reproducible_settings
from fedloom.data import describe_scenario
from fedloom.data.scenario import Scenario
from fedloom.results.report.inspection import Inspection
from fedloom.runs.config.scenario_config import ScenarioConfig


def inspect(scenario: str | ScenarioConfig | Scenario | Any, seed: int = 0) -> Inspection:
    """Show who holds what: clients by classes, and how far they differ.

    A notebook shows the table and the picture; `print` shows the table, `save` writes the picture to a file.

    Args:
        scenario: what `fedloom.run` takes, or data of your own, as `fedloom.scenario` takes them.
        seed: the run seed, by which a description is dealt that has no seed of its own.

    Raises `ConfigError` and `DataError` as `fedloom.scenario`.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed = {short_repr(seed)}: need a whole number, 0 or more")
    if not isinstance(scenario, ScenarioConfig | Scenario):
        scenario = describe(scenario)
    with reproducible_settings():
        dealt = scenario if isinstance(scenario, Scenario) else scenario.build(run_seed=seed)
    return Inspection(describe_scenario(dealt))
