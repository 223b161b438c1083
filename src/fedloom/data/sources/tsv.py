"""Labelled texts, one a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import named_ids
from fedloom.data.sources.files import Files
from fedloom.data.sources.source import source
from fedloom.data.sources.text import Texts, TextSource, utf8

Rows = list[tuple[str, str]]


def read_tsv(
    files: Files, train: str, test: str, *, separator: str = "\t", classes: Sequence[str] | None = None
) -> tuple[Texts, Texts, tuple[str, ...]]:
    """Both parts and the classes: those given, else the training labels, in numerical order if all are integers."""
    rows = [_rows(files, name, separator) for name in (train, test)]
    ids, known = named_ids(
        [[label for label, _ in part] for part in rows], [files.label(name) for name in (train, test)], classes
    )
    parts = [Texts([text for _, text in part], labels) for part, labels in zip(rows, ids, strict=True)]
    return parts[0], parts[1], known


def _rows(files: Files, name: str, separator: str) -> Rows:
    """(label, text) of each line; three columns are label, file, text, and their number is that of the first line."""
    lines = [line for line in utf8(files.read(name), files.label(name)).split("\n") if line.strip()]
    columns = min(3, lines[0].count(separator) + 1) if lines and separator == "\t" else 2
    if not lines or columns < 2:
        raise DataError(f"{files.label(name)}: need lines of label<TAB>text or label<TAB>file<TAB>text")
    rows = []
    for number, line in enumerate(lines, 1):
        cells = line.rstrip("\r").split(separator, columns - 1)
        if len(cells) < columns:
            raise DataError(f"{files.label(name)}: line {number} has {len(cells)} columns, the first has {columns}")
        rows.append((cells[0].strip(), cells[-1]))
    return rows


@source("tsv")
class Tsv(TextSource):
    """Labelled texts in the UTF-8 files `train_file` and `test_file` of the folder `path`; `length` token ids a text.

    A line is label<TAB>text or label<TAB>file<TAB>text (with another `separator`, label and text only). Labels are
    integers or words; classes are those of the training file.
    """

    path: Path
    train_file: str = "train.tsv"
    test_file: str = "test.tsv"
    separator: str = Field("\t", min_length=1)

    def files(self) -> Sequence[Path]:
        names = [self.train_file, self.test_file]
        missing = [name for name in names if not (self.path / name).is_file()]
        if missing:
            raise DataError(f"source tsv: {self.path} holds no {missing[0]}; need {' and '.join(names)} there")
        return [self.path / name for name in names]

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        train, test, classes = read_tsv(Files(self.path), self.train_file, self.test_file, separator=self.separator)
        return str(self.path), train, test, classes
