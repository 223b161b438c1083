"""The smaller sections of a run's config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.evaluation import EpisodeShape


class Section(BaseModel):
    """A part of a config: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class EvaluationConfig(Section):
    """What is tested, when, and which round's accuracy counts.

    `select`: last; best_val (test accuracy at the round of best validation accuracy); best_test (the papers' habit:
    it looks at the test set); mean_last_k (mean over the last `last_k` evaluated rounds).
    `also`: other predictors of the method to test in the same way, e.g. Fed-CO2's online and offline. `ways`, `shots`,
    `queries` and `episodes` are for the protocol few-shot alone.
    """

    protocol: Literal["global/global", "global/local", "personal/global", "personal/local", "few-shot"] = (
        "global/global"
    )
    select: Literal["last", "best_val", "best_test", "mean_last_k"] = "last"
    every: int = Field(1, ge=1)
    last_k: int = Field(10, ge=1)
    also: tuple[str, ...] = ()
    ways: int = Field(5, ge=2)
    shots: int = Field(5, ge=1)
    queries: int = Field(15, ge=1)
    episodes: int = Field(600, ge=2)

    @model_validator(mode="after")
    def _no_validation_episodes(self) -> EvaluationConfig:
        if self.protocol == "few-shot" and self.also:
            raise ConfigError(f"evaluation.also = {list(self.also)}: few-shot tests the server's features alone")
        if self.protocol == "few-shot" and self.select == "best_val":
            raise ConfigError(
                "evaluation.select = 'best_val': few-shot tests one set of classes and has no validation split; use "
                "last, or tune on a source's validation classes (fc100: scenario.novel=val)"
            )
        return self

    def episode_shape(self) -> EpisodeShape:
        return EpisodeShape(self.ways, self.shots, self.queries, self.episodes)


class EarlyStoppingConfig(Section):
    """A run ends when its validation `measure` has not improved by more than `min_delta` for `patience` tests."""

    patience: int = Field(10, ge=1)
    min_delta: float = Field(0.0, ge=0, allow_inf_nan=False)
    measure: Literal["accuracy", "loss"] = "accuracy"


class CheckpointConfig(Section):
    """A checkpoint is written when `seconds` have passed since the last one, and at the end; the last `keep` are kept.

    With `evaluation.select: best_val` one is also written after each round that is the best so far on validation data,
    and that of the best round is kept, too.
    """

    seconds: float = Field(5.0, ge=0)
    keep: int = Field(2, ge=1)


class FlowerConfig(Section):
    """How long a federation over Flower waits, and what it accepts from a node."""

    min_clients: int = Field(1, ge=1, description="Uploads without which a round is not closed, and the run ends.")
    round_timeout: float = Field(
        600.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that the server waits for a round's answers; then it closes the round without the rest.",
    )
    join_timeout: float = Field(
        300.0, gt=0, allow_inf_nan=False, description="Seconds in which nodes may join before the first round."
    )
    max_failures: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto",
        description="Clients of a round whose work may raise an exception; one more ends the run. auto: a fifth of the "
        "run's clients, and at least one, as long as min_clients remain.",
    )
    max_share: Literal["auto"] | Annotated[float, Field(gt=0, le=1)] = Field(
        "auto",
        description="Largest share of a round's training samples that one client may claim where only the nodes know "
        "their data (source: nodes). auto: 2 / sqrt(clients of the round), at most 0.95. It acts from four clients on.",
    )
    max_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = Field(
        5.0,
        description="How many times as large as the median client's an upload may be, item by item (trees, heads, rows "
        "of class tables, numbers), from four uploads on; null for any size.",
    )
    max_norm: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Longest distance (L2, over all entries) between weights that a client uploads and those it was "
        "sent; null for any.",
    )
