"""Advice on methods: a short list with reasons, from the skew of the data, the needs, and measured evidence."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fedloom.core.errors import ConfigError, MissingPackageError
from fedloom.core.text import counted, listed
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.advice_trial import TrialOutcome, run_trial
from fedloom.diagnosis.diagnosis import Diagnosis, diagnose_scenario
from fedloom.diagnosis.evidence import GOALS, Evidence, Needs, evidence_for, fitted, rules
from fedloom.engine.jobs import require_data
from fedloom.methods import METHODS
from fedloom.methods.catalogue import reveals
from fedloom.methods.contract.contexts import Diagnostic, ServerContext
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.setup import Setup

LONGEST = 5  # methods of a short list
FINE_TUNED = "fedavg+finetune"


class Suggestion(NamedTuple):
    """A method of the short list, its measured row in the evidence, and its traits as `fedloom methods` says them."""

    method: str
    row: Mapping[str, Any]
    traits: Mapping[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Advice:
    """A short list of methods for one federation, with reasons.

    Attributes:
        needs: the constraints, goal and networks included.
        diagnosis: the skew of the data.
        evidence: the setting of a committed study from which the list is taken.
        suggestions: at most five methods, the highest measured gain first; empty if none is above the plain method.
        reference: the plain method that a gain has to exceed: FedAvg, for personal models fine-tuned, or local training
            where that does not meet the needs. None if no plain method meets them.
        left_out: why methods above the baseline are not in the list, by method.
        unmeasured: methods that meet the needs and are not measured in the evidence's setting.
        notes: unusual properties of the data that no study covers.
        trial: the outcome of a trial on the user's scenario, None without one.
    """

    needs: Needs
    diagnosis: Diagnosis
    evidence: Evidence
    suggestions: tuple[Suggestion, ...]
    reference: str | None
    left_out: Mapping[str, str]
    unmeasured: tuple[str, ...]
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
        if self.trial is not None:
            return self.trial.recommended
        return self.methods[0] if self.suggestions else self.reference

    def rows(self) -> list[tuple[str, str, str, str]]:
        """The short list in words: method, its accuracy in the evidence, against the baseline there, and its costs."""
        baseline, rows = self.evidence.setting["baseline"], []
        traffic = {None: "traffic not measured", 1: "FedAvg's traffic"}
        for method, row, traits in self.suggestions:
            words = traffic.get(traits["traffic"], f"{traits['traffic']} times FedAvg's traffic")
            costs = f"{words}, {'a state at clients' if traits['state'] else 'no state'}"
            gain = f"{row['points']:+.1f} points, {row['word']} ({baseline})"
            rows.append((method, f"{row['accuracy']:.1f} % (n = {row['n']})", gain, costs))
        return rows

    def sentences(self) -> list[str]:
        """The reasons, one sentence each."""
        setting = self.evidence.setting
        sources = ", ".join([*setting["files"], f"docs/{setting['page']}"])
        goal = GOALS[self.needs.goal or "global"]
        texts = [f"for {goal}; {self.evidence.why}", f"nearest measured setting: {setting['title']} ({sources})"]
        if not self.suggestions:
            plain = "no plain method meets them" if self.reference is None else f"take {self.reference}"
            texts.append(f"no method that meets the needs was above {setting['baseline']} there; {plain}")
        elif self.trial is None and not any(one.row["word"] == "ahead" for one in self.suggestions):
            texts.append(f"undecided: none of these is seen to be ahead of {setting['baseline']} there")
        for why in dict.fromkeys(self.left_out.values()):
            names = [method for method, reason in self.left_out.items() if reason == why]
            texts.append(f"higher there, but {why}: {', '.join(names)}")
        if lost := [row["method"] for row in setting["rows"] if row["points"] is None]:
            texts.append(f"not in the list, because a run diverged there: {', '.join(lost)}")
        if self.unmeasured and len(self.suggestions) < LONGEST:
            texts.append(f"meet the needs, but are not measured there: {', '.join(self.unmeasured)}")
        told = {name: reveals(METHODS.get(name)) for name in filter(None, [*self.methods, self.reference])}
        for what in dict.fromkeys(told.values()):
            texts.append(f"uploads reveal {what}: {', '.join(name for name in told if told[name] == what)}")
        if self.trial is not None:
            texts.append(self.trial.sentence())
        elif self.reference is not None:
            texts.append(f"compare with {self.reference}; a trial (--trial) measures the gain on your data")
        return texts

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        setting = self.evidence.setting
        return {
            "first": self.first,
            "needs": self.needs.model_dump(),
            "why": self.evidence.why,
            "evidence": {key: setting[key] for key in ("name", "title", "files", "page", "baseline", "profile")},
            "methods": [{**one.row, "traits": dict(one.traits)} for one in self.suggestions],
            "reference": self.reference,
            "left_out": dict(self.left_out),
            "unmeasured": list(self.unmeasured),
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
    net = (
        Setup.from_config(fitted(config, "fedavg", needs), *_shape(scenario)).nets[0] if needs.nets == "equal" else None
    )
    diagnosis = diagnose_scenario(scenario, net, seed=config.seed)
    evidence = evidence_for(needs, diagnosis)
    suggestions: list[Suggestion] = []
    left_out: dict[str, str] = {}
    for row in evidence.setting["rows"]:
        # Rows come highest gain first, and diverged ones last, so no later row is better.
        if row["points"] is None or row["points"] <= 0 or len(suggestions) == LONGEST:
            break
        why = reason_against(row["method"], needs, config, scenario)
        if why is None:
            suggestions.append(Suggestion(row["method"], row, rules()["traits"][row["method"]]))
        else:
            left_out[row["method"]] = why
    plain = ("fedavg",) if needs.goal == "global" else (FINE_TUNED, "local")
    reference = next((name for name in plain if reason_against(name, needs, config, scenario) is None), None)
    measured = {row["method"] for row in evidence.setting["rows"]}
    # The evidence covers few settings, so methods that fit and were not measured there are named, too.
    fitting = (name for name, traits in rules()["traits"].items() if not list(needs.unmet(traits)))
    unmeasured = tuple(name for name in fitting if name not in {*measured, *plain})
    notes = tuple(_notes(diagnosis, needs))
    return Advice(needs, diagnosis, evidence, tuple(suggestions), reference, left_out, unmeasured, notes)


def with_trial(advice: Advice, config: RunConfig, **options: Any) -> Advice:
    """Return the advice for a config with the outcome of a trial of its short list. options: those of `run_trial`."""
    if advice.reference is None:
        raise ConfigError("a trial: no plain method meets these needs, so no gain can be told; leave out --trial")
    return replace(advice, trial=run_trial(config, advice.methods, advice.reference, advice.needs, **options))


def reason_against(method: str, needs: Needs, config: RunConfig, scenario: Scenario) -> str | None:
    """Return why a method is not for this federation: a need, or what refuses it in this config; None if nothing."""
    traits = rules()["traits"].get(method)
    if traits is None:
        return "its traits are not known"
    if unmet := list(needs.unmet(traits)):
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
        return sum(not list(needs.unmet(traits)) for traits in rules()["traits"].values())

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
    yield from diagnosis.notes
