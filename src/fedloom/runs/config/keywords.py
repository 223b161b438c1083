"""Keywords of `fedloom.run`, `compare` and `scenario`, typed so that editors complete and check them.

They are the fields of `RunConfig` and `ScenarioConfig` without those that are parameters of their own; a test compares
the two. `fedloom config` explains each of them. A section is a mapping of its keys to values; where it has a `name`,
the name alone will do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

Section: TypeAlias = Mapping[str, Any]


class RunKeywords(TypedDict, total=False):
    """Keys of a run's config beside method, scenario and model."""

    preset: str
    share: Literal["all", "trainable"]
    rounds: int
    participation: float
    local_epochs: int
    batch_size: int
    optimizer: str | Section
    augment: Section
    precision: Literal["float32", "bfloat16"]
    evaluation: Section
    early_stopping: Section | None
    drift: bool | Section | None
    checkpoint: Section
    seed: int
    engine: str | Section
    flower: Section
    options: Mapping[str, Section]


class CompareKeywords(TypedDict, total=False):
    """The same keys for several runs: each may be a list of values, which are compared."""

    preset: str | Sequence[str]
    share: Literal["all", "trainable"] | Sequence[Literal["all", "trainable"]]
    rounds: int | Sequence[int]
    participation: float | Sequence[float]
    local_epochs: int | Sequence[int]
    batch_size: int | Sequence[int]
    optimizer: str | Section | Sequence[str | Section]
    augment: Section | Sequence[Section]
    precision: Literal["float32", "bfloat16"] | Sequence[Literal["float32", "bfloat16"]]
    evaluation: Section | Sequence[Section]
    early_stopping: Section | Sequence[Section | None] | None
    drift: bool | Section | Sequence[bool | Section | None] | None
    checkpoint: Section
    seed: int | Sequence[int]
    engine: str | Section
    flower: Section
    options: Mapping[str, Section]


class ScenarioKeywords(TypedDict, total=False):
    """Keys of a scenario beside its source; its source and its partition add their own."""

    partition: str
    clients: int
    val: float
    split: Section | None
    tests: Literal["shares", "matched"]
    public: float | Section
    skews: Sequence[Section]
    attack: str | Section | None
    held_out: Section | Sequence[int] | None
    seed: int | None
