"""The base class of sources, the training and test set that a source returns, a split into both, and groups of samples
(persons, specimens, scenes) as sources name them."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import pydantic
import torch
from numpy.typing import ArrayLike
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.files import expand_if_path
from fedloom.core.key_models import Keys
from fedloom.core.registry import Registry
from fedloom.data.dataset import Dataset
from fedloom.data.imputation import ImputedColumn
from fedloom.data.labels import MISSING_MARKS, as_string_array
from fedloom.data.views import Indices, group_split, strata


class GroupPattern(Keys, extra="forbid", frozen=True):
    """Groups by the names of files."""

    pattern: str = Field(examples=[r"(patient\d+)_"])

    @pydantic.field_validator("pattern")
    @classmethod
    def _one_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"no regular expression ({error})") from None
        if groups != 1:
            raise ValueError(f"need one group in parentheses, as in (patient\\d+)_, not {groups}")
        return pattern

    def ids(self, paths: Sequence[str], origin: str) -> np.ndarray:
        """Return the id in each path [n]. Raises `DataError`, with the set as origin, for paths without one."""
        matches = [re.search(self.pattern, path) for path in paths]
        without = [path for path, match in zip(paths, matches, strict=True) if not (match and match[1])]
        if without:
            raise DataError(
                f"{origin}: group.pattern = '{self.pattern}' finds no id in {len(without):,} of {len(paths):,} files, "
                f"such as '{without[0]}'; the path below the class folder is searched"
            )
        return np.array([match[1] for match in matches if match], np.str_)


Group = Annotated[
    str | GroupPattern | None,
    Field(
        description="Groups of samples, such as persons, that must not be parted between training, validation and test "
        "rows. The value is the name of a column, `owner`, `PatientID` of DICOM files (hashed), {pattern: a regular "
        "expression} for file names, or `none` to say that there are no groups.",
        examples=["patient_id", {"pattern": r"(patient\d+)_"}],
    ),
]
SharedGroups = Annotated[
    Literal["refuse", "drop_test", "drop_train"],
    Field(
        description="Groups that a given test set shares with the training set: refuse the data, or drop the rows of "
        "these groups from the test set or from the training set."
    ),
]


_NUMBERED = re.compile(r"(.*?\d+)\D+\d+\.\w+")


def file_name_notes(train: Sequence[str], test: Sequence[str], origin: str) -> tuple[str, ...]:
    """Return a note if train and test, paths in the set origin, share names of numbered files: patient3_slice2.png."""
    names = [[match[1] for path in part if (match := _NUMBERED.fullmatch(path))] for part in (train, test)]
    count, shared = len(names[0]) + len(names[1]), {*names[0]} & {*names[1]}
    if not shared or count < 0.95 * (len(train) + len(test)) or not 10 <= len({*names[0], *names[1]}) <= count / 1.5:
        return ()
    text = f"{len(shared):,} of {len({*names[1]}):,} names of test files, such as '{min(shared)}', are in training"
    return (f"{origin}: {text}; if a name is one person, say `group: {{pattern: REGEX}}`, else `group: none`",)


def number_groups(parts: Sequence[ArrayLike], samples: Sequence[int], origin: str) -> list[Indices]:
    """Return the number of each sample's group for each part: its place among the sorted ids of all parts [n];
    `samples` of each. Raises `DataError`, with the origin, for ids of another length or kind, and missing ones."""
    words = []
    for number, (ids, count) in enumerate(zip(parts, samples, strict=True)):
        plain, role = as_string_array(np.asarray(ids)), "groups" if number == 0 else "groups_test"
        if plain.shape != (count,) or plain.dtype.kind not in "iuU":
            need = f"need ({count},), whole numbers or words, and no gaps"
            raise DataError(f"{origin}: {role} have shape {plain.shape} and dtype {plain.dtype}; {need}")
        words.append(plain.astype(np.str_))
        marks = np.isin(np.char.strip(words[-1]), ["", *MISSING_MARKS])
        if marks.any():
            raise DataError(
                f"{origin}: {role} lack an id for {int(marks.sum()):,} of {count:,} samples, the first "
                f"{int(np.argmax(marks))} ('{words[-1][np.argmax(marks)]}'); name their group, or leave them out"
            )
    codes = np.unique(np.concatenate(words), return_inverse=True)[1].astype(np.int64)
    return np.split(codes, np.cumsum(samples)[:-1])


SOURCES: "Registry[type[Source]]" = Registry("source", home="fedloom.data.sources")

SourceType = TypeVar("SourceType", bound="Source")

Labels = Annotated[
    Literal["single", "multi"],
    Field(
        description="Labels of a sample: `single` is one class of several, `multi` is any number of labels that do not "
        "exclude each other, each present, absent or not recorded."
    ),
]

MaxBadSamples = Annotated[
    int,
    Field(
        ge=0,
        description="Largest number of samples that may be unreadable: damaged files, or rows of a table with a word "
        "among numbers. They are left out, and a note names them; one more is an error.",
    ),
]


@dataclass(frozen=True, slots=True)
class Splits:
    """A training set and a test set: the official one, or the fixed one that the source describes."""

    train: Dataset
    test: Dataset
    domains_are_owners: bool = False  # each domain becomes a client, unless another partition is set
    numeric_features: tuple[int, ...] = ()  # standardised by `make_scenario`, which knows on what clients train
    rules: tuple[ImputedColumn, ...] = ()  # for missing cells, NaN in `x`; `make_scenario` computes the values
    own_moments: bool = False  # pixels have the training set's; computed again where clients or a domain never train
    validation: int = 0  # number of given validation samples, the last ones of `train`
    unreadable: int = 0  # samples that were left out by `max_bad_samples`
    notes: tuple[str, ...] = ()  # a sentence on each kind of data that was left out or looks like a mistake
    suspect: str = ""  # the column of `Dataset.suspect`
    flow: dict[str, Any] = field(default_factory=dict)  # rows and groups of each stage, see `fedloom.data.flow.stage`

    def __repr__(self) -> str:
        owners = f";\n  {self.owner_count} owners" if self.owner_count else ""
        return f"Splits(train={self.train!r},\n  test={self.test!r}{owners})"

    @property
    def owner_count(self) -> int:
        """Number of owners with training samples; 0 where domains are not owners."""
        domain = self.train.domain if self.domains_are_owners else None
        return 0 if domain is None else len(np.unique(domain.numpy()))


class Source(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base of all sources: its fields are config keys, and `load` reads the data, once per scenario. Subclasses
    register with `@source("name")`."""

    kind: ClassVar[str] = ""  # the name it is registered under
    model: ClassVar[str] = "lenet5"  # the model that the demo and the docs pair with this source
    keys_added_later: ClassVar[frozenset[str]] = frozenset({"group", "labels", "shared_groups"})
    """Keys of this class, not of its bases, that earlier versions did not have. A default is not written: runs of those
    versions keep their fingerprint and can be resumed."""

    offline: bool = Field(False, exclude=True)
    # Keys of every scenario: they are listed there, not with each source.
    group: SkipJsonSchema[Group] = None
    shared_groups: SkipJsonSchema[SharedGroups] = "refuse"
    labels: SkipJsonSchema[Labels] = "single"

    _expand_paths = pydantic.field_validator("*")(expand_if_path)

    @pydantic.model_validator(mode="after")
    def _imputes_if_asked(self) -> "Source":
        how = getattr(self, "incomplete", "impute")
        if getattr(self, "impute", None) is not None and how != "impute":
            raise ConfigError(f"scenario.impute is for incomplete: impute, and incomplete is {how}")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _leave_out_added_defaults(self, serialize: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        # `vars` finds the keys that each class adds; an attribute would find those of the last class alone.
        added_keys = {key for base in type(self).__mro__ for key in vars(base).get("keys_added_later", ())}
        at_default = {key for key in added_keys if getattr(self, key) == fields[key].default}
        return {key: value for key, value in serialize(self).items() if key not in at_default}

    def reading_keys(self) -> dict[str, Any]:
        """Keys by which `fedloom predict` reads new files as this source reads its own."""
        return {}

    def named_domains(self) -> tuple[str, ...]:
        """Return the names of its domains as far as its keys tell them; empty where only the data do."""
        return ()

    def load(self) -> Splits:
        """Read the data. Raises `DataError` that names the file and the problem."""
        raise TypeError(f"{type(self).__name__} defines no load()")

    @property
    def group_column(self) -> str | None:
        """The column of the groups, where `group` names one."""
        return self.group if isinstance(self.group, str) and self.group not in ("owner", "none") else None

    def files(self) -> Sequence[Path]:
        """List the files that `load` reads. Raises `DataError` that names missing files and their publisher."""
        return []


def configure_source(kind: type[SourceType], **keys: Any) -> SourceType:
    """Create a source from keys given in Python. Raises `DataError`, one line, for a wrong key."""
    try:
        return kind(**keys)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or kind.kind
        message = f"{problem['msg'][0].lower()}{problem['msg'][1:]}"
        raise DataError(f"{key} = {problem['input']!r:.80}: {message}") from None


source = SOURCES.register  # `source(name)` registers the decorated source class under `name`


def load_splits(source: Source) -> Splits:
    """Load a source with its groups, see `grouped`."""
    return grouped(source.load(), source)


def grouped(splits: Splits, source: Source) -> Splits:
    """Return a source's splits with the groups that its keys name, each in one part alone. Raises `DataError` for a key
    `group` that the source cannot follow, and for groups in both parts unless `shared_groups` drops them."""
    key = source.group
    if source.labels == "multi" and not splits.train.multi:
        takes = "arrays, .npz files, tables, file-table and hf take several"
        raise DataError(f"scenario.labels = multi: source {source.kind} has one label a sample; {takes}")
    if key == "none":
        return replace(splits, train=replace(splits.train, group=None), test=replace(splits.test, group=None))
    if key == "owner" and splits.train.group is None:
        if splits.train.domain is None or splits.test.domain is None:
            raise DataError(f"scenario.group = owner: source {source.kind} has no owners here; name a column of groups")
        rank = torch.from_numpy(np.argsort(np.argsort(np.array(splits.train.domains, np.str_))))
        train, test = (replace(part, group=rank[part.domain]) for part in (splits.train, splits.test))
        splits = replace(splits, train=train, test=test)
    if key is not None and splits.train.group is None:
        shown = f"{{pattern: {key.pattern}}}" if isinstance(key, GroupPattern) else key
        raise DataError(
            f"scenario.group = {shown}: source {source.kind} has no such groups; tables and hf take a column, folders "
            "a pattern or PatientID, .npz files hold group_train and group_test, and Python data come with groups="
        )
    return drop_shared(splits, source.shared_groups)


def drop_shared(splits: Splits, rule: str) -> Splits:
    """Return splits whose parts have no group in common. Raises `DataError`, with counts, if the rule is "refuse"."""
    groups = [part.group for part in (splits.train, splits.test)]
    if groups[0] is None or groups[1] is None:
        return splits
    is_shared = torch.isin(groups[0], groups[1]), torch.isin(groups[1], groups[0])
    count, rows = len(np.unique(groups[1][is_shared[1]].numpy())), [int(of.sum()) for of in is_shared]
    if not count:
        return splits
    of_all = f"{count:,} of {len(np.unique(groups[1].numpy())):,} groups of the test set are in the training set too"
    if rule not in ("drop_test", "drop_train"):
        remedy = "scenario.shared_groups: drop_test or drop_train leaves their rows out of that set"
        raise DataError(f"{of_all} ({rows[1]:,} test rows, {rows[0]:,} training rows); {remedy}")
    number = 1 if rule == "drop_test" else 0
    name, part, keep = ("train", "test")[number], (splits.train, splits.test)[number], ~is_shared[number]
    if not keep.any():
        raise DataError(f"{of_all}: shared_groups = '{rule}' leaves no row in the {name} set; take the other rule")
    note = f"{of_all}; their {rows[number]:,} of {len(part):,} rows were left out of the {name} set ({rule})"
    shorter: Any = {name: part.take(torch.nonzero(keep)[:, 0])}
    if name == "train" and splits.validation:
        shorter["validation"] = int(keep[-splits.validation :].sum())
    return replace(splits, notes=(*splits.notes, note), **shorter)


Rows = TypeVar("Rows", np.ndarray, list[tuple[str, int]])


def first_rows(rows: Rows, count: int | None, domain: str) -> Rows:
    """The first `count` rows of a domain, or all for None. Raises `DataError` if there are fewer."""
    if count is not None and count > len(rows):
        raise DataError(f"per_domain = {count}: domain {domain} has {len(rows)} training samples; ask for no more")
    return rows[:count]


def stratified_split(
    labels: np.ndarray,
    share: float,
    rng: np.random.Generator,
    origin: str,
    groups: np.ndarray | None = None,
    owners: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled row numbers of a training and a test part: ceil(share * n) rows are test, of each class its share
    by largest remainder; with groups [n], about so many of each class (and owner [n]), in whole groups. labels: [n] or
    [n, L], see `strata`. Raises `DataError`, with the origin, if a part is empty."""
    if groups is not None:
        is_test = group_split(groups, labels, (1 - share, share), rng, owners) == 1
        if not is_test.any():
            count = len(np.unique(groups))
            raise DataError(f"{origin}: no group can be held out for tests ({count:,} in all): need two of some class")
        return rng.permutation(np.flatnonzero(~is_test)), rng.permutation(np.flatnonzero(is_test))
    present, place, counts = np.unique(strata(labels), return_inverse=True, return_counts=True)
    # The small number keeps a product such as 0.07 * 100 from being rounded up by its last digit.
    total = math.ceil(share * len(labels) - 1e-9)
    if not 0 < total < len(labels):
        raise DataError(f"{origin}: {len(labels)} samples cannot be split into training and test parts")
    exact = counts * (total / len(labels))
    counts_taken = np.floor(exact + 1e-9).astype(np.int64)
    # Largest remainder: the classes that rounding down hurt most give one more, until the total is met.
    counts_taken[np.argsort(counts_taken - exact, kind="stable")[: total - int(counts_taken.sum())]] += 1
    test = np.zeros(len(labels), bool)
    for label in range(len(present)):
        test[rng.permutation(np.flatnonzero(place == label))[: counts_taken[label]]] = True
    return rng.permutation(np.flatnonzero(~test)), rng.permutation(np.flatnonzero(test))
