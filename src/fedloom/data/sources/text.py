"""Texts as token ids: TSV files and the IMDB reviews."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import PARTS, named_ids, refuse_missing_labels, require_few
from fedloom.data.sources import cached
from fedloom.data.sources.cached import Allocator, CachedSource, ParsedSamples, ParsedSplits, PublishedFiles
from fedloom.data.sources.files import Files, utf8
from fedloom.data.sources.source import GroupPattern, number_groups, source

PADDING, UNKNOWN = 0, 1
Tokens = Literal["words", "characters"]
Vocabulary = Annotated[
    int,
    Field(ge=3, description="Number of token ids: 0 pads, 1 is unknown, others are the most frequent training tokens."),
]
TextLength = Annotated[
    int, Field(ge=1, description="Number of tokens of a text; longer texts are cut and shorter ones padded at the end.")
]
TokenUnit = Annotated[
    Tokens | None,
    Field(
        description="Unit that texts are split into: `words`, or `characters` for texts without spaces between "
        "words (Chinese, Thai, DNA). Null splits into words, and refuses texts without spaces."
    ),
]

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_UNSPACED = re.compile(  # letters of scripts that put no spaces between words: Thai to Myanmar, Khmer, kana, Han
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_LONG, _LONG_UNSPACED = 25, 3  # letters of a mean token that is no word, and of one in a script without spaces
_LOOKED_AT = 1000  # texts
_MANY_UNKNOWN = 0.3


@dataclass(frozen=True, slots=True)
class Texts:
    """Labelled texts; `labels` [n] int64, numbers of groups [n] or None."""

    texts: list[str]
    labels: np.ndarray
    group: np.ndarray | None = None


def words(text: str) -> list[str]:
    """Return lower-case words: letters and digits of any script, inner apostrophes; HTML line breaks are spaces."""
    tokens: list[str] = _WORD.findall(_BREAK.sub(" ", text).lower())
    return tokens


def characters(text: str) -> list[str]:
    """Return lower-case characters of any script but spaces; HTML line breaks are spaces."""
    return [letter for letter in _BREAK.sub(" ", text).lower() if not letter.isspace()]


def splitter(tokens: Tokens | None) -> Callable[[str], list[str]]:
    """Return the function that splits a text into tokens."""
    return characters if tokens == "characters" else words


def infer_tokens(vocabulary: Sequence[str]) -> Tokens:
    """Return how texts with this vocabulary were split: all of its tokens are single characters, or some are words."""
    return "characters" if vocabulary and all(len(token) == 1 for token in vocabulary) else "words"


def vocabulary(texts: Sequence[str], size: int, tokens: Tokens | None = None) -> dict[str, int]:
    """Return token -> id of the most frequent tokens of the training texts, split into `tokens`; equally frequent ones
    in alphabetical order. Ids start at 2, so there are `size - 2` of them."""
    split, counts = splitter(tokens), Counter[str]()
    for text in texts:
        counts.update(split(text))
    ranked = sorted(counts.items(), key=lambda word_count: (-word_count[1], word_count[0]))
    return {token: number for number, (token, _) in enumerate(ranked[: size - 2], 2)}


def encode(texts: Sequence[str], vocabulary: dict[str, int], length: int, tokens: Tokens | None = None) -> np.ndarray:
    """Return token ids [n, length] int64: the first `length` tokens, unknown ones as 1, padded behind with 0."""
    ids, split = np.full((len(texts), length), PADDING, np.int64), splitter(tokens)
    for row, text in enumerate(texts):
        held = [vocabulary.get(token, UNKNOWN) for token in split(text)[:length]]
        ids[row, : len(held)] = held
    return ids


def refuse_unspaced(texts: Sequence[str], origin: str) -> None:
    """Raise `DataError` for texts without spaces between words, where a token would be a whole sentence."""
    step = max(1, len(texts) // _LOOKED_AT)
    sample = texts[::step]
    held = [token for text in sample for token in words(text)]
    letters = sum(map(len, held))
    if not held or letters < 100:
        return
    mean = letters / len(held)
    unspaced = sum(len(_UNSPACED.findall(token)) for token in held) > letters / 2
    if mean > (_LONG_UNSPACED if unspaced else _LONG):
        longest = max(held, key=len)
        raise DataError(
            f"{origin}: texts have no spaces between words: a token has {mean:.0f} letters on average, such as "
            f"'{longest[:30]}'; say `tokens: characters`, or `tokens: words` if they are meant so"
        )


def token_notes(ids: np.ndarray, origin: str) -> list[str]:
    """Return sentences on texts (`origin`) without a token, and on many unknown tokens; ids [n, length]."""
    notes, empty = [], int((ids == PADDING).all(1).sum())
    total, unknown = int((ids != PADDING).sum()), int((ids == UNKNOWN).sum())
    if empty:
        notes.append(f"{origin}: {empty:,} of {len(ids):,} texts hold no token")
    if unknown > _MANY_UNKNOWN * total:
        whole = int(((ids == UNKNOWN) | (ids == PADDING)).all(1).sum()) - empty
        notes.append(
            f"{origin}: {100 * unknown / total:.0f} % of {total:,} tokens are not in the training texts' vocabulary; "
            f"all tokens of {whole:,} of {len(ids):,} texts are unknown"
        )
    return notes


def tokenise(
    parts: Sequence[Sequence[str]], size: int, length: int, tokens: Tokens | None, column: str, origin: str
) -> tuple[list[np.ndarray], tuple[str, ...], list[str]]:
    """Return token ids [n, length] of both parts, the words of at most `size` ids, and notes on the texts `origin`.
    Raises `DataError`, with the column, for training texts without spaces."""
    if tokens is None:
        refuse_unspaced(parts[0], column)
    ids_of = vocabulary(parts[0], size, tokens)
    ids = [encode(texts, ids_of, length, tokens) for texts in parts]
    notes = [note for x, name in zip(ids, PARTS, strict=True) for note in token_notes(x, f"{origin} ({name})")]
    return ids, tuple(ids_of), notes


class TextSource(CachedSource):
    """Base of text sources."""

    model = "bilstm"
    keys_added_later = frozenset({"tokens"})

    vocabulary: Vocabulary = 10_000
    length: TextLength = 200
    tokens: TokenUnit = None

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        """Return the origin for messages, training texts, test texts, classes."""
        raise TypeError(f"{type(self).__name__} defines no read_texts()")

    def parse(self, allocate: Allocator) -> ParsedSplits:
        origin, train, test, classes = self.read_texts()
        ids, words, notes = tokenise(
            [train.texts, test.texts], self.vocabulary, self.length, self.tokens, origin, origin
        )
        parts = [ParsedSamples(x, part.labels, group=part.group) for x, part in zip(ids, (train, test), strict=True)]
        return ParsedSplits(origin, parts[0], parts[1], classes, tokens=True, words=words, notes=tuple(notes))


_HEADER = ("label", "labels", "class", "category", "target", "sentiment", "y")
Rows = list[tuple[str, str]]


def read_tsv(
    files: Files, train: str, test: str, *, separator: str = "\t", classes: Sequence[str] | None = None
) -> tuple[Texts, Texts, tuple[str, ...]]:
    """Read both parts (names `train` and `test` of files) of a set, and its class names. separator: between label and
    text. classes: names in the order of their ids; None takes the sorted training labels."""
    rows = [_rows(files, name, separator) for name in (train, test)]
    words_of = [[label for label, _ in part] for part in rows]
    ids, class_names = named_ids(words_of, [files.display_name(name) for name in (train, test)], classes)
    parts = [Texts([text for _, text in part], labels) for part, labels in zip(rows, ids, strict=True)]
    return parts[0], parts[1], class_names


def _rows(files: Files, name: str, separator: str) -> Rows:
    """Return (label, text) of each line; a first line of three columns makes them label, file, text."""
    text = utf8(files.read(name), files.display_name(name))
    # Not `splitlines`: texts may hold form feeds and Unicode's line separators, which end no line here.
    ends = "\n" if "\n" in text else "\r"
    lines = [line for line in text.split(ends) if line.strip()]
    columns = min(3, lines[0].count(separator) + 1) if lines and separator == "\t" else 2
    if not lines or columns < 2:
        match = re.match(r"[\w-]{1,20}([,;|])", lines[0] if lines else "")
        hint = f"; cells look separated by '{match[1]}' (`separator: \"{match[1]}\"`)" if match else ""
        raise DataError(f"{files.display_name(name)}: need lines of label<TAB>text or label<TAB>file<TAB>text{hint}")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.rstrip("\r").split(separator, columns - 1)
        if len(cells) < columns:
            counts = f"has {len(cells)} columns, the first has {columns}"
            raise DataError(f"{files.display_name(name)}: line {number} {counts}")
        rows.append((cells[0].strip(), cells[-1]))
    labels, texts = ({*cells} for cells in zip(*rows, strict=True))
    if len(labels) > max(20, len(rows) / 2) and len(texts) <= 20:
        raise DataError(
            f"{files.display_name(name)}: the first of {columns} columns takes {len(labels):,} values, the last one "
            f"{len(texts)}; need the label first and the text last"
        )
    if len(rows) > 1 and rows[0][0].casefold() in _HEADER and rows[0][0] not in {label for label, _ in rows[1:]}:
        problem = f"line 1 begins with '{rows[0][0]}', a header rather than a label; leave it out"
        raise DataError(f"{files.display_name(name)}: {problem}")
    return rows


@source("tsv")
class Tsv(TextSource):
    """Labelled texts in two UTF-8 files of a folder, as token ids.

    A line is label<TAB>text or label<TAB>file<TAB>text (with another separator, label and text only), and there is no
    header. Labels are integers or words; classes are those of the training file."""

    path: Path = Field(description="Path of the folder with the two files.")
    train_file: str = Field("train.tsv", description="File name of the training texts.")
    test_file: str = Field("test.tsv", description="File name of the test texts.")
    separator: str = Field("\t", min_length=1)

    def files(self) -> Sequence[Path]:
        names = [self.train_file, self.test_file]
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise DataError(f"source tsv: {self.path} holds no {missing[0]}; need {' and '.join(names)} there")
        return [self.path / name for name in names]

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        train, test, classes = read_tsv(Files(self.path), self.train_file, self.test_file, separator=self.separator)
        require_few(len(classes), len(train.labels), f"{self.path / self.train_file}: labels")
        refuse_missing_labels(np.array(classes)[train.labels], str(self.path / self.train_file), "texts")
        return str(self.path), train, test, classes


_CLASSES = ("neg", "pos")


@cached.published_set("imdb")
class IMDB(PublishedFiles, TextSource):
    path: Path | None = None

    def names_to_read(self, files: Files) -> list[str]:
        return _wanted(files)

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        folder, files = self.data_path(), self.opened()
        if folder.is_dir() and files.has("imdb_train.tsv"):
            train, test, _ = read_tsv(files, "imdb_train.tsv", "imdb_test.tsv", classes=("0", "1"))
        else:
            train, test = _read_folders(files, self.group)
        rows = np.random.default_rng(0).permutation(len(train.texts))
        group = None if train.group is None else train.group[rows]
        return str(folder), Texts([train.texts[row] for row in rows], train.labels[rows], group), test, _CLASSES


def _wanted(files: Files) -> list[str]:
    if files.has("imdb_train.tsv"):
        return ["imdb_train.tsv", "imdb_test.tsv"]
    places = tuple(f"{part}/{name}/" for part in ("train", "test") for name in _CLASSES)
    return [name for name in files.names() if name.startswith(places) and name.endswith(".txt")]


def _read_folders(files: Files, key: object) -> tuple[Texts, Texts]:
    names = _wanted(files)
    read = {name: utf8(raw, files.display_name(name)) for name, raw in files.read_each(names)}
    parts, paths = [], dict[str, list[str]]()
    for part in ("train", "test"):
        texts: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(_CLASSES):
            of_class = [file for file in names if file.startswith(f"{part}/{name}/")]
            paths[part] = paths.get(part, []) + [file.removeprefix(f"{part}/{name}/") for file in of_class]
            members = [read[file] for file in of_class]
            if not members:
                raise DataError(f"{files.path}: no {part}/{name}/*.txt; need both classes in train and test")
            texts += members
            labels += [label] * len(members)
        parts.append(Texts(texts, np.array(labels, np.int64)))
    if isinstance(key, GroupPattern):
        ids = [key.ids(part, str(files.path)) for part in paths.values()]
        numbers = number_groups(ids, [*map(len, ids)], str(files.path))
        parts = [replace(part, group=group) for part, group in zip(parts, numbers, strict=True)]
    return parts[0], parts[1]
