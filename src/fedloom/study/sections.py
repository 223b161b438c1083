"""The smaller sections of a run's config."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.engine.choose import EngineChoice
from fedloom.evaluation import EpisodeShape
from fedloom.methods.phases import OptimizerSpec


class Section(BaseModel):
    """A part of a config: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OptimizerConfig(Section):
    """Local optimiser, made afresh each round. `lr` and `weight_decay` per step; `momentum` is for sgd."""

    name: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.05, gt=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)

    def spec(self) -> OptimizerSpec:
        return OptimizerSpec(self.name, self.lr, self.momentum, self.weight_decay)


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


class ModelConfig(BaseModel):
    """A model with options of its own: `{name: mlp, hidden: [100]}`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str


class CheckpointConfig(Section):
    """A checkpoint is written when `seconds` have passed since the last one, and at the end; `keep` are kept."""

    seconds: float = Field(5.0, ge=0)
    keep: int = Field(2, ge=1)


class EngineConfig(Section):
    """What runs the clients, e.g. `engine: serial` or `{name: processes, workers: 8}`.

    name: serial; processes, with the same bits; batched, stacks of up to `stack` clients in each process (32, and 64 of
    nets with nothing but linear layers), whose numbers agree to about 1e-5; or auto, the fastest of them in a trial.
    same_bits: auto leaves out batched and native kernels, so that numbers do not depend on the machine's speed.
    kernels: torch; native, the project's own for convolutions of few channels, with which a LeNet trains twice as fast
    in long runs, and for stacks of linear nets: they need a C++ compiler, and their numbers agree to about 1e-5 a few
    steps on; auto, torch unless a trial without `same_bits` finds the others faster. workers: processes (one per core).
    client_seconds: longest time for one client, with more than one process (no limit). state_budget_mb: MiB of client
    states that stay in memory, the others go to disk (no limit). device: where clients are trained and tested: cpu,
    cuda or cuda:1. On cuda there are no processes, and auto without `same_bits: false` is serial: ask for batched.
    record: false keeps steps from being recorded (the numbers are the same), for losses that print or are stepped
    through.
    """

    name: Literal["auto", "serial", "processes", "batched"] = "auto"
    same_bits: bool = True
    kernels: Literal["auto", "torch", "native"] = "auto"
    workers: int | None = Field(None, ge=1)
    stack: int | None = Field(None, ge=2)
    client_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    state_budget_mb: float | None = Field(None, gt=0, allow_inf_nan=False)
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$")
    record: bool = True

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    def choice(self) -> EngineChoice:
        return EngineChoice(self.name, self.workers, self.client_seconds, self.stack, self.same_bits, self.kernels)

    def torch_device(self) -> torch.device:
        """The device. Raises `ConfigError` if it is not there, or if processes are to share it."""
        device = torch.device(self.device)
        if device.type == "cuda":
            found = torch.cuda.device_count()
            if (device.index or 0) >= found:
                raise ConfigError(
                    f"engine.device = '{self.device}': torch {torch.__version__} finds {found} CUDA devices here; use "
                    "cpu" + (f", or cuda:0 to cuda:{found - 1}" if found else "")
                )
            if self.name == "processes":
                raise ConfigError(
                    f"engine = processes on '{self.device}': processes do not help clients that share a device; use "
                    "serial, batched or auto"
                )
        return device

    def state_budget(self) -> int | None:
        """In bytes."""
        return None if self.state_budget_mb is None else int(self.state_budget_mb * 2**20)
