"""Missing cells of tables: a rule for each column, its value over training rows, and cells that are filled with it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from fedloom.core.errors import DataError, short_repr, suggest_name
from fedloom.core.key_models import Keys

if TYPE_CHECKING:
    from fedloom.data.dataset import Dataset

Strategy = Literal["mean", "median", "most_frequent", "constant"]
Incomplete = Annotated[
    Literal["refuse", "drop", "impute"],
    Field(
        description="Rows with a missing value: refuse the file, drop the rows and say how many, or impute the missing "
        "features. Rows without a label, owner or group are dropped then, since these are never imputed."
    ),
]
DropColumns = Annotated[
    dict[Literal["above"], Annotated[float, Field(ge=0, lt=1)]],
    Field(
        description="Leaves out columns that lack more than a share of the training cells, as {above: share}.",
        examples=[{"above": 0.4}],
    ),
]
Constant = Annotated[dict[Literal["constant"], int | float | str], Field(min_length=1)]
_LARGEST = 1e30
_LISTED = 5  # columns in a sentence


class ImputedColumn(BaseModel, frozen=True):
    """The rule by which missing cells of a column are filled. features: names of its features: the column for numbers,
    "column=word" for each of its words. value: a number, or a word; None until it is known. indicator: whether
    `missing(column)` is a feature, 1 where the cell was missing. observed, missing: training cells with and without a
    value; a node's training cells are all nodes' together."""

    column: str
    features: tuple[str, ...]
    strategy: Strategy
    value: float | str | None = None
    indicator: bool = True
    observed: int = 0
    missing: int = 0

    @property
    def indicator_name(self) -> str:
        """The name of the feature that says which cells were missing."""
        return f"missing({self.column})"

    @property
    def holds_words(self) -> bool:
        return self.features != (self.column,)

    def fitted(self, cells: np.ndarray) -> "ImputedColumn":
        """Return the rule with its value, from training cells [n, features], NaN where they are missing: the mean or
        median in float64; of the most frequent ones the smallest. Raises `DataError` for a column without a value."""
        is_missing = np.isnan(cells[:, 0])
        observed = cells[~is_missing].astype(np.float64)
        if not len(observed):
            raise unobserved_error(self.column)
        value: Any = self.value
        if self.holds_words and self.strategy == "most_frequent":
            value = self.word(observed.sum(0))
        elif self.strategy == "most_frequent":
            numbers, counts = np.unique(observed[:, 0], return_counts=True)
            value = float(numbers[counts.argmax()])
        elif self.strategy != "constant":
            value = float(observed[:, 0].mean() if self.strategy == "mean" else np.median(observed[:, 0]))
        facts = {"observed": len(observed), "missing": int(is_missing.sum())}
        return self.model_copy(update={"value": value, "indicator": self.indicator and bool(is_missing.any()), **facts})

    def word(self, counts: np.ndarray) -> str:
        """Return the word with the highest of the `counts` [features], of equal ones the first."""
        return self.features[int(counts.argmax())].removeprefix(f"{self.column}=")


def unobserved_error(column: str) -> DataError:
    """Return the error for a column without a value in any training row."""
    remedy = f"leave it out (of a table by drop: [{column}])"
    return DataError(f"column '{column}': no training row has a value to impute from; {remedy}")


class Impute(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """How missing cells of feature columns are filled: by a value over the training rows, or a constant one."""

    numbers: Strategy | Constant = "mean"
    words: Literal["most_frequent", "constant"] | Constant = "most_frequent"
    indicator: bool | tuple[str, ...] = True
    columns: dict[str, Strategy | Constant] = Field({}, examples=[{"age": "median"}])

    def rules(self, vocabulary: Mapping[str, Sequence[str]], origin: str) -> tuple[ImputedColumn, ...]:
        """Return the rule of each column, without the values that training rows decide. vocabulary: the words of each
        column, none for numbers. Raises `DataError`, with the origin, for unknown columns, for rules that do not fit
        their column, and for features of the same name."""
        listed = self.indicator if isinstance(self.indicator, tuple) else vocabulary if self.indicator else ()
        unknown = next((name for name in (*self.columns, *listed) if name not in vocabulary), None)
        if unknown is not None:
            hint = suggest_name(unknown, vocabulary)[:300]
            raise DataError(f"{origin}: impute names '{unknown}', which is no column to learn from: {hint}")
        rules = []
        for column, words in vocabulary.items():
            holds_words, features = bool(words), tuple(f"{column}={word}" for word in words) or (column,)
            strategy, value = self.chosen(column, holds_words)
            if holds_words and strategy in ("mean", "median"):
                raise DataError(f"{origin}: impute.columns: '{column}' holds words; need most_frequent or constant")
            kind, fits = ("words", value != "") if holds_words else ("numbers", not isinstance(value, str))
            if not fits or (isinstance(value, int | float) and abs(value) >= _LARGEST):
                raise DataError(f"{origin}: impute: '{column}' holds {kind}, and the constant is {short_repr(value)}")
            keys: Any = {"strategy": strategy, "value": value, "indicator": column in listed}
            rules.append(ImputedColumn(column=column, features=features, **keys))
        titles = Counter(name for rule in rules for name in (*rule.features, *[rule.indicator_name] * rule.indicator))
        title, count = titles.most_common(1)[0]
        if count > 1:
            raise DataError(f"{origin}: two features would be called '{title}'; rename the column of this name")
        return tuple(rules)

    def chosen(self, column: str, holds_words: bool) -> tuple[Strategy, int | float | str | None]:
        """Return the strategy for a column and, if it is "constant", the value."""
        chosen = self.columns.get(column, self.words if holds_words else self.numbers)
        if chosen == "constant":
            chosen = {"constant": "missing" if holds_words else 0.0}
        if not isinstance(chosen, dict):
            return chosen, None
        return "constant", str(chosen["constant"]).strip() if holds_words else chosen["constant"]


ImputeSection = Annotated[
    Impute | None,
    Field(
        description="Section of the values for missing cells, with `incomplete: impute`; null takes its defaults.",
        examples=[{"numbers": "median"}],
    ),
]


def impute(data: "Dataset", columns: Sequence[ImputedColumn]) -> "tuple[Dataset, dict[str, int]]":
    """Return rows with filled cells and, unscaled behind the other features, the indicators that they lack; and how
    many cells of each column were filled. columns: the rules, with values."""
    x, positions = data.x.clone(), {name: position for position, name in enumerate(data.features)}
    counts, indicators = dict[str, int](), dict[str, Tensor]()
    for column in columns:
        is_missing = x[:, positions[column.features[0]]].isnan()
        if column.indicator and column.indicator_name not in positions:
            indicators[column.indicator_name] = is_missing.to(x.dtype)[:, None]
        if count := int(is_missing.sum()):
            counts[column.column] = count
        for name in column.features if count else ():
            word = name.removeprefix(f"{column.column}=")
            x[is_missing, positions[name]] = float(word == column.value if column.holds_words else column.value or 0.0)
    x, zeros = torch.cat([x, *indicators.values()], 1), torch.zeros(len(indicators))
    if data.mean is not None and data.std is not None:
        data = replace(data, mean=torch.cat([data.mean, zeros]), std=torch.cat([data.std, zeros + 1]))
    return replace(data, x=x, features=(*data.features, *indicators), imputed=tuple(columns)), counts


def imputed_cells(columns: Sequence[ImputedColumn], counts: Mapping[str, int]) -> str:
    """Return filled cells by column in words, with the values: 'chol' (3, mean 369.5), 'sex' (1, most frequent f)."""
    listed = []
    for column in [column for column in columns if column.column in counts][:_LISTED]:
        value = column.value if isinstance(column.value, str) else f"{column.value:.6g}"
        how = f"{column.strategy.replace('_', ' ')} {value}{'' if column.missing else ', complete in training'}"
        listed.append(f"'{column.column}' ({counts[column.column]:,}, {how})")
    return ", ".join(listed) + (f" and {len(counts) - _LISTED} more columns" if len(counts) > _LISTED else "")
