"""The smaller sections of a run's config."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_serializer, model_validator

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import Criterion
from fedloom.evaluation import METRICS, PROTOCOLS
from fedloom.evaluation.fewshot import EpisodeShape
from fedloom.evaluation.metrics import ALWAYS
from fedloom.evaluation.own_metrics import register_metric


class Section(BaseModel, extra="forbid", frozen=True):
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
        ("all",),
        description="Numbers of samples of each class that a newcomer tunes on, one test each: whole numbers, or `all` "
        "for its whole training data. If it has fewer samples of a class, it tunes on all of them. An empty list "
        "leaves only the test without tuning.",
        examples=[[1, 5, "all"]],
        max_length=100,
    )
    tunes: tuple[Literal["all", "head", "lp_ft", "own"], ...] = Field(
        ("all",),
        description="Ways of tuning, one test each: `all` weights, the `head` alone, `lp_ft`, the head and then all "
        "weights at a tenth of the rate, or `own`, the method's own round.",
        examples=[["all", "head", "lp_ft"]],
        min_length=1,
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
    rule: Literal["youden"] | dict[Literal["specificity", "sensitivity", "net_benefit", "cost"], float] = Field(
        description="Choice of the threshold. `{specificity: 0.95}` takes the highest sensitivity at a specificity of "
        "at least 0.95, `{sensitivity: 0.95}` the highest specificity. `youden` takes the highest sum of both, "
        "`{net_benefit: 0.1}` the highest net benefit at a threshold probability of 0.1. `{cost: 10}` takes the lowest "
        "cost where a missed sample costs 10 false alarms. Of equal thresholds, the highest is taken."
    )

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

    by: Literal["group", "row"] = Field(
        "group", description="Units that are drawn within each client; rows also where the data have no groups."
    )
    level: float = Field(0.95, gt=0, lt=1, description="Coverage of the intervals.")
    draws: int = Field(2000, ge=100, lt=1_000_000, description="Number of bootstrap samples.")


class EvaluationConfig(Section, allow_inf_nan=False):
    """Tests: the protocol, their rounds, and the round whose accuracy counts."""

    protocol: Literal[
        "global/global", "global/local", "personal/global", "personal/local", "personal/others", "few-shot"
    ] = Field(
        "global/global",
        description="Model that is tested and the data that it is tested on, as model/data. `global` is the "
        "server's model or the whole test set, `personal` and `local` are each client's own, and `others` are the test "
        "samples of all other clients. `few-shot` tests the server's features on new classes.",
    )
    protocols: tuple[str, ...] = Field(
        (),
        description="Several protocols that one run is tested by, each with its own columns and its own selected "
        "round. The first is the main one, which the headline, tuning and early stopping use. A method is tested "
        "in those that it offers. One alone is the same as `protocol`.",
        examples=[["global/global", "global/local", "personal/local", "personal/global"]],
    )
    select: Literal["last", "best_val", "best_test", "mean_last_k"] = Field(
        "last",
        description="Round whose test accuracy counts: `last`; `best_val`, of best validation accuracy; "
        "`best_test`, the papers' habit, which looks at the test set; or `mean_last_k`, the mean of "
        "the last `last_k` tests.",
    )
    select_by: str = Field(
        "accuracy",
        description="Metric by which `best_val`, `best_test` and tuning select; if not always recorded, in `metrics`.",
        examples=["balanced_accuracy"],
    )
    every: int = Field(1, ge=1, description="Number of rounds between two tests; the last round is always tested.")
    last_k: int = Field(10, ge=1, description="Number of evaluated rounds that `mean_last_k` averages over.")
    also: tuple[str, ...] = Field(
        (), description="Names of the method's other predictors to test likewise.", examples=[["online", "offline"]]
    )
    metrics: tuple[str, ...] = Field(
        (),
        description="Names of further metrics: average_precision, auroc, adaptive_ece, brier, nll, precision, recall, "
        "specificity, ppv, npv, mcc, weighted_f1, domain_accuracy, calibration_slope, calibration_intercept, "
        "calibration_in_the_large, means over all classes (recall_all, precision_all, macro_f1_all), and those of "
        "plug-ins; in Python also functions. With any share: sensitivity@specificity=0.95, "
        "specificity@sensitivity=0.95, ppv@prevalence=0.1, npv@prevalence=0.1. Accuracy, loss, balanced_accuracy, "
        "macro_f1, ece and the success of an attack are always recorded, also by an empty list.",
        examples=[["auroc", "sensitivity@specificity=0.9"]],
    )
    scores_mib: float = Field(
        64.0,
        ge=0,
        description="Memory in MiB that the scores of one model, 8 bytes each, may take for metrics that need them all "
        "(auroc, average_precision, sensitivity@specificity, adaptive_ece). With more scores they are "
        "counted in 4,096 bins, and the bound of the error is reported.",
    )
    decision: DecisionConfig | None = Field(
        None,
        description="Section of the threshold, chosen on validation data, from which on samples are taken for a class.",
        examples=[{"class": "ill", "rule": {"specificity": 0.95}}],
    )
    intervals: IntervalsConfig | None = Field(
        None, description="Section of the confidence intervals of the last test; null makes none.", examples=[{}]
    )
    newcomers: NewcomersConfig = Field(
        NewcomersConfig(), description="Section of the tests on clients that never train, named by `scenario.held_out`."
    )
    ways: int = Field(5, ge=2, description="Number of classes in an episode of the protocol few-shot.")
    shots: int = Field(
        5, ge=1, description="Number of labelled samples of each class in an episode of the protocol few-shot."
    )
    queries: int = Field(
        15, ge=1, description="Number of tested samples of each class in an episode of the protocol few-shot."
    )
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
    min_delta: float = Field(
        0.0, ge=0, description="Improvement that a test must exceed to count, in units of `measure`."
    )
    measure: Literal["accuracy", "loss"] = Field(
        "accuracy", description="Validation measure that is watched: accuracy (a share from 0 to 1) or loss (nats)."
    )


class DriftConfig(Section):
    """Drift during training, measured in every round: how the clients' updates differ. It changes no number."""

    decompose_every: int = Field(
        0,
        ge=0,
        description="Number of rounds between two decompositions of the drift into its local, sampling and server "
        "parts, the first in round 1; 0 makes none. For each, all clients train once more, and the pooled data once: "
        "for simulations.",
    )


class CheckpointConfig(Section):
    """When checkpoints are written and how many are kept. One is always written at the end. With `evaluation.select:
    best_val` one is also written after each round that is the best so far on validation data, and the checkpoint of the
    best round is always kept."""

    seconds: float = Field(
        5.0, ge=0, description="Time since the last checkpoint after which the next round ends with one, in seconds."
    )
    keep: int = Field(2, ge=1, description="Number of newest checkpoints that are kept.")
    keep_clients: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (),
        max_length=1000,
        description="Rounds whose client models are kept in the run folder, e.g. for loss landscapes around them: what "
        "each participant sends, and the server's state before and after. For simulations.",
        examples=[[1, 10, 50]],
    )
    keep_clients_mib: int = Field(
        1024, ge=1, description="Largest size of all kept client models, in MiB. A run that would take more is refused."
    )
    predictions: bool = Field(
        False,
        description="Whether to write predictions.parquet: row, client, hashed group, label and logits of each sample "
        "in the last test of the main protocol. For simulations.",
    )


class FlowerConfig(Section, allow_inf_nan=False):
    """Waiting times of a federation over Flower, and limits on the messages of its nodes."""

    min_clients: int = Field(
        1, ge=1, description="Smallest number of uploads that closes a round; with fewer the run ends."
    )
    round_timeout: float = Field(
        600.0, gt=0, description="Seconds that the server waits for answers before it closes a round without them."
    )
    join_timeout: float = Field(300.0, gt=0, description="Seconds in which nodes may join before the first round.")
    node_timeout: float = Field(
        150.0, gt=0, allow_inf_nan=False, description="Seconds in which a node that joins must move; doubled each time."
    )
    heartbeat: float = Field(10.0, gt=0, description="Seconds after which a node that works tells how far it is.")
    stall_seconds: float = Field(
        120.0, gt=0, description="Seconds without movement after which a client is asked once more, and then left out."
    )
    part_bytes: int = Field(
        1 << 24, ge=1 << 10, lt=1 << 40, description="Bytes of the largest part in which a payload travels."
    )
    idle_seconds: float = Field(
        900.0, gt=0, description="Seconds without a message after which a node ends the process that keeps its data."
    )
    max_failures: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="Largest number of clients of a round whose work may raise an exception; one more ends the "
        "run. `auto` is a fifth of the run's clients, and at least one, as long as min_clients remain.",
    )
    max_share: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = Field(
        "auto",
        description="Largest share of a round's training samples that one client may claim where only the nodes "
        "know their data (source: nodes). `auto` is 2 / sqrt(clients of the round), at most 0.95. The bound acts from "
        "four clients on.",
    )
    max_ratio: Annotated[float, Field(gt=1)] | None = Field(
        5.0,
        description="Largest size of an upload, as a multiple of the median client's, item by item (trees, heads, "
        "rows of class tables, numbers), in rounds of fewer than four also of earlier rounds; null accepts any size.",
    )
    max_norm: float | None = Field(
        None, gt=0, description="Longest distance (L2) between weights that a client uploads and was sent, or null."
    )
    compare: tuple[Literal["moments", "labels"], ...] = Field(
        (),
        description="What nodes report, so that their data are compared before the first round, in addition to moments "
        "of columns that they standardise together: `moments` of features with an agreed mean, or of the channels of "
        "pictures, and counts of `labels`, without those below five.",
        examples=[["moments", "labels"]],
    )
    accept_unlike: tuple[Annotated[str, Field(pattern=r"^(\d+|\*)/.+")], ...] = Field(
        (),
        description="Columns whose unit, coding or marks are right although other nodes have others, as client/column; "
        "`*` stands for any.",
        examples=[["2/age", "*/pressure"]],
    )
