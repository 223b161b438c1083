"""Labelled texts, one a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import named_ids, refuse_missing_labels, require_few
from fedloom.data.sources.files import Files
from fedloom.data.sources.source import source
from fedloom.data.sources.text import Texts, TextSource, utf8

_HEADER = ("label", "labels", "class", "category", "target", "sentiment", "y")
Rows = list[tuple[str, str]]


def read_tsv(
    files: Files, train: str, test: str, *, separator: str = "\t", classes: Sequence[str] | None = None
) -> tuple[Texts, Texts, tuple[str, ...]]:
    """Read both parts of a set, and the names of its classes.

    Args:
        files: the folder or archive.
        train: name of the training file.
        test: name of the test file.
        separator: character between label and text in a line.
        classes: names of the classes in the order of their ids; None takes the training labels, in numerical order if
            all are integers.
    """
    rows = [_rows(files, name, separator) for name in (train, test)]
    ids, class_names = named_ids(
        [[label for label, _ in part] for part in rows], [files.display_name(name) for name in (train, test)], classes
    )
    parts = [Texts([text for _, text in part], labels) for part, labels in zip(rows, ids, strict=True)]
    return parts[0], parts[1], class_names


def _rows(files: Files, name: str, separator: str) -> Rows:
    """(label, text) of each line; three columns are label, file, text, and their number is that of the first line."""
    text = utf8(files.read(name), files.display_name(name))
    ends = "\n" if "\n" in text else "\r"
    lines = [line for line in text.split(ends) if line.strip()]
    columns = min(3, lines[0].count(separator) + 1) if lines and separator == "\t" else 2
    if not lines or columns < 2:
        hint = "" if not lines else _other_separator(lines[0])
        raise DataError(f"{files.display_name(name)}: need lines of label<TAB>text or label<TAB>file<TAB>text{hint}")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.rstrip("\r").split(separator, columns - 1)
        if len(cells) < columns:
            raise DataError(
                f"{files.display_name(name)}: line {number} has {len(cells)} columns, the first has {columns}"
            )
        rows.append((cells[0].strip(), cells[-1]))
    if len(rows) > 1 and rows[0][0].casefold() in _HEADER and rows[0][0] not in {label for label, _ in rows[1:]}:
        raise DataError(
            f"{files.display_name(name)}: line 1 begins with '{rows[0][0]}', a header rather than a label; leave it out"
        )
    return rows


def _other_separator(line: str) -> str:
    """A hint where a label and another separator begin a line."""
    match = re.match(r"[\w-]{1,20}([,;|])", line)
    return f"; cells look separated by '{match[1]}' (`separator: \"{match[1]}\"`)" if match else ""


@source("tsv")
class Tsv(TextSource):
    """Labelled texts in two UTF-8 files of a folder, as token ids.

    A line is label<TAB>text or label<TAB>file<TAB>text (with another separator, label and text only), and there is no
    header. Labels are integers or words; classes are those of the training file.
    """

    path: Path = Field(
        description="Path of the folder with the two files.",
    )
    train_file: str = Field(
        "train.tsv",
        description="File name of the training texts.",
    )
    test_file: str = Field(
        "test.tsv",
        description="File name of the test texts.",
    )
    separator: str = Field(
        "\t",
        min_length=1,
        description="Text between label and text of a line; the default is a tab.",
    )

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
