"""Labels as people write them, to class ids 0 .. C-1 and the name of each class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedloom.core.errors import DataError
from fedloom.data.near_twins import twin_of, twins_note

MARKS = frozenset(
    [
        "?",
        "??",
        "-",
        "--",
        "---",
        ".",
        "..",
        "NA",
        "N/A",
        "n/a",
        "na",
        "N.A.",
        "n.a.",
        "NaN",
        "nan",
        "NAN",
        "null",
        "NULL",
        "Null",
        "#N/A",
        "#NA",
        "<NA>",
        "\\N",
    ]
)
"""What people and programs write for a value that is missing."""

_LARGEST, _MANY = 2**31 - 1, 1000


def class_ids(
    parts: Sequence[np.ndarray], origin: str, classes: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Ids of the labels of each part (training set first), and the names of the C classes.

    Whole numbers from 0 on are ids already, holes included, as long as at least half of 0 .. C-1 occur. Other whole
    numbers, from 1 on or -1 and 1, get ids in their order, and are the names; with `classes`, as many numbers as there
    are names. Words: see `named_ids`. Labels of other kinds come back as they are, for
    `fedloom.data.dataset.checked` to refuse. Raises `DataError` for labels that are no classes: too many, too large.
    """
    labels = [_plain(part, origin) for part in parts]
    if classes is not None and len(set(classes)) < len(classes):
        twice = next(name for name, count in Counter(classes).items() if count > 1)
        raise DataError(f"{origin}: class name '{twice}' occurs twice; give each class a name of its own")
    if classes is not None and len(classes) > max(_MANY, sum(map(len, labels))):
        raise DataError(
            f"{origin}: {len(classes):,} class names for {sum(map(len, labels)):,} samples; name classes, not samples"
        )
    if all(part.dtype.kind == "U" for part in labels):
        return named_ids(labels, [f"{origin} (train)", f"{origin} (test)"], classes)
    numbers = [part for part in labels if part.dtype.kind in "iu"]
    found = sorted({int(value) for part in numbers for value in np.unique(part)})
    mapped = len(numbers) == len(labels) and bool(found) and _to_be_mapped(found, classes)
    if mapped and found[-1] > _LARGEST:
        raise DataError(f"{origin}: label {found[-1]} is no class: need whole numbers 0 .. C-1, or words")
    if mapped or len(found) > _MANY:
        require_few(len(found), sum(map(len, labels)), f"{origin}: labels")
    if mapped:
        rank = {value: place for place, value in enumerate(found)}
        ids = [np.array([rank[value] for value in part.tolist()], np.int64) for part in labels]
        return ids, tuple(map(str, found) if classes is None else classes)
    known = range(1 + min(max(found, default=0), 2 * len(found))) if classes is None else classes
    return labels, tuple(map(str, known))


def named_ids(
    parts: Sequence[ArrayLike], origins: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Ids [n] int64 of the words of each part, and the words: `classes` if given, else those of the first part, sorted,
    by value if all are whole numbers. `origins` name the parts in messages.

    Raises `DataError` for missing words, too many different ones, and words of a later part that are none of them.
    """
    words = [np.asarray(part, np.str_) for part in parts]
    for part, origin in zip(words, origins, strict=False):
        if (part == "").any():
            raise DataError(f"{origin}: label {int(np.argmax(part == ''))} is missing; leave the sample out")
    known = tuple(in_order(np.unique(words[0])) if classes is None else classes)
    if classes is None:
        require_few(len(known), sum(map(len, words)), f"{origins[0]}: labels")
    rank = {word: place for place, word in enumerate(known)}
    ids = []
    for part, origin in zip(words, origins, strict=False):
        kinds, place = np.unique(part, return_inverse=True)
        unknown = next((str(word) for word in kinds if str(word) not in rank), None)
        if unknown is not None:
            twin = twin_of(unknown, known)
            hint = "" if twin is None else f"; write '{twin[:40]}'"
            raise DataError(f"{origin}: label '{unknown[:40]}' is none of {', '.join(known)[:200]}{hint}")
        ids.append(np.array([rank[str(word)] for word in kinds], np.int64)[place])
    return ids, known


def class_notes(origins: Sequence[str], classes: Sequence[str], train: Sequence[int], test: Sequence[int]) -> list[str]:
    """Sentences on what is unusual about the samples of each class, `train` [C] and `test` [C]: near twins, one class,
    and classes that only one part has. `origins`: of the training part and the test part, or of both in one."""
    notes = twins_note(origins[0], "classes", dict(zip(classes, train, strict=True)))
    if sum(count > 0 for count in train) == 1:
        notes.append(f"{origins[0]}: all samples are of one class, '{classes[int(np.argmax(train))]}'")
    if len(origins) > 1:
        for origin, counts, elsewhere in ((origins[1], test, train), (origins[0], train, test)):
            absent = [name for name, n, m in zip(classes, counts, elsewhere, strict=True) if m and not n]
            if absent:
                notes.append(f"{origin}: classes without a sample here ({len(absent)}): {', '.join(absent)[:200]}")
    return notes


def missing_marks(names: Collection[str]) -> list[str]:
    """Those among the names of classes that stand for a missing value as a rule. A minus beside a plus is a class."""
    return [name for name in names if name in MARKS and not (name == "-" and "+" in names)]


def in_order(words: ArrayLike) -> list[str]:
    """Words sorted, by value if all are whole numbers."""
    listed = [str(word) for word in np.asarray(words).tolist()]
    numbers = all(word.removeprefix("-").isdecimal() for word in listed)
    return sorted(listed, key=int) if numbers else sorted(listed)


def as_words(values: np.ndarray) -> np.ndarray:
    """Words [n] that are kept as objects, as numpy's own; anything else as it is."""
    if values.dtype.kind in "OT" and values.ndim == 1 and len(values):
        listed = values.tolist()
        return np.array(listed, np.str_) if all(isinstance(word, str) for word in listed) else values
    return values


def require_few(different: int, samples: int, what: str) -> None:
    """Raises `DataError` for more different values than classes have: above 20, two samples each are needed on
    average, and above 1,000 ten.
    """
    if different > max(20, min(samples // 2, _MANY), samples // 10):
        raise DataError(
            f"{what} take {different} different values in {samples} samples: ids or measurements rather than classes; "
            "name a column of classes, or bin the values"
        )


def _to_be_mapped(found: Sequence[int], classes: Sequence[str] | None) -> bool:
    lowest, highest = found[0], found[-1]
    if classes is not None:
        return (lowest < 0 or highest >= len(classes)) and len(found) == len(classes)
    if lowest < 0:  # by convention no label at all; -1 and 1 are a convention of two classes
        return found == [-1, 1]
    return lowest > 0 or highest >= 2 * len(found)


def _plain(labels: np.ndarray, origin: str) -> np.ndarray:
    """Without the trailing axis of Keras; words as numpy's own. Raises `DataError` for missing and mixed ones."""
    plain = as_words(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)
    if plain.dtype.kind in "OT" and plain.ndim == 1 and len(plain):
        kinds = sorted({type(value).__name__ for value in plain.tolist()})
        raise DataError(f"{origin}: labels are {', '.join(kinds)}; need whole numbers, or words, and no gaps")
    return plain
