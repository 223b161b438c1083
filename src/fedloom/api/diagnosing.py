"""Diagnose a federation from Python."""

from __future__ import annotations

from typing import Any

from fedloom.api import scenario as describe
from fedloom.core.process_settings import reproducible_settings
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.diagnosis import Diagnosis, diagnose_config, diagnose_result, diagnose_scenario
from fedloom.nets.net import Net
from fedloom.results.result import Result
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.scenario_config import ScenarioConfig


def diagnose(target: Any, net: Net | None = None, seed: int = 0) -> Diagnosis:
    """Diagnose how heterogeneous data are: labels, amounts and features.

    Args:
        target: a scenario, as `fedloom.run` takes it; a config; or the result of a finished run.
        net: a network whose features are compared, for a scenario; None compares labels and amounts alone. A config and
            a result have their own.
        seed: the run seed, by which a scenario is dealt that has no seed of its own.

    Returns the diagnosis: `rows()` in words, `facts()` as JSON values.

    Example:
        >>> import fedloom as fl
        >>> diagnosis = fl.diagnose(fl.scenario("digits", partition="iid", clients=5))
        >>> diagnosis.sentences()
        ['labels differ no more than random dealing explains']
    """
    with reproducible_settings():
        if isinstance(target, Result):
            return diagnose_result(target)
        if isinstance(target, RunConfig):
            return diagnose_config(target)
        if not isinstance(target, ScenarioConfig | Scenario):
            target = describe(target)
        dealt = target if isinstance(target, Scenario) else target.build(run_seed=seed)
        return diagnose_scenario(dealt, net, seed=seed)
