"""The keys of a study file, and the values that tuning tries: combinations of lists, or points in ranges."""

import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.text import ALPHA, MARGIN, flat
from fedloom.runs.config.keys import MAX_TRIES, built, refuse_many
from fedloom.runs.config.sections import Section

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


_DIGITS = 4  # significant digits of a number from a range


class Range(Section):
    """From `low` to `high`, both included: whole numbers if both ends are. `log`: even on a logarithmic scale."""

    low: int | float
    high: int | float
    log: bool = False

    @pydantic.model_validator(mode="after")
    def _ends(self) -> "Range":
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"low = {self.low}, high = {self.high}: need two numbers, the lower one first")
        if self.log and self.low <= 0:
            raise ConfigError(f"low = {self.low}: a logarithmic range begins above 0")
        return self


Space = dict[str, tuple[Any, ...] | Range]


def read_space(values: Mapping[str, Any]) -> Space:
    """Read the dotted keys of `tune`, each a list or a range. Raises `ConfigError` for invalid and repeated keys."""
    space: Space = {}

    def read_section(section: Mapping[str, Any], prefix: str) -> None:
        for name, tried in section.items():
            key = f"{prefix}{name}"
            if isinstance(tried, Mapping) and tried and not _is_range(tried):
                read_section(tried, f"{key}.")
            elif key in space:
                raise ConfigError(f"tune.{key} stands twice, with dots and in a section; name it once")
            elif isinstance(tried, Mapping) and tried:
                space[key] = built(Range, tried, f"tune.{key}")
            elif isinstance(tried, list | tuple) and tried:
                space[key] = tuple(without_repeats(f"tune.{key}", tried))
            else:
                raise ConfigError(
                    f"tune.{key} = {short_repr(tried)}: need a list of values, or a range: {{low: 0.01, high: 0.1}}"
                )

    read_section(values, "")
    return space


def _is_range(section: Mapping[str, Any]) -> bool:
    """Whether a section is a range rather than keys of a config, which may also be called low and then have lists."""
    return not all(
        isinstance(section[key], list | tuple | Mapping) for key in section.keys() & Range.model_fields.keys()
    )


def without_repeats(key: str, values: Sequence[Any]) -> Sequence[Any]:
    """Return the values of a key. Raises `ConfigError` if one of them occurs twice."""
    twice = next((value for position, value in enumerate(values) if value in values[:position]), None)
    if twice is not None:
        raise ConfigError(f"{key} = {twice!r} stands twice in its list; name each once")
    return values


def tried_in(space: Space, tries: int | None) -> list[dict[str, Any]]:
    """Return the sets of values to try, keys as in `space`: all combinations of lists, or `tries` points if there is a
    range.

    Points are a scrambled Sobol sequence with a fixed seed (Optuna's). They are known before the first trial, so every
    method tries the same points, in any order and on any machine. Raises `ConfigError` for ranges without Optuna."""
    if not space:
        return []
    if tries is None:
        lists = [dimension for dimension in space.values() if isinstance(dimension, tuple)]  # without `tries`, all are
        refuse_many("tune", map(len, lists), MAX_TRIES)
        return [dict(zip(space, values, strict=True)) for values in product(*lists)]
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune: a range needs Optuna; pip install 'fedloom[tune]'") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(scramble=True, seed=0, warn_independent_sampling=False)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study, points = optuna.create_study(sampler=sampler), []
        for _ in range(tries + 1):
            trial = study.ask({key: _distribution(dimension) for key, dimension in space.items()})
            study.tell(trial, 0.0)  # no score, because the next point must not depend on one
            points.append({key: _value(space[key], value) for key, value in trial.params.items()})
        del points[0]  # a random point, from which Optuna learns the keys of the sequence
    finally:
        optuna.logging.set_verbosity(before)
    return points


def plain_space(space: Space) -> dict[str, Any]:
    """Return the space as a file has it."""
    return {
        key: dimension.model_dump() if isinstance(dimension, Range) else list(dimension)
        for key, dimension in space.items()
    }


def _distribution(dimension: tuple[Any, ...] | Range) -> "BaseDistribution":
    from optuna.distributions import FloatDistribution, IntDistribution

    if isinstance(dimension, tuple):
        return IntDistribution(0, len(dimension) - 1)  # an index, because Optuna takes no lists as choices
    if isinstance(dimension.low, int) and isinstance(dimension.high, int):
        return IntDistribution(dimension.low, dimension.high, log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _value(dimension: tuple[Any, ...] | Range, drawn: Any) -> Any:
    if isinstance(dimension, tuple):
        return dimension[drawn]
    if isinstance(drawn, int):
        return drawn
    # Four digits may round a number beyond an end of the range.
    return min(max(float(f"{drawn:.{_DIGITS}g}"), dimension.low), dimension.high)


# All other keys belong to a config.
OF_STUDIES = ("config", "settings", "methods", "primary", "margin", "seeds", "leave_out", "tune", "tries", "trials")
_MOST_SEEDS = 10_000  # a larger count is probably meant as a seed
_OF_CELLS = ("seed", "method", "preset")


_LOOKS, _LOOK_ALPHA = (3, 5, 7, 10), 0.01


class UntilDecided(Section):
    """Seeds that are added until the rule decides about a row: 3, 5, 7, 10, at most `most`."""

    until: Literal["decided"]
    most: Literal[5, 7, 10] = 10

    @property
    def looks(self) -> dict[int, float]:
        """The chance of a false word at each number of seeds: .01, and at the last look what is left of .05."""
        counts = [count for count in _LOOKS if count <= self.most]
        return dict.fromkeys(counts, _LOOK_ALPHA) | {self.most: round(ALPHA - _LOOK_ALPHA * (len(counts) - 1), 3)}


class StudyKeys(Section):
    """Keys of a study file apart from those of a config, which all cells share.

    Attributes:
        config: a YAML config, or the name of a ready one, under the file's own keys.
        settings: named blocks of keys. A block may have its own `config`, and in `without` the labels of methods to
            leave out. A list gives names of ready configs.
        methods: names, or labels with keys (`method`, `preset`, options) on top.
        primary: the few methods whose comparisons the study is made for, by label. They are corrected apart from the
            others; five at most are advisable. Fixed once the study's folder exists.
        margin: the equivalence margin, in points; 0 calls nothing equivalent. Fixed once the study's folder exists.
        seeds: seeds, or their number, counted from `seed`; or {until: decided, most: 10}, which adds seeds until a row
            is decided.
        leave_out: "domain" makes a setting for each domain of the source, whose runs train without it and are tested on
            it.
        tune: keys with values that every method tries, or with a range, from which every method tries `tries` points.
        trials: keys for these trials alone."""

    config: str | None = None
    settings: dict[str, dict[str, Any]] = pydantic.Field(default={"": {}})
    methods: dict[str, dict[str, Any]] = pydantic.Field(default_factory=dict)
    primary: tuple[str, ...] = ()
    margin: float = pydantic.Field(MARGIN, ge=0, le=100, strict=True)  # true is no number
    seeds: int | tuple[int, ...] | UntilDecided | None = None
    leave_out: Literal["domain"] | None = None
    tune: Space = pydantic.Field(default_factory=dict)
    tries: int | None = pydantic.Field(None, ge=1, le=MAX_TRIES)
    trials: dict[str, Any] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("settings", "methods", mode="before")
    @classmethod
    def _blocks(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(value, list):
            names = map(str, without_repeats(str(info.field_name), value))
            return {name: {"config": name} if info.field_name == "settings" else {} for name in names}
        return {key: {} if keys is None else keys for key, keys in value.items()} if _named(value) else value

    @pydantic.field_validator("seeds", mode="wrap")
    @classmethod
    def _seeds(cls, value: Any, read: pydantic.ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, Mapping):
            return built(UntilDecided, value, "seeds")
        try:
            seeds = read(value)
        except pydantic.ValidationError:
            seeds = ()
        if seeds == () or (isinstance(seeds, int) and seeds < 1):
            raise ConfigError(f"seeds = {short_repr(value)}: need seeds, or how many")
        if isinstance(seeds, int) and seeds > _MOST_SEEDS:
            raise ConfigError(f"seeds = {seeds}: more than {_MOST_SEEDS:,}; this one seed is written seeds: [{seeds}]")
        return seeds

    @pydantic.field_validator("tune", mode="before")
    @classmethod
    def _tune(cls, value: Any) -> Any:
        return read_space(value) if _named(value) else value

    @pydantic.model_validator(mode="after")
    def _tries(self) -> "StudyKeys":
        without_repeats("primary", self.primary)
        ranges = [key for key, tried in self.tune.items() if isinstance(tried, Range)]
        if ranges and self.tries is None:
            raise ConfigError(f"tune.{ranges[0]} is a range: say with tries how many points every method tries")
        if self.tries is not None and not ranges:
            raise ConfigError(f"tries = {self.tries}: there is no range in tune; of lists every combination is tried")
        if self.trials and not self.tune:
            raise ConfigError(f"trials = {short_repr(self.trials)}: nothing is tuned; give tune, or leave trials out")
        fixed = dict(flat(self.trials))
        for key in self.tune:
            if key in _OF_CELLS:
                raise ConfigError(f"tune.{key}: every cell has its own {key}; tune other keys, as optimizer.lr")
            if any(fixed_key == key or fixed_key.startswith(f"{key}.") for fixed_key in fixed):
                raise ConfigError(f"trials: {key} is tuned, so every trial has its own value; leave it out of trials")
        return self


def _named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
