"""Groups of samples (persons, specimens, scenes) as sources name them: keys, numbers, and groups in both parts."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, Field, field_validator

from fedloom.core.errors import DataError
from fedloom.data.labels import MISSING_MARKS, as_string_array
from fedloom.data.views import Indices


class GroupPattern(BaseModel, extra="forbid", frozen=True):
    """Groups by the names of files."""

    pattern: str = Field(
        description="Regular expression with one group in parentheses: the id in each path below the class folder.",
        examples=[r"(patient\d+)_"],
    )

    @field_validator("pattern")
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
