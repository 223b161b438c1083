"""Labels and words: class ids, missing marks, and names that differ only in spelling."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedloom.core.errors import DataError
from fedloom.core.text import lists_by_key

_SHORT = {"y": "yes", "n": "no", "t": "true"}
_LISTED = 3  # groups in a note
# Unicode's Default_Ignorable_Code_Point: characters that nobody sees, such as a space of width zero.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Cyrillic and Greek letters whose small or capital form looks Latin; no mu, for a microgram is no milligram.
_SAME_SHAPE = str.maketrans(
    "\u0430\u0432\u0435\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0456\u0458\u0501\u051b\u051d\u0131"
    "\u03b1\u03b2\u03b5\u03b6\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7",
    "abekmhopctyxsijdqwiabezhiknoptyx",
)
_DASHES = re.compile("[\u02d7\u058a\u2010-\u2015\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d]")
_QUOTES = re.compile('["`\u00ab\u00b4\u00bb\u02b9\u02bc\u2018-\u201f\u2032-\u2036\u2039\u203a]')

# What columns of persons and other groups, and of ids and row numbers, are called.
GROUP_NAME = re.compile(
    r"(?i:(.*[ _.-])?(patient|person|subject|participant|individual|pupil|student|child|woman|mother|animal|rat|mouse|"
    r"dog|family|household|twin|pair|case|litter|specimen|sample|scene|session|user|writer|speaker|driver|cluster|group|"
    r"block|school|class|clinic|hospital|cent(er|re)|site|batch|lot|plot|tree|id|uid|pid|mrn|ssn)s?"
    r"([ _.-]?(id|no|nr|num|number|code))?)|.*[a-z]I[dD]"
)
ID_NAME = re.compile(
    r"(?i:(.*[ _.-])?(ids?|[ug]uid|uuid|mrn|ssn|index|idx|key|rownames|row|nr|no|number))|.*[a-z](ID|Id)"
)


def folded(name: str) -> str:
    """Return a name without case, accents, invisible characters, repeated spaces, trailing dots; letters of one shape,
    dashes and quotes become one, a number its value.

    Example:
        >>> folded(" Ｙｅｓ. "), folded("1.0"), folded("Café  au lait")
        ('yes', '1', 'cafe au lait')
    """
    # NFKD would turn an accent that stands alone, used as a quote, into a space.
    shown = _QUOTES.sub("'", _DASHES.sub("-", _INVISIBLE.sub("", name.casefold())))
    letters = unicodedata.normalize("NFKD", shown).translate(_SAME_SHAPE)
    plain = " ".join("".join(letter for letter in letters if not unicodedata.combining(letter)).split()).rstrip(". ")
    # Whole numbers avoid float, in which long ids that differ in the last digits would be one.
    if plain.removeprefix("-").isdecimal():
        return str(int(plain))
    if re.fullmatch(r"(?!0+e)[-+]?\d*\.?\d+(e[-+]?\d+)?", plain):  # 0E8 and 0E0 are two airports
        return f"{float(plain):.15g}"
    return _SHORT.get(plain, plain) or name  # of dots or accents alone nothing is left


def near_twins(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of different names that look like spellings of one name."""
    groups = lists_by_key((folded(name), name) for name in names)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def twin_of(name: str, names: Sequence[str]) -> str | None:
    """Return the one of `names` that looks like another spelling of `name`, or None."""
    spelling = folded(name)
    return next((candidate for candidate in names if folded(candidate) == spelling), None)


def twins_note(origin: str, role: str, counts: Mapping[str, int]) -> list[str]:
    """Return a note on similar names among counts (samples by name), or nothing. role: what they name."""
    groups = near_twins(counts)
    if not groups:
        return []
    listed = "; ".join(" and ".join(f"'{name}' ({counts[name]:,})" for name in group) for group in groups[:_LISTED])
    more = f" and {len(groups) - _LISTED} more" if len(groups) > _LISTED else ""
    return [
        f"{origin}: {role} look alike and count as different: {listed}{more}; spell them the same way if they are one"
    ]


# What people and programs write for a missing value.
_MARKS = r"? ?? - -- --- . .. NA N/A n/a na N.A. n.a. NaN nan NAN null NULL Null #N/A #NA <NA> \N"
MISSING_MARKS = frozenset(_MARKS.split())
PARTS = ("train", "test")  # of a set, as messages call them
_LARGEST, _MANY = 2**31 - 1, 1000


def class_ids(
    parts: Sequence[np.ndarray], origin: str, classes: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the class ids of each part [n] (training set first), and the names of the C classes. Whole numbers from 0
    on, also as floats, are ids already if at least half of 0 .. C-1 occur; others get ids in their order and are the
    names; with `classes`, as many numbers as there are names. Words: see `named_ids`. Labels of other kinds come back
    as they are, for `checked` to refuse. Raises `DataError`, with the set as origin, for labels that are no classes."""
    labels = [_plain(part, origin) for part in parts]
    if classes is None and all(part.dtype.kind == "b" for part in labels):
        classes = ("False", "True")
    labels = [part.astype(np.int64) if part.dtype.kind == "b" else part for part in labels]
    if classes is not None and len(set(classes)) < len(classes):
        duplicate = next(name for name, count in Counter(classes).items() if count > 1)
        raise DataError(f"{origin}: class name '{duplicate}' occurs twice; give each class a different name")
    if classes is not None and len(classes) > max(_MANY, sum(map(len, labels))):
        remedy = "name classes, not samples"
        raise DataError(f"{origin}: {len(classes):,} class names for {sum(map(len, labels)):,} samples; {remedy}")
    if all(part.dtype.kind == "U" for part in labels):
        if classes is None:
            refuse_missing_labels(labels[0], f"{origin} (train)")
        return named_ids(labels, [f"{origin} (train)", f"{origin} (test)"], classes)
    numeric_parts = [part for part in labels if part.dtype.kind in "iu"]
    numbers = sorted({int(value) for part in numeric_parts for value in np.unique(part)})
    is_mapped = len(numeric_parts) == len(labels) and bool(numbers) and _to_be_mapped(numbers, classes)
    if is_mapped and numbers[-1] > _LARGEST:
        raise DataError(f"{origin}: label {numbers[-1]} is no class: need whole numbers 0 .. C-1, or words")
    if is_mapped or len(numbers) > _MANY:
        require_few(len(numbers), sum(map(len, labels)), f"{origin}: labels")
    if is_mapped:
        rank = {value: class_id for class_id, value in enumerate(numbers)}
        ids = [np.array([rank[value] for value in part.tolist()], np.int64) for part in labels]
        return ids, tuple(map(str, numbers) if classes is None else classes)
    # Bounded: a label that `checked` will refuse, such as 10**12 next to -2, must not make so many names.
    names = range(1 + min(max(numbers, default=0), 2 * len(numbers))) if classes is None else classes
    return labels, tuple(map(str, names))


def named_ids(
    parts: Sequence[ArrayLike], origins: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the ids [n], int64, of the words of each part, and the class names: `classes`, or the sorted words of the
    first part. Raises `DataError`, with the parts' origins, for missing, too many and unknown words."""
    words = [np.asarray(part, np.str_) for part in parts]
    for part, origin in zip(words, origins, strict=False):
        if (part == "").any():
            raise DataError(f"{origin}: label {int(np.argmax(part == ''))} is missing; leave the sample out")
    names = tuple(sorted_words(np.unique(words[0])) if classes is None else classes)
    if classes is None:
        require_few(len(names), sum(map(len, words)), f"{origins[0]}: labels")
    rank = {word: class_id for class_id, word in enumerate(names)}
    ids = []
    for part, origin in zip(words, origins, strict=False):
        distinct_words, class_id = np.unique(part, return_inverse=True)
        unknown = next((str(word) for word in distinct_words if str(word) not in rank), None)
        if unknown is not None:
            twin = twin_of(unknown, names)
            hint = "" if twin is None else f"; write '{twin[:40]}'"
            raise DataError(f"{origin}: label '{unknown[:40]}' is none of {', '.join(names)[:200]}{hint}")
        ids.append(np.array([rank[str(word)] for word in distinct_words], np.int64)[class_id])
    return ids, names


def multi_labels(
    parts: Sequence[np.ndarray], origin: str, classes: Sequence[str] | None = None
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return several labels a sample as int64 [n, L] of 1, 0 and -1 (not recorded, in the parts also NaN), and the L
    names (`classes`, or the columns' numbers). Raises `DataError` with the origin for other values."""
    need = "labels: multi needs numbers [n, L]: 1, 0, and -1 or an empty cell where a label was not recorded"
    values = []
    for part in parts:
        if part.dtype.kind not in "biuf" or part.ndim != 2 or not part.shape[1]:
            raise DataError(f"{origin}: labels have shape {part.shape} and dtype {part.dtype!s:.60}; {need}")
        filled = np.where(np.isnan(part), -1, part) if part.dtype.kind == "f" else part
        if (odd := filled[~np.isin(filled, (-1, 0, 1))]).size:
            problem = f"{odd.size:,} of {filled.size:,} labels are other numbers, as {odd[0]:g}; {need}"
            raise DataError(f"{origin}: {problem}")
        values.append(filled.astype(np.int64))
    widths = {part.shape[1] for part in values}
    names = tuple(map(str, range(max(widths)) if classes is None else classes))
    if widths != {len(names)} or len({*names}) < len(names):
        listed = ", ".join(names)[:200]
        raise DataError(f"{origin}: {sorted(widths)} labels a sample, names are {listed}; give each label one name")
    return values, names


def multi_label_notes(origin: str, classes: Sequence[str], train: np.ndarray, test: np.ndarray) -> list[str]:
    """Return notes on similar names of labels, on labels that a part never has or never lacks, and on samples that
    record none. train, test: [n, L]. Raises `DataError`, with the origin, if no training label is 0."""
    if not (train == 0).any():
        need = "write 0 where a label is absent, and -1 only where it was not recorded"
        raise DataError(f"{origin}: no label of a training sample is 0, so that nothing can be told apart; {need}")
    positives = (train == 1).sum(0).tolist()
    notes = twins_note(origin, "labels", dict(zip(classes, positives, strict=True)))
    for part, labels in zip(PARTS, (train, test), strict=True):
        for value, what in ((1, "a positive"), (0, "a negative")):
            absent = [name for name, present in zip(classes, (labels == value).any(0), strict=True) if not present]
            if absent:
                problem = f"labels without {what} here ({len(absent)}): {', '.join(absent)[:200]}"
                notes.append(f"{origin} ({part}): {problem}")
        if count := int((labels < 0).all(1).sum()):
            notes.append(f"{origin} ({part}): {count:,} of {len(labels):,} samples record none of the labels")
    return notes


def class_notes(origins: Sequence[str], classes: Sequence[str], train: Sequence[int], test: Sequence[int]) -> list[str]:
    """Return notes on similar class names, a single class, and classes that only one part has. origins: names of both
    parts, the same twice for parts that were split from one. train, test: samples of each class [C]."""
    split_from_one = origins[0] == origins[1]
    counts = np.add(train, test).tolist() if split_from_one else train
    parts = [f"{origin} ({part})" if split_from_one else origin for origin, part in zip(origins, PARTS, strict=True)]
    notes = twins_note(origins[0], "classes", dict(zip(classes, counts, strict=True)))
    for separator in "|;,":
        parts_of = {name: {word.strip() for word in name.split(separator)} for name in classes if separator in name}
        if joined := [name for name, words in parts_of.items() if words <= {*classes}]:
            keys = f"labels: multi with label_separator: '{separator}' reads several labels a sample"
            notes.append(f"{origins[0]}: classes that name others ({len(joined)}), such as '{joined[0]}'; {keys}")
    if sum(count > 0 for count in counts) == 1:
        notes.append(f"{origins[0]}: all samples are of one class, '{classes[int(np.argmax(counts))]}'")
    for part, present, elsewhere in ((parts[1], test, train), (parts[0], train, test)):
        absent = [name for name, n, m in zip(classes, present, elsewhere, strict=True) if m and not n]
        if absent:
            notes.append(f"{part}: classes without a sample here ({len(absent)}): {', '.join(absent)[:200]}")
    return notes


def refuse_missing_labels(labels: np.ndarray, origin: str, noun: str = "samples") -> None:
    """Raise `DataError` for labels [n] that are written as missing values are, with origin and noun of samples."""
    words, counts = np.unique(labels, return_counts=True)
    marks = missing_marks(words.tolist())
    if marks:
        count = int(counts[words == marks[0]][0])
        raise DataError(
            f"{origin}: label '{marks[0]}' of {count:,} {noun} stands for a missing value as a rule; leave these "
            f"{noun} out, or give the class another name"
        )


def missing_marks(names: Collection[str]) -> list[str]:
    """Return the class names that usually stand for a missing value. "-" is a class if "+" is one."""
    return [name for name in names if name in MISSING_MARKS and not (name == "-" and "+" in names)]


def sorted_words(words: ArrayLike) -> list[str]:
    """Sort words, by value if all are whole numbers."""
    listed = [str(word) for word in np.asarray(words).tolist()]
    numbers = all(word.removeprefix("-").isdecimal() for word in listed)
    return sorted(listed, key=int) if numbers else sorted(listed)


def as_string_array(values: np.ndarray) -> np.ndarray:
    """Convert an object array [n] of words into a string array; return other arrays unchanged."""
    if values.dtype.kind in "OT" and values.ndim == 1 and len(values):
        listed = values.tolist()
        return np.array(listed, np.str_) if all(isinstance(word, str) for word in listed) else values
    return values


def require_few(different: int, samples: int, what: str) -> None:
    """Raise `DataError` for too many different values: above 20 need two samples each on average, above 1,000 ten."""
    if different > max(20, min(samples // 2, _MANY), samples // 10):
        problem = "ids or measurements rather than classes; name a column of classes, or bin the values"
        raise DataError(f"{what} take {different} different values in {samples} samples: {problem}")


def _to_be_mapped(numbers: Sequence[int], classes: Sequence[str] | None) -> bool:
    lowest, highest = numbers[0], numbers[-1]
    if classes is not None:
        return (lowest < 0 or highest >= len(classes)) and len(numbers) == len(classes)
    if lowest < 0:  # by convention no label at all; -1 and 1 are a convention of two classes
        return numbers == [-1, 1]
    # Ids with a few holes are fine; if most are unused, the numbers are names such as postcodes.
    return lowest > 0 or highest >= 2 * len(numbers)


def _plain(labels: np.ndarray, origin: str) -> np.ndarray:
    """Drop Keras' trailing axis, convert words and whole floats. Raises `DataError` for missing or mixed labels."""
    plain = as_string_array(labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels)
    if plain.dtype.kind in "OT" and plain.ndim == 1 and len(plain):
        kinds = sorted({type(value).__name__ for value in plain.tolist()})
        if not {*kinds} <= {"bool", "int", "float"}:
            raise DataError(f"{origin}: labels are {', '.join(kinds)}; need whole numbers, or words, and no gaps")
        plain = np.array(plain.tolist())
    # From 2**53 on every float is whole, which says nothing about labels; NaN and infinity fail the comparison.
    is_whole = plain.dtype.kind == "f" and bool(((plain == np.floor(plain)) & (np.abs(plain) < 2**53)).all())
    return plain.astype(np.int64) if is_whole else plain


_ALL_UNKNOWN = 0.9  # share of rows: another spelling rather than new words
_FEW_ROWS = 20  # fewer may well hold nothing but new words


def unknown_cells(counts: Mapping[str, int], vocabulary: Collection[str]) -> int:
    """Count the cells with words outside the vocabulary, which are 0 in all of the column's features."""
    words = set(vocabulary)
    return sum(count for word, count in counts.items() if word not in words)


def refuse_other_spelling(counts: Mapping[str, int], vocabulary: Collection[str], origin: str) -> None:
    """Raise `DataError` if a word of counts (rows by word of the column `origin`) is another spelling of a known word
    in the vocabulary, or if hardly any cell holds a known word."""
    words = set(vocabulary)
    absent = {word: count for word, count in counts.items() if word not in words}
    spellings = {folded(word): word for word in vocabulary} if absent else {}
    for word, count in absent.items():
        twin = spellings.get(folded(word))
        if twin is not None:
            raise DataError(f"{origin} holds '{word[:40]}' in {count:,} rows, known as '{twin[:40]}'; write it so")
    total, rows = sum(absent.values()), sum(counts.values())
    if rows >= _FEW_ROWS and total >= _ALL_UNKNOWN * rows:
        example = next(iter(absent))[:40]
        remedy = f"write them as the known ones: {', '.join(vocabulary)[:200]}"
        raise DataError(f"{origin} holds unknown words in {total:,} of {rows:,} rows, such as '{example}'; {remedy}")
