"""A trial of methods on the user's own scenario: successive halving on validation data, and a final on fresh seeds.
Every rung is a set of whole runs of some rounds, because many methods end with a special step (a head fitted after the
last round) that a truncated run would lack. The better third of a rung continues (Jamieson and Talwalkar, AISTATS 2016,
arXiv 1502.07943, keep half; a third is the factor of Hyperband, arXiv 1603.06560). All runs of a rung end before any is
dropped, so the order of methods does not matter. Optuna's pruner could never drop the first trials."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from fedloom.core.errors import ConfigError
from fedloom.core.text import ACCURACY, MARGIN, Criterion, counted, is_share, listed
from fedloom.data.scenario import Scenario
from fedloom.diagnosis.evidence import Needs, fitted
from fedloom.results.difference import Difference, compare_family
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.studies.live_progress import Listener
from fedloom.runs.studies.run_study import compare
from fedloom.runs.studies.tuning import refuse_without_validation, trial_score

FACTOR = 3  # of the rounds from rung to rung, and of the arms that are dropped
RATES = (1 / 3, 1.0, 3.0)  # times the config's learning rate, the same for every method
FINAL_SEEDS = 3
Show: TypeAlias = Callable[[Sequence[RunConfig]], AbstractContextManager[Listener]]


class Arm(NamedTuple):
    """A method with a learning rate."""

    method: str
    rate: float

    @property
    def name(self) -> str:
        """The arm in words."""
        return f"{self.method} at {self.rate:g}"


@dataclass(frozen=True, slots=True)
class Rung:
    """The scores of one rung: validation values by arm, best first."""

    rounds: int
    scores: Mapping[Arm, float]


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The outcome of a trial.
    reference: the method that a gain has to exceed. rungs: the scores on the config's seed, from the shortest runs to
    the longest. finals: validation values on the fresh `seeds`, by arm: the best arm of the other methods, if there is
    one, then the best arm of the reference. difference: of the final, above zero if the other method is better; None if
    the reference alone was tried, or a run of the final diverged. runs: number of runs. criterion: the metric of all
    values, `evaluation.select_by` of the config."""

    reference: str
    rungs: tuple[Rung, ...]
    finals: Mapping[Arm, Sequence[float]]
    seeds: tuple[int, ...]
    difference: Difference | None
    runs: int
    criterion: Criterion = ACCURACY

    @property
    def recommended(self) -> str:
        """The method of the final that is seen to be ahead; the reference if none is."""
        return self.arm.method

    @property
    def diverged(self) -> list[Arm]:
        """The arms of the final with a diverged run."""
        return [arm for arm, values in self.finals.items() if not all(map(math.isfinite, values))]

    @property
    def arm(self) -> Arm:
        """The recommended method with its learning rate: of those that did not diverge."""
        challenger, *others = [arm for arm in self.finals if arm not in self.diverged] or self.finals
        return challenger if not others or (self.difference and self.difference.word == "ahead") else others[0]

    def sentence(self) -> str:
        """The recommendation with its uncertainty."""
        plain = "fine-tuned FedAvg" if self.reference == "fedavg+finetune" else self.reference
        if self.diverged:
            names = listed([arm.name for arm in self.diverged])
            if len(self.diverged) == len(self.finals):
                return f"{names} diverged with fresh seeds: nothing can be recommended; try lower learning rates"
            return f"{names} diverged with a fresh seed: take {self.arm.name}; no gain can be told"
        if self.difference is None:
            return f"no other method was tried: {self.arm.name}"
        challenger = next(iter(self.finals))
        seeds = counted(self.difference.n, "fresh seed")
        gain, interval = f"{100 * self.difference.mean:+.1f} points of validation accuracy", (100, 1)
        if self.criterion != ACCURACY:  # in the metric's unit, which may be nats
            gain = f"{self.difference.mean:+.3f} in validation {self.criterion.name} (above zero is better)"
            interval = 1, 3
        figures = f"{gain} over {plain}, 95 % interval {self.difference.interval_text(*interval)}, {seeds}"
        if self.difference.word == "ahead":
            return f"take {challenger.name}: {figures}"
        told = f"{challenger.name} is {self.difference.verdict}, {figures}"
        return f"no method is seen to be better than {plain}: {told}; take {self.arm.name}"

    def facts(self) -> dict[str, Any]:
        """All of it as JSON values."""
        difference = self.difference
        return {
            "recommended": {"method": self.arm.method, "optimizer.lr": self.arm.rate},
            "reference": self.reference,
            "metric": self.criterion.name,
            "rungs": [
                {"rounds": rung.rounds, "validation": {arm.name: score for arm, score in rung.scores.items()}}
                for rung in self.rungs
            ],
            "final": {arm.name: list(values) for arm, values in self.finals.items()},
            "seeds": list(self.seeds),
            "difference": difference
            and {key: getattr(difference, key) for key in ("mean", "low", "high", "word", "needs")},
            "runs": self.runs,
            "sentence": self.sentence(),
        }


@contextlib.contextmanager
def silent(configs: Sequence[RunConfig]) -> Iterator[Listener]:
    """Give a listener that shows nothing."""
    yield lambda event: None


def planned(rounds: int, methods: int) -> list[tuple[int, int]]:
    """Return the rounds and the most runs of each rung of a trial, the final last: all rounds on fresh seeds.
    methods: number of those besides the reference."""
    arms, rungs = (methods + 1) * len(RATES), list[tuple[int, int]]()
    for length in sorted({rounds // FACTOR**2, rounds // FACTOR} - {0, rounds}):
        rungs.append((length, arms))
        arms = min(arms, -(-arms // FACTOR) + min(methods, 1))
    return [*rungs, (rounds, min(methods + 1, 2) * FINAL_SEEDS)]


def run_trial(
    config: RunConfig,
    methods: Sequence[str],
    reference: str,
    needs: Needs,
    *,
    scenario: Scenario | None = None,
    out: Path | None = None,
    jobs: int = 1,
    show: Show = silent,
) -> TrialOutcome:
    """Try methods on the user's scenario; validation data alone decide.
    config: rounds are those of the final; the learning rate is the middle one of three that every method tries.
    reference: the method that a gain has to exceed; it always reaches the final. needs: resolved. out: folder of the
    runs, which are resumed; None keeps nothing on disk. jobs: processes at a time; more than one needs `out` and no
    scenario. show: gives, for the configs of a rung, the listener that shows their progress."""
    refuse_without_validation(config, "a trial")
    if config.rounds < FACTOR:
        raise ConfigError(
            f"rounds = {config.rounds}: a trial needs {FACTOR} or more, as its first rung is a third of them"
        )
    if scenario is not None and not scenario.val.sizes.sum():
        raise ConfigError(f"a trial: {scenario.name} has no validation data to choose on; set val above 0")
    names = list(dict.fromkeys([*methods, reference]))
    arms = [Arm(name, config.optimizer.lr * factor) for name in names for factor in RATES]

    def scores(arms: Sequence[Arm], rounds: int, seeds: Sequence[int], folder: str) -> list[float]:
        runs = [_with(fitted(config, arm.method, needs), arm.rate, rounds, seed) for arm in arms for seed in seeds]
        place = None if out is None else out / folder
        with show(runs) as listener:
            results = compare(runs, out=place, jobs=jobs, scenario=scenario, listener=listener)
        return [trial_score(result, criterion) for result in results]

    criterion, rungs = config.evaluation.criterion(), list[Rung]()
    sign = criterion.sign
    for rounds, _ in planned(config.rounds, len(names) - 1)[:-1]:
        values = dict(zip(arms, scores(arms, rounds, [config.seed], f"rung-{rounds}"), strict=True))
        # Values that are no number come after all others.
        ranked = sorted(arms, key=lambda arm: (not math.isnan(values[arm]), sign * values[arm]), reverse=True)
        rungs.append(Rung(rounds, {arm: values[arm] for arm in ranked}))
        # Rounded up, so a rung never ends without an arm.
        kept = ranked[: -(-len(ranked) // FACTOR)]
        arms = list(dict.fromkeys([*kept, *_best_of_both(reference, ranked)]))
    finalists = _best_of_both(reference, arms)
    # The seed of the rungs chose the finalists, so it would flatter them.
    seeds = tuple(config.seed + 1 + n for n in range(FINAL_SEEDS))
    flat = scores(finalists, config.rounds, seeds, "final")
    finals = {arm: flat[n * FINAL_SEEDS : (n + 1) * FINAL_SEEDS] for n, arm in enumerate(finalists)}
    difference = None
    if len(finalists) > 1 and all(map(math.isfinite, flat)):
        challenger, plain = finals.values()
        gains = [sign * (ours - theirs) for ours, theirs in zip(challenger, plain, strict=True)]
        (difference,) = compare_family([gains], margin=MARGIN if is_share(criterion.name) else 0.0)
    runs = sum(len(rung.scores) for rung in rungs) + len(flat)
    return TrialOutcome(reference, tuple(rungs), finals, seeds, difference, runs, criterion)


def _with(config: RunConfig, rate: float, rounds: int, seed: int) -> RunConfig:
    """The config of one run of a trial, which keeps no client models and measures no drift."""
    checkpoint = config.checkpoint.model_copy(update={"keep_clients": ()})
    keys = {"optimizer": replace(config.optimizer, lr=rate), "rounds": rounds, "seed": seed}
    return config.model_copy(update=keys | {"checkpoint": checkpoint, "drift": None})


def _best_of_both(reference: str, ranked: Sequence[Arm]) -> list[Arm]:
    """The first arm of another method, if there is one, and the first of the reference."""
    others = [arm for arm in ranked if arm.method != reference]
    return [*others[:1], next(arm for arm in ranked if arm.method == reference)]
