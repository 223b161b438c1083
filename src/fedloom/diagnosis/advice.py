"""Advice on methods: a short list with the gain to expect of each, from the needs and measured evidence."""

import contextlib
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import ConfigError, MissingPackageError
from fedloom.core.text import counted, listed
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.advice_trial import TrialOutcome, planned, run_trial
from fedloom.diagnosis.diagnosis import Diagnosis, diagnose_scenario
from fedloom.diagnosis.evidence import GOALS, Forecast, Needs, evidence, evidence_for, fitted
from fedloom.engine.jobs import require_data
from fedloom.methods import METHODS
from fedloom.methods.catalogue import reveals
from fedloom.methods.contract.contexts import Diagnostic, ServerContext
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.setup import Setup

LONGEST = 5  # methods of a short list


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """A short list of methods for one federation, with the gain to expect of each.

    Attributes:
        needs: the constraints, goal and networks included.
        diagnosis: the skew of the data's labels.
        evidence: the baseline of all gains, the measured settings, and the forecasts of all methods.
        suggestions: forecasts of at most five methods that meet the needs, the highest gain first.
        reference: the plain method that meets the needs: FedAvg, for personal models fine-tuned, or local training.
        left_out: why methods with a higher expected gain are not in the list, by method.
        unmeasured: methods that meet the needs and have no forecast.
        effort: runs of a trial at most, and the minutes that they train on this machine.
        notes: unusual properties of the data that no study covers.
        trial: the outcome of a trial on the user's scenario, None without one.
    """

    needs: Needs
    diagnosis: Diagnosis
    evidence: Mapping[str, Any]
    suggestions: tuple[Forecast, ...]
    reference: str | None
    left_out: Mapping[str, str]
    unmeasured: tuple[str, ...]
    effort: tuple[int, float] = (0, 0.0)
    notes: tuple[str, ...] = ()
    trial: TrialOutcome | None = None

    def __repr__(self) -> str:
        outcome = "" if self.trial is None else f"; {self.trial.sentence()}"
        return f"Advice(try {', '.join(self.methods) or 'none'}; the reference is {self.reference}{outcome})"

    @property
    def methods(self) -> list[str]:
        """The names of the short list, first the one to try first."""
        return [suggestion.method for suggestion in self.suggestions]

    @property
    def first(self) -> str | None:
        """The method to try first: that of the trial, else the first of the short list, else the reference."""
        return self.trial.recommended if self.trial is not None else next(iter(self.methods), self.reference)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The short list in words: method, expected gain, probability of a gain, measured gains, and costs."""
        rows = []
        for told in [forecast.facts() for forecast in self.suggestions]:
            expected = "{:+.1f} points ({:+.1f} to {:+.1f})".format(told["gain"], *told["interval"])
            measured = f"{told['lowest']:+.1f} to {told['highest']:+.1f} in {counted(told['settings'], 'setting')}"
            shares = ((told["traits"][noun], noun) for noun in ("traffic", "compute"))
            costs = [f"{noun} not measured" if share is None else f"{share:g} × {noun}" for share, noun in shares]
            costs.append("a state at clients" if told["traits"]["state"] else "no state")
            rows.append((told["method"], expected, f"{100 * told['better']:.0f} %", measured, ", ".join(costs)))
        return rows

    def sentences(self) -> list[str]:
        """The reasons, one sentence each."""
        baseline, measured = self.evidence["baseline"], len(self.evidence["settings"])
        texts = [
            f"for {GOALS[self.needs.goal or 'global']}: forecast from gains over {baseline} in {measured} settings",
            "the skew of your data plays no part: with it, the forecast was no better on settings left out",
        ]
        if not self.suggestions:
            plain = "no plain method meets them" if self.reference is None else f"take {self.reference}"
            texts.append(f"no method with a forecast meets the needs; {plain}")
        elif self.suggestions[0].gain < 0.5:
            texts.append(f"hardly any gain is expected: {baseline} may well be as good, and a trial decides")
        for why in dict.fromkeys(self.left_out.values()):
            names = [method for method, reason in self.left_out.items() if reason == why]
            texts.append(f"higher gains are expected, but {why}: {', '.join(names)}")
        if self.unmeasured and len(self.suggestions) < LONGEST:
            texts.append(f"meet the needs, but were not measured: {', '.join(self.unmeasured)}")
        told = {name: reveals(METHODS.get(name)) for name in filter(None, [*self.methods, self.reference])}
        for what in dict.fromkeys(told.values()):
            texts.append(f"uploads reveal {what}: {', '.join(name for name in told if told[name] == what)}")
        if self.trial is not None:
            texts.append(self.trial.sentence())
        elif self.reference is not None:
            runs, minutes = self.effort
            words = f"at most {counted(runs, 'run')}, which train for about {minutes:.2g} minutes here"
            texts.append(f"a trial (--trial) compares the list with {self.reference} on your data: {words}")
        return texts

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "first": self.first,
            "needs": self.needs.model_dump(),
            "baseline": self.evidence["baseline"],
            "settings": self.evidence["settings"],
            "methods": [forecast.facts() for forecast in self.suggestions],
            "reference": self.reference,
            "left_out": dict(self.left_out),
            "unmeasured": list(self.unmeasured),
            "effort": {"runs": self.effort[0], "minutes": self.effort[1]},
            "sentences": self.sentences(),
            "notes": list(self.notes),
            "trial": None if self.trial is None else self.trial.facts(),
        }


def advise_scenario(config: RunConfig, scenario: Scenario, needs: Needs) -> Advice:
    """Return advice on the methods for a config, whose method does not matter, and the scenario that it describes."""
    needs = needs.resolved(config)
    _refuse_contradictions(needs)
    if not scenario.remote:  # data on nodes are refused by the diagnosis
        counts = scenario.class_counts()
        for noun, axis in (("client", 1), ("class", 0)):
            if (held := int((counts.sum(axis) > 0).sum())) < 2:
                raise ConfigError(f"{scenario.name}: {held} {noun} with samples; advice needs two or more of each")
    diagnosis = diagnose_scenario(scenario, seed=config.seed)
    found, traits = evidence_for(needs), evidence()["traits"]
    suggestions: list[Forecast] = []
    left_out: dict[str, str] = {}
    for forecast in found["methods"]:
        if len(suggestions) == LONGEST:  # forecasts come highest gain first, so no later one is better
            break
        why = reason_against(forecast.method, needs, config, scenario)
        if why is None:
            suggestions.append(forecast)
        else:
            left_out[forecast.method] = why
    plain = ("fedavg",) if needs.goal == "global" else ("fedavg+finetune", "local")
    reference = next((name for name in plain if reason_against(name, needs, config, scenario) is None), None)
    # The evidence covers few settings, so methods that fit and were not measured are named, too.
    known = {*plain, *(forecast.method for forecast in found["methods"])}
    unmeasured = tuple(name for name, of in traits.items() if name not in known and not list(needs.unmet(of)))
    effort = (0, 0.0) if reference is None else _effort(config, scenario, needs, suggestions)
    notes = tuple(_notes(diagnosis, needs))
    return Advice(needs, diagnosis, found, tuple(suggestions), reference, left_out, unmeasured, effort, notes)


def with_trial(advice: Advice, config: RunConfig, **options: Any) -> Advice:
    """Return the advice for a config with the outcome of a trial of its short list. options: those of `run_trial`."""
    if advice.reference is None:
        raise ConfigError("a trial: no plain method meets these needs, so no gain can be told; leave out --trial")
    return replace(advice, trial=run_trial(config, advice.methods, advice.reference, advice.needs, **options))


def reason_against(method: str, needs: Needs, config: RunConfig, scenario: Scenario) -> str | None:
    """Return why a method is not for this federation: a need, or what refuses it in this config; None if nothing."""
    if unmet := list(needs.unmet(evidence()["traits"][method])):
        return f"without {listed(unmet)}"
    candidate = fitted(config, method, needs)
    try:
        doubts = _examined(candidate, scenario)
        if needs.dp:
            _examined(candidate.model_copy(update={"method": f"{method}+dp"}), scenario)
    except ConfigError as error:
        return f"refused in this config ({error})"
    return f"not as meant in this config ({doubts[0].message})" if doubts else None


def _examined(config: RunConfig, scenario: Scenario) -> list[Diagnostic]:
    """Return the doubts that a run would report before its first round; `ConfigError` if it would be refused."""
    setup = Setup.from_config(config, *_shape(scenario))
    setup.worker(config, scenario.train_set)
    require_data(setup.method, scenario)
    doubts: list[Diagnostic] = []
    with contextlib.suppress(MissingPackageError):  # a fact of this environment, not of the method
        doubts = setup.method.examine(setup.tasks, max(1, round(config.participation * scenario.clients)))
    setup.method.server_init(ServerContext(setup.tasks[0], 0))
    return doubts


def _refuse_contradictions(needs: Needs) -> None:
    """Raise `ConfigError` if no method meets the needs, naming the one without which most methods do."""

    def count(needs: Needs) -> int:
        return sum(not list(needs.unmet(traits)) for traits in evidence()["traits"].values())

    if count(needs):
        return
    plain = Needs().model_dump()
    idle = {"goal": "personal", "nets": "equal"}  # values that no method fails to meet
    values = {name: value for name, value in needs.model_dump().items() if value not in (plain[name], idle.get(name))}
    without = {name: count(needs.model_copy(update={name: plain[name]})) for name in values}
    best = max(without, key=lambda name: without[name])
    words = ", ".join(name if value is True else f"{name} = {value}" for name, value in values.items())
    hint = f"without {best}, {counted(without[best], 'method')} would" if without[best] else "leave out two or more"
    raise ConfigError(f"{words}: no method meets all of these; {hint}")


def _shape(scenario: Scenario) -> tuple[tuple[int, ...], int, int]:
    return scenario.train_set.input_shape, scenario.num_classes, scenario.clients


def _effort(config: RunConfig, scenario: Scenario, needs: Needs, methods: Sequence[Forecast]) -> tuple[int, float]:
    """Return the runs of a trial at most, and the minutes of their training, from the time of one step of the net."""
    net = Setup.from_config(fitted(config, "fedavg", needs), *_shape(scenario)).nets[0].eval()
    inputs = scenario.train_set.gather(torch.zeros(config.batch_size, dtype=torch.int64))
    seconds = min(timeit.repeat(lambda: net(inputs).square().mean().backward(), number=1, repeat=3))
    steps = config.participation * config.local_epochs * np.ceil(scenario.train.sizes / config.batch_size).sum()
    compute = [1.0, *(one.traits["compute"] or 1.0 for one in methods)]
    rungs = planned(config.rounds, len(methods))
    rounds = sum(length * runs for length, runs in rungs) * sum(compute) / len(compute)
    return sum(runs for _, runs in rungs), float(rounds * steps * seconds / 60)


def _notes(diagnosis: Diagnosis, needs: Needs) -> Iterator[str]:
    """Yield properties of the data and needs that no committed study has measured."""
    if needs.dp:
        yield (
            "rows and trials are of methods without +dp: its noise lowers accuracy, and more of some methods than of "
            "others; compare METHOD+dp on your data"
        )
    labels = diagnosis.labels
    if 2 * len(labels.few_shot) > len(labels.clients):
        yield "most clients have fewer than 5 samples of a class; no study behind this advice has such clients"
    if labels.size_gini > 0.5:
        yield f"amounts are very unequal (Gini {labels.size_gini:.2f}); no study behind this advice isolates that"
    if needs.nets == "different" and needs.goal == "global":
        yield "gains were measured with equal networks"
