"""Data that only their own node reads: the classes, shape and scale that a federation agrees on beforehand."""

import math
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset
from fedloom.data.imputation import Impute, ImputedColumn
from fedloom.data.labels import refuse_other_spelling, sorted_words, twin_of, unknown_cells
from fedloom.data.sources.source import Source, Splits, source

_EACH = 2  # samples per class in the placeholder data


@source("nodes")
class Nodes(Source):
    """Data that every node of a real federation reads from its own disk; its own file says where. The keys here are
    what all nodes share, and the server knows no more than these.

    Without mean and standard deviation, bytes are divided by 255, numbers are left alone, and measured columns of a
    table are standardised: nodes report the count, mean and squares of each when they join.

        scenario: {source: nodes, clients: 3, classes: [well, ill], features: [age, pressure, sex=f, sex=m]}"""

    model = "mlp"
    keys_added_later = frozenset({"impute"})

    classes: tuple[str, ...] = Field(min_length=2, examples=[["well", "ill"]])
    shape: tuple[int, ...] | None = Field(None, examples=[[1, 28, 28]])
    features: tuple[str, ...] | None = Field(None, min_length=1, examples=[["age", "sex=f", "sex=m"]])
    values: Literal["numbers", "bytes"] = "numbers"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    impute: Impute | None = Field(None, examples=[{"numbers": "mean"}])

    @field_validator("classes", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        is_list = isinstance(value, list | tuple)
        return [str(name) if type(name) is int else name for name in value] if is_list else value

    @model_validator(mode="after")
    def _agrees(self) -> "Nodes":
        if (self.shape is None) == (self.features is None):
            raise ValueError("need one of shape and features: how a sample looks")
        for key, names in (("classes", self.classes), ("features", self.features or ())):
            if len(set(names)) < len(names):
                raise ValueError(f"{key} names '{next(n for n in names if names.count(n) > 1)}' twice")
        if not self.input_shape or min(self.input_shape) < 1 or len(self.input_shape) == 2:
            raise ValueError(f"shape {list(self.input_shape)}: need [d] or [channels, height, width], each 1 or more")
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std belong together; give both or neither")
        if self.mean is not None and self.std is not None:
            if not len(self.mean) == len(self.std) == self.input_shape[0]:
                raise ValueError(f"mean and std: need {self.input_shape[0]} numbers each, one a channel or feature")
            if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
                raise ValueError("mean and std: need finite numbers, and std above 0")
        if self.impute is not None and (self.features is None or self.mean is not None or self.values == "bytes"):
            raise ValueError("impute is for features whose mean and std nodes find together; leave mean and std out")
        if self.impute is not None and self.impute.indicator is not True:
            raise ValueError("impute.indicator: with source nodes, `features` names the indicators, as 'missing(age)'")
        unfilled = set() if self.impute is None else {*(self.features or ())}
        for rule in self.rules:
            unfilled -= {rule.indicator_name, *rule.features}
            if not rule.holds_words and rule.strategy == "most_frequent":
                raise ValueError(f"impute: the most_frequent of '{rule.column}' needs cells of nodes; take median")
        if unfilled:
            raise ValueError(f"features: '{min(unfilled)}' names no column, or its column holds numbers and words")
        return self

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (len(self.features or ()),) if self.shape is None else self.shape

    def _is_indicator(self, feature: str) -> bool:
        return self.impute is not None and feature.startswith("missing(")

    @property
    def reported_features(self) -> tuple[int, ...]:
        """The features whose moments nodes report, where no mean is agreed on: measured columns, and where cells are
        imputed also words, whose means are their shares."""
        free = enumerate(self.features or () if self.mean is None and self.values == "numbers" else ())
        wanted = [(place, name) for place, name in free if not self._is_indicator(name)]
        return tuple(place for place, name in wanted if self.impute is not None or "=" not in name)

    @property
    def numeric_features(self) -> tuple[int, ...]:
        """The features that nodes standardise together: measured columns, where no mean is agreed on."""
        return tuple(place for place in self.reported_features if "=" not in (self.features or ())[place])

    @property
    def rules(self) -> tuple[ImputedColumn, ...]:
        """By which missing cells are filled; none without `impute`."""
        words: dict[str, list[str]] = {}
        for name in self.features or ():
            column, equals, word = name.partition("=")
            if not self._is_indicator(name):
                words[column] = [*words.get(column, []), *([word] if equals else [])]
        by_column = {column: sorted_words(of_column) for column, of_column in words.items()}
        rules, named = () if self.impute is None else self.impute.rules(by_column, "scenario"), {*(self.features or ())}
        return tuple(rule.model_copy(update={"indicator": rule.indicator_name in named}) for rule in rules)

    def load(self) -> Splits:
        remedy = "run the config over nodes (`fedloom flower`), or name a source with the data"
        raise DataError(f"source nodes: each node reads its own data, so nothing can be read here; {remedy}")

    def placeholder_data(self) -> Dataset:
        """Noise with the shape, classes and scale of the nodes' data: a few samples of each class."""
        rng, shape = np.random.default_rng(0), (_EACH * len(self.classes), *self.input_shape)
        x = rng.integers(0, 256, shape, np.uint8) if self.values == "bytes" else rng.normal(size=shape)
        y = torch.arange(len(self.classes)).repeat(_EACH)
        y = torch.nn.functional.one_hot(y) if self.labels == "multi" else y
        stored = torch.from_numpy(x if self.values == "bytes" else x.astype(np.float32))
        return Dataset(stored, y, self.classes, *self._scale(), features=self.features or ())

    def as_agreed(self, data: Dataset, origin: str, absent: int = -1) -> Dataset:
        """Return `data` with the federation's class ids, features in its order, and scale. absent: of several labels
        the value of those that `data` do not name. Raises `DataError`, with `origin`, for what does not fit."""
        stored = {torch.uint8: "bytes", torch.float32: "numbers"}.get(data.x.dtype, "token ids")
        if stored != self.values:
            raise DataError(f"{origin}: samples are {stored}, those of the federation {self.values} (scenario.values)")
        x = self._columns(data, origin)[0] if self.features and data.features else data.x
        if not self.rules and bool(x.isnan().any()):
            raise DataError(f"{origin}: rows lack a value, and the federation imputes none; take `incomplete: drop`")
        if tuple(x.shape[1:]) != self.input_shape:
            sample_shape, agreed = list(x.shape[1:]), list(self.input_shape)
            raise DataError(f"{origin}: samples have shape {sample_shape}, those of the federation {agreed}")
        y, features = self._labels(data, origin, absent), self.features or ()
        return Dataset(x, y, self.classes, *self._scale(), features=features, group=data.group)

    def notes(self, data: Dataset, origin: str) -> list[str]:
        """Return sentences on words of `data`'s columns that nodes have not agreed on. Raises as `as_agreed`."""
        unknown = self._columns(data, origin)[1] if self.features and data.features else {}
        counts = ", ".join(f"'{column}' ({count:,})" for column, count in unknown.items())[:300]
        sentence = f"{origin}: words that the federation has not agreed on are 0 in all features of their column"
        return [f"{sentence}; rows of {len(data):,} with such words: {counts}"] if counts else []

    def _scale(self) -> tuple[Tensor | None, Tensor | None]:
        if self.mean is not None:
            return torch.tensor(self.mean), torch.tensor(self.std)
        width = self.input_shape[0]
        return (torch.zeros(width), torch.full((width,), 255.0)) if self.values == "bytes" else (None, None)

    def _columns(self, data: Dataset, origin: str) -> tuple[Tensor, dict[str, int]]:
        """Return the agreed features [n, d], and how many rows of each column hold a word that is not agreed on: it is
        0 in all of them. Raises `DataError` for columns that are missing, and for words in another spelling."""
        positions = {name: position for position, name in enumerate(data.features)}
        prefixes = {name[: end + 1] for name in data.features for end in _equals(name)}
        rules, place = self.rules, {name: position for position, name in enumerate(self.features or ())}
        if rules:  # a column without any value shows no words
            prefixes |= {f"{name}=" for name, at in positions.items() if bool(data.x[:, at].isnan().all())}
        x, agreed = torch.zeros(len(data), *self.input_shape), set[str]()
        for position, name in enumerate(self.features or ()):
            if self._is_indicator(name):
                continue
            # Columns and words may hold "="; of the columns that fit, the longest is meant.
            columns = [name[: end + 1] for end in _equals(name) if name[: end + 1] in prefixes]
            agreed.update(columns[-1:])
            if name in positions:
                x[:, position] = data.x[:, positions[name]]
            elif not columns:
                has = ", ".join(data.features)[:200]
                raise DataError(f"{origin}: no column for the federation's feature '{name}'; it has {has}")
        for rule in rules:
            read = [at for name, at in positions.items() if name == rule.column or name.startswith(f"{rule.column}=")]
            is_missing = data.x[:, read].isnan().any(1)
            for feature in rule.features:
                x[is_missing, place[feature]] = torch.nan
            if rule.indicator:
                x[:, place[rule.indicator_name]] = is_missing.float()
        agreed_words = _by_column(self.features or (), agreed)
        unknown = {}
        for column, words in _by_column(data.features, agreed).items():
            cells = {word: count for word, name in words.items() if (count := int(data.x[:, positions[name]].nansum()))}
            refuse_other_spelling(cells, agreed_words[column], f"{origin}: column '{column}'")
            unknown[column] = unknown_cells(cells, agreed_words[column])
        return x, {column: count for column, count in unknown.items() if count}

    def _labels(self, data: Dataset, origin: str, absent: int) -> Tensor:
        rank = {name: label for label, name in enumerate(self.classes)}
        present = data.classes if data.multi else [data.classes[class_id] for class_id in np.unique(data.y.numpy())]
        unknown = next((name for name in present if name not in rank), None)
        if unknown is not None:
            class_list, twin = ", ".join(self.classes)[:200], twin_of(unknown, self.classes)
            hint = "" if twin is None else f"; write '{twin[:40]}'"
            raise DataError(f"{origin}: class '{unknown[:40]}' is none of the federation's: {class_list}{hint}")
        # -1 is never taken: classes without a sample here may have any name.
        ids = torch.tensor([rank.get(name, -1) for name in data.classes])
        if not data.multi:
            return ids[data.y]
        y = torch.full((len(data), len(self.classes)), absent)
        y[:, ids] = data.y
        return y


def _by_column(features: Sequence[str], columns: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the words of each of `columns` (ending in "="), and the feature of each word; columns without the "="."""
    words: dict[str, dict[str, str]] = {}
    for name in features:
        for end in _equals(name):
            if name[: end + 1] in columns:
                words.setdefault(name[:end], {})[name[end + 1 :]] = name
    return words


def _equals(feature: str) -> list[int]:
    """Return where "column=word" may be split."""
    return [end for end, letter in enumerate(feature) if letter == "="]
