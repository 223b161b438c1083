"""The smaller sections of a run's config."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.key_models import Keys
from fedloom.core.text import Criterion
from fedloom.evaluation import METRICS, PROTOCOLS
from fedloom.evaluation.fewshot import EpisodeShape
from fedloom.evaluation.metrics import ALWAYS
from fedloom.evaluation.own_metrics import register_metric


class Section(Keys, extra="forbid", frozen=True):
    """A part of a config: unknown keys are errors."""


def _refuse_repeated(key: str, values: Sequence[Any]) -> None:
    repeated = next((value for k, value in enumerate(values) if value in values[:k]), None)
    if repeated is not None:
        raise ConfigError(f"{key} = {short_repr(repeated)} stands twice in its list; name each once")


def _metric_name(metric: Any) -> str:
    """The name of a metric: `{ppv: {prevalence: 0.02}}` is `ppv@prevalence=0.02`; what is no name is registered."""
    inner = next(iter(metric.values())) if isinstance(metric, Mapping) and len(metric) == 1 else None
    if isinstance(inner, Mapping) and len(inner) == 1:
        ((key, level),) = inner.items()
        level = f"{Decimal(repr(level)):f}" if isinstance(level, float) else level  # no exponent
        return f"{next(iter(metric))}@{key}={level}"
    return metric if isinstance(metric, str) else register_metric(metric)


class NewcomersConfig(Section):
    """How clients that never trained (`scenario.held_out`) are served before their tests after the last round. All of
    them are also tested without tuning, and with a model that they train alone from the initial weights."""

    shots: tuple[Annotated[int, Field(ge=1)] | Literal["all"], ...] = Field(
        ("all",), examples=[[1, 5, "all"]], max_length=100
    )
    tunes: tuple[Literal["all", "head", "lp_ft", "own"], ...] = Field(
        ("all",), examples=[["all", "head", "lp_ft"]], min_length=1
    )
    epochs: int = Field(5, ge=1, description="Passes over the tuning samples, in each phase of tuning.")

    @field_validator("shots", "tunes")
    @classmethod
    def _each_once(cls, values: tuple[Any, ...], info: ValidationInfo) -> tuple[Any, ...]:
        _refuse_repeated(f"evaluation.newcomers.{info.field_name}", values)
        return values

    @property
    def most_tests(self) -> int:
        """The most tests that a newcomer has: as it comes, and for each number of shots tuned and alone."""
        return 1 + len(self.shots) * (len(self.tunes) + 1)


class DecisionConfig(Section):
    """A threshold on the log odds of a class, chosen on all validation samples together by the model that is tested."""

    label: str = Field(alias="class", description="Class that samples are taken for from the threshold on.")
    rule: Literal["youden"] | dict[Literal["specificity", "sensitivity", "net_benefit", "cost"], float]

    @field_validator("label", "rule", mode="before")
    @classmethod
    def _possible(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name == "label":
            return str(int(value)) if type(value) in (int, float) and value % 1 == 0 else value
        ((name, amount),) = value.items() if isinstance(value, Mapping) and len(value) == 1 else (("", 0),)
        most = {"specificity": 1.0, "sensitivity": 1.0, "net_benefit": 1 - 1e-9, "cost": 1e9}.get(name, 0.0)
        if value == "youden" or (type(amount) in (int, float) and 0 < amount <= most):
            return value
        raise ConfigError(
            f"evaluation.decision.rule = {short_repr(value)}: need youden, {{specificity: 0.95}} or {{sensitivity: "
            "0.95} (a share), {net_benefit: 0.1} (a probability), or {cost: 10} (of a missed sample in false alarms)"
        )

    @model_serializer
    def _plain(self) -> dict[str, Any]:
        return {"class": self.label, "rule": self.rule}

    def rule_parts(self) -> tuple[str, float]:
        """Return the name of the rule and its number, 0 if it has none."""
        return next(iter(self.rule.items())) if isinstance(self.rule, dict) else (self.rule, 0.0)


class IntervalsConfig(Section):
    """Confidence intervals of the metrics of the last test, by a bootstrap of groups."""

    by: Literal["group", "row"] = "group"
    level: float = Field(0.95, gt=0, lt=1, description="Coverage of the intervals.")
    draws: int = Field(2000, ge=100, lt=1_000_000, description="Number of bootstrap samples.")


class EvaluationConfig(Section, allow_inf_nan=False):
    """Tests: the protocol, their rounds, and the round whose accuracy counts."""

    protocol: Literal[
        "global/global", "global/local", "personal/global", "personal/local", "personal/others", "few-shot"
    ] = "global/global"
    protocols: tuple[str, ...] = Field(
        (), examples=[["global/global", "global/local", "personal/local", "personal/global"]]
    )
    select: Literal["last", "best_val", "best_test", "mean_last_k"] = "last"
    select_by: str = Field("accuracy", examples=["balanced_accuracy"])
    every: int = Field(1, ge=1, description="Number of rounds between two tests; the last round is always tested.")
    last_k: int = Field(10, ge=1, description="Number of evaluated rounds that `mean_last_k` averages over.")
    also: tuple[str, ...] = Field((), examples=[["online", "offline"]])
    metrics: tuple[str, ...] = Field((), examples=[["auroc", "sensitivity@specificity=0.9"]])
    scores_mib: float = Field(64.0, ge=0)
    decision: DecisionConfig | None = Field(None, examples=[{"class": "ill", "rule": {"specificity": 0.95}}])
    intervals: IntervalsConfig | None = Field(None, examples=[{}])
    newcomers: NewcomersConfig = Field(NewcomersConfig())
    ways: int = Field(5, ge=2, description="Number of classes in an episode of the protocol few-shot.")
    shots: int = Field(5, ge=1)
    queries: int = Field(15, ge=1)
    episodes: int = Field(600, ge=2, description="Number of episodes in a test of the protocol few-shot.")

    @field_validator("metrics", mode="before")
    @classmethod
    def _metrics_by_name(cls, value: Any) -> Any:
        """Register functions and classes from Python, whose names stand for them in the config."""
        names = value if isinstance(value, list | tuple) else ()
        return [_metric_name(name) for name in names] if names else value

    @model_validator(mode="before")
    @classmethod
    def _with_main_protocol(cls, values: Any) -> Any:
        """Make the first of several protocols the main one; one alone is `protocol`."""
        listed = values.get("protocols") if isinstance(values, Mapping) else None
        if not isinstance(listed, list | tuple):
            return values
        if not listed:
            raise ConfigError("evaluation.protocols = []: a run needs a test; name a protocol, or leave the key out")
        for name in listed:
            if name not in PROTOCOLS:
                remedy = "take evaluation.protocol=few-shot"
                why = f"its classes are new, so no other protocol can be tested in the same run; {remedy}"
                why = why if name == "few-shot" else suggest_name(str(name), PROTOCOLS)
                raise ConfigError(f"evaluation.protocols = {short_repr(name)}: {why}")
        _refuse_repeated("evaluation.protocols", listed)
        if values.get("protocol", listed[0]) != listed[0]:
            raise ConfigError(
                f"evaluation.protocol = {short_repr(values['protocol'])}: the first of evaluation.protocols, "
                f"{listed[0]!r}, is the main one; leave evaluation.protocol out"
            )
        # A single listed protocol is kept as `protocol` alone: both spellings have one fingerprint.
        return {**values, "protocol": listed[0], "protocols": listed if len(listed) > 1 else ()}

    @model_validator(mode="after")
    def _can_be_measured(self) -> Self:
        for key, names in (("metrics", self.metrics), ("select_by", (self.select_by,))):
            unknown = next((name for name in names if name not in METRICS), None)
            if unknown is not None:
                raise ConfigError(f"evaluation.{key} = {short_repr(unknown)}: {METRICS.why_unknown(unknown)}")
        for key in ("metrics", "also"):
            _refuse_repeated(f"evaluation.{key}", getattr(self, key))
        few_shot, metrics, by = self.protocol == "few-shot", list(self.metrics), f"select_by = {self.select_by!r}"
        directed = METRICS.get(self.select_by).higher_is_better is not None
        remedy = "use last, or tune on a source's validation classes (fc100: scenario.novel=val)"
        why_no_val = f"few-shot tests one set of classes and has no validation split; {remedy}"
        refusals = {
            f"metrics = {metrics}: few-shot measures accuracy and loss alone": few_shot and metrics,
            f"{by}: not measured; add it to evaluation.metrics, which is {metrics}": self.select_by
            not in (*ALWAYS, *metrics),
            f"{by}: few-shot measures accuracy and loss; take one of them": few_shot
            and self.select_by not in ("accuracy", "loss"),
            f"{by}: needs to know the attack, as no defence does; take accuracy": self.select_by == "attack_success",
            f"also = {list(self.also)}: few-shot tests the server's features alone": few_shot and self.also,
            f"{by}: its best value is neither the highest nor the lowest; take another metric": not directed,
            "decision: a threshold needs the scores of one model; test global/global or global/local": self.decision
            and not any(protocol.startswith("global") for protocol in self.tested_protocols),
            "intervals: few-shot has an interval over episodes; leave them out": few_shot and self.intervals,
            f"select = 'best_val': {why_no_val}": few_shot and self.select == "best_val",
        }
        for why, applies in refusals.items():
            if applies:
                raise ConfigError(f"evaluation.{why}")
        return self

    @property
    def tested_protocols(self) -> tuple[str, ...]:
        """The protocols of the run, the main one first."""
        return self.protocols or (self.protocol,)

    def criterion(self) -> Criterion:
        """Return the measure that selects a round."""
        return Criterion(self.select_by, 1 if METRICS.get(self.select_by).higher_is_better else -1)

    def episode_shape(self) -> EpisodeShape:
        """Return the sizes of few-shot episodes."""
        return EpisodeShape(self.ways, self.shots, self.queries, self.episodes)


class EarlyStoppingConfig(Section, allow_inf_nan=False):
    """A run ends when its validation measure has stopped improving."""

    patience: int = Field(10, ge=1, description="Number of tests without improvement after which the run ends.")
    min_delta: float = Field(0.0, ge=0)
    measure: Literal["accuracy", "loss"] = "accuracy"


class DriftConfig(Section):
    """Drift during training, measured in every round: how the clients' updates differ. It changes no number."""

    decompose_every: int = Field(0, ge=0)


class CheckpointConfig(Section):
    """When checkpoints are written and how many are kept. One is always written at the end. With `evaluation.select:
    best_val` one is also written after each round that is the best so far on validation data, and the checkpoint of the
    best round is always kept."""

    seconds: float = Field(5.0, ge=0)
    keep: int = Field(2, ge=1, description="Number of newest checkpoints that are kept.")
    keep_clients: tuple[Annotated[int, Field(ge=1)], ...] = Field((), max_length=1000, examples=[[1, 10, 50]])
    keep_clients_mib: int = Field(1024, ge=1)
    predictions: bool = False


class FlowerConfig(Section, allow_inf_nan=False):
    """Waiting times of a federation over Flower, and limits on the messages of its nodes."""

    min_clients: int = Field(1, ge=1)
    round_timeout: float | None = Field(600.0, gt=0)
    join_timeout: float = Field(300.0, gt=0, description="Seconds in which nodes may join before the first round.")
    node_timeout: float = Field(150.0, gt=0, allow_inf_nan=False)
    heartbeat: float = Field(10.0, gt=0, description="Seconds after which a node that works tells how far it is.")
    stall_seconds: float = Field(120.0, gt=0)
    part_bytes: int = Field(1 << 24, ge=1 << 10, lt=1 << 40)
    idle_seconds: float = Field(900.0, gt=0)
    max_failures: Literal["auto"] | Annotated[int, Field(ge=0)] = "auto"
    max_share: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = "auto"
    max_ratio: Annotated[float, Field(gt=1)] | None = 5.0
    max_norm: float | None = Field(None, gt=0)
    compare: tuple[Literal["moments", "labels"], ...] = Field((), examples=[["moments", "labels"]])
    accept_unlike: tuple[Annotated[str, Field(pattern=r"^(\d+|\*)/.+")], ...] = Field(
        (), examples=[["2/age", "*/pressure"]]
    )
