"""The keys of a study file, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.text import flat
from fedloom.runs.config.bounds import MAX_TRIES
from fedloom.runs.config.sections import Section
from fedloom.runs.studies.search_space import Space, check_tries, read_space, without_repeats

# All other keys belong to a config.
OF_STUDIES = ("config", "settings", "methods", "seeds", "leave_out", "tune", "tries", "trials")
_MOST_SEEDS = 10_000  # a larger count is probably meant as a seed
_OF_CELLS = ("seed", "method", "preset")


class StudyKeys(Section):
    """Keys of a study file apart from those of a config, which all cells share.

    Attributes:
        config: a YAML config, or the name of a ready one, under the file's own keys.
        settings: named blocks of keys, each with an optional `config` of its own and labels of methods to leave out in
            `without`; a list gives names of ready configs.
        methods: names, or labels with keys (`method`, `preset`, options) on top.
        seeds: seeds, or their number, counted from `seed`.
        leave_out: "domain" makes a setting for each domain of the source, whose runs train without it and are tested on
            it.
        tune: keys with values that every method tries, or with a range, of which every method tries `tries` points.
        trials: keys for these trials alone.
    """

    config: str | None = None
    settings: dict[str, dict[str, Any]] = Field(default={"": {}})
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    seeds: int | tuple[int, ...] | None = None
    leave_out: Literal["domain"] | None = None
    tune: Space = Field(default_factory=dict)
    tries: int | None = Field(None, ge=1, le=MAX_TRIES)
    trials: dict[str, Any] = Field(default_factory=dict)

    @field_validator("settings", mode="before")
    @classmethod
    def _settings(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {str(name): {"config": name} for name in without_repeats("settings", value)}
        return {key: {} if keys is None else keys for key, keys in value.items()} if _named(value) else value

    @field_validator("methods", mode="before")
    @classmethod
    def _methods(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {str(name): {} for name in without_repeats("methods", value)}
        return {key: {} if keys is None else keys for key, keys in value.items()} if _named(value) else value

    @field_validator("seeds", mode="wrap")
    @classmethod
    def _seeds(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        try:
            seeds = read(value)
        except ValidationError:
            seeds = ()
        if seeds == () or (isinstance(seeds, int) and seeds < 1):
            raise ConfigError(f"seeds = {short_repr(value)}: need seeds, or how many")
        if isinstance(seeds, int) and seeds > _MOST_SEEDS:
            raise ConfigError(f"seeds = {seeds}: more than {_MOST_SEEDS:,}; this one seed is written seeds: [{seeds}]")
        return seeds

    @field_validator("tune", mode="before")
    @classmethod
    def _tune(cls, value: Any) -> Any:
        return read_space(value) if _named(value) else value

    @model_validator(mode="after")
    def _tries(self) -> StudyKeys:
        check_tries(self.tune, self.tries)
        if self.trials and not self.tune:
            raise ConfigError(f"trials = {short_repr(self.trials)}: nothing is tuned; give tune, or leave trials out")
        fixed = dict(flat(self.trials))
        for key in self.tune:
            if key in _OF_CELLS:
                raise ConfigError(f"tune.{key}: every cell has a {key} of its own; tune other keys, as optimizer.lr")
            if any(fixed_key == key or fixed_key.startswith(f"{key}.") for fixed_key in fixed):
                raise ConfigError(
                    f"trials: {key} is tuned, so every trial has a value of its own; leave it out of trials"
                )
        return self


def _named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
