"""Advice on methods from Python."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.api import scenario as describe
from fedloom.api import scenario_section, suited
from fedloom.core.files import expand_home
from fedloom.core.process_settings import reproducible_settings
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.advice.advice import Advice, advise_scenario
from fedloom.diagnosis.advice.evidence import read_needs
from fedloom.diagnosis.advice.trial import with_trial
from fedloom.runs.config.ready_configs import find_config
from fedloom.runs.config.run_config import RunConfig, load, parse
from fedloom.runs.config.scenario_config import ScenarioConfig
from fedloom.runs.studies.live_progress import progress_listener


def advise(
    target: Any,
    *,
    trial: bool = False,
    out: Path | str | None = None,
    jobs: int = 1,
    progress: bool = True,
    **needs: Any,
) -> Advice:
    """Say which methods to try on a federation's data, and why; with `trial`, try them.

    Args:
        target: a config: its file, the name of a ready one, its keys as a mapping, or a `RunConfig`; or a scenario, as
            `fedloom.run` takes it.
        trial: train the short list and the reference on the scenario, and recommend by validation data.
        out: folder of the trial's runs; None keeps nothing on disk.
        jobs: processes of the trial at a time; more than one needs `out`, and a target that is no `Scenario`.
        progress: show that of the trial, as in `fedloom.run`.
        needs: constraints: goal, nets, traffic, stateless, newcomers, secure_sums and dp, as
            `fedloom.diagnosis.advice.evidence.Needs` describes them.

    Raises `ConfigError` for unknown and contradictory needs, for one client and one class, and for a trial without
    validation data.

    Example:
        >>> import fedloom as fl
        >>> digits = fl.scenario("digits", partition="dirichlet", alpha=0.1, clients=5)
        >>> fl.advise(digits, goal="personal", nets="different").reference
        'local'
    """
    wanted = read_needs(needs)
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
        return parse(load(find_config(Path(target)))), None
    if isinstance(target, Mapping):
        return parse(target), None
    if not isinstance(target, ScenarioConfig | Scenario):
        target = describe(target)
    scenario = target if isinstance(target, Scenario) else None
    return parse({"scenario": scenario_section(target), "model": suited(None, scenario)}), scenario
