"""Samples that a table lists: pictures by the names of their files, and texts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError, printable
from fedloom.data.sources import medical
from fedloom.data.sources.cached import Allocator, CachedSource, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.class_folders import BARE_PARTS, part_of
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.image_folders import decode_parts
from fedloom.data.sources.python import held_out, owner_ids
from fedloom.data.sources.source import GroupPattern, Splits, number_groups, source
from fedloom.data.sources.tables import Csv, columns
from fedloom.data.sources.tables.table_files import TableFile
from fedloom.data.sources.text import TextSource, tokenise

GroupsOf = Callable[[Sequence[str], object], tuple[np.ndarray | None, tuple[str, ...]]]


class _Listed(CachedSource, Csv):
    """Base of tables with a column that is the sample, or names it, and without other features."""

    part: str | None = None

    def load(self) -> Splits:
        return replace(super().load(), domains_are_owners=self.owner is not None)

    def unused(self, file: TableFile) -> set[str]:
        return {*file.columns} - {self.one_label, self.owner}

    def listed(self, column: str, groups: GroupsOf = lambda cells, key: (None, ())) -> tuple[list[str], ParsedSplits]:
        """Return the cells of a column, and the set with their row numbers in place of samples. groups: refuses wrong
        cells, and returns the groups in their files by the key `group`, with notes."""
        if unused := [key for key in ("features", "drop", "test_path") if getattr(self, key)]:
            raise DataError(f"scenario.{unused[0]}: source {self.kind} learns from '{column}' alone; leave it out")
        file, origin = self.opened(self.path), str(self.path)
        is_column = self.group != medical.PATIENT or self.group in file.columns
        reader = self if is_column else self.model_copy(update={"group": None})
        texts: dict[str, list[str]] = {}
        for name in filter(None, (*reader.apart, column, self.part)):
            self.require_column(file, name)
            texts[name] = [str(cell or "").strip() for cell in file.texts([name])[name].to_pylist()]
        blank = np.array([not cell for cell in texts[column]])
        table = reader._columns([file], [])[0]
        table[column] = columns.Column(column, np.arange(file.rows), None, blank if blank.any() else None)
        notes = file.notes(()) + reader._check(table, self.path)
        table, left_out = reader._complete(table, file)
        (ids,), classes = self.label_ids([table], [self.path])
        rows, owners = table[column].values, list[str]()
        chosen = "none" if is_column and self.group is not None else self.group
        group, about_groups = groups([texts[column][row] for row in rows], chosen)
        owner = None
        if self.owner is not None:
            (owner,), owners = owner_ids([table[self.owner].labels()], [len(ids)], origin)
        if isinstance(self.group, GroupPattern):
            group = self.group.ids([texts[column][row] for row in rows], origin)
        elif (grouping := self.owner if self.group == "owner" else reader.group_column) is not None:
            group = table[grouping].labels()
        numbers = None if group is None else number_groups([group], [len(ids)], origin)[0]
        whole, validation = ParsedSamples(rows, ids, owner, numbers), 0
        if self.part is not None:
            parts, validation = _stated_parts(whole, np.array(texts[self.part])[rows], f"{origin}: part '{self.part}'")
        else:
            parts = held_out(whole, self.test_share, len(classes), bool(owners), origin)
        about = (*notes, *left_out, *about_groups)
        parsed = ParsedSplits(origin, parts[0], parts[1], classes, tuple(owners), notes=about, validation=validation)
        parsed = replace(parsed, labels=self.labels)
        return texts[column], parsed


def _stated_parts(whole: ParsedSamples, words: np.ndarray, origin: str) -> tuple[list[ParsedSamples], int]:
    """Return the training samples with validation samples behind them, the test samples, and how many are validation.
    Raises `DataError` for words [n] that name no part."""
    named = np.array([part[0] if (part := part_of(word)) in BARE_PARTS and part else "" for word in words.tolist()])
    if (odd := words[named == ""]).size:
        shown = f"'{odd[0]}' or the like in {odd.size:,} of {len(words):,} rows"
        raise DataError(f"{origin} is {shown}; need train, val, test")
    train, val, test = (np.flatnonzero(named == name) for name in ("train", "val", "test"))
    val, test = (val, test) if len(test) else (test, val)
    if not len(train) or not len(test):
        raise DataError(f"{origin} names {len(train):,} training and {len(test):,} test rows; need both")
    return [whole.rows(np.concatenate([train, val])), whole.rows(test)], len(val)


@source("file-table")
class FileNames(_Listed, ImageSource):
    """Pictures whose files a CSV file lists, with the label, the owner and the part of each.

    scenario: {source: file-table, path: labels.csv, file: image, root: photos, label: diagnosis, part: fold}"""

    model = "lenet5"

    file: str = Field("file", description="Column of the files' names, with folders below `root`.")
    root: Path | None = Field(None, description="Folder or archive of the pictures; null takes the folder of `path`.")
    suffix: str | None = Field(None, description="Text that is added to each name; null adds none.", examples=[".jpg"])
    size: int = Field(64, ge=1, le=2048, description="Height and width that pictures are resized to, in pixels.")
    channels: Literal[1, 3] = Field(3, description="Number of channels of the images: 1 for gray, 3 for colour.")

    def files(self) -> Sequence[Path]:
        pictures, parts, _ = self._pictures(headers=False)
        return [self.path, *pictures.stamped_paths([name for part in parts for name, _ in part])]

    def parse(self, allocate: Allocator) -> ParsedSplits:
        pictures, (train_files, test_files), parsed = self._pictures()
        keys = parsed.classes, self.size, self.channels, allocate, self.max_bad_samples
        decoded = decode_parts(pictures, train_files, test_files, *keys)
        train, test = replace(parsed.train, x=decoded.train.x), replace(parsed.test, x=decoded.test.x)
        parsed = replace(parsed, train=train, test=test, white=decoded.white, unreadable=decoded.unreadable)
        return parsed.with_notes(*decoded.notes)

    def _pictures(self, headers: bool = True) -> tuple[Files, list[list[tuple[str, int]]], ParsedSplits]:
        """Return the folder or archive, names of both parts (with 0 for a label), and the listed set, with the patients
        that headers name. Raises `DataError` for names that are not one file each in the folder."""
        pictures = open_files(self.path.parent if self.root is None else self.root)
        counts, top = Counter[str](), pictures.path.resolve()
        problems: dict[str, Callable[[str], bool]] = {
            "lead out of": lambda name: name.startswith("/") or ":" in name or ".." in name.split("/"),
            "are links out of": lambda name: top.is_dir() and top not in (top / name).resolve().parents,
            "are no files of": lambda name: not pictures.has(name),
            "are listed several times, of": lambda name: counts[name] > 1,
        }

        def named(cell: str) -> str:
            return str(PurePosixPath(cell.replace("\\", "/") + (self.suffix or "")))

        def groups(cells: Sequence[str], key: object) -> tuple[np.ndarray | None, tuple[str, ...]]:
            names = [*map(named, cells)]
            counts.update(names)
            for problem, is_wrong in problems.items():
                if wrong := [name for name in counts if is_wrong(name)]:
                    shown = f"{len(wrong):,} of {len(counts):,} names {problem} {printable(str(pictures.path))}"
                    raise DataError(f"{self.path}: column '{self.file}': {shown}, the first '{printable(wrong[0])}'")
            return medical.patients(key if headers else "none", pictures, names)

        cells, parsed = self.listed(self.file, groups)
        parts = [[(named(cells[row]), 0) for row in part.x] for part in (parsed.train, parsed.test)]
        return pictures, parts, parsed


@source("text-table")
class TextTable(_Listed, TextSource):
    """Texts in a column of a CSV file, as token ids, with the label, the owner and the part of each.

    scenario: {source: text-table, path: reviews.csv, text: review, label: sentiment}"""

    model = "bilstm"

    text: str = Field("text", description="Column of the texts.")

    def parse(self, allocate: Allocator) -> ParsedSplits:
        cells, parsed = self.listed(self.text)
        texts, origin = [[cells[row] for row in part.x] for part in (parsed.train, parsed.test)], str(self.path)
        ids, words, notes = tokenise(
            texts, self.vocabulary, self.length, self.tokens, f"{origin} ({self.text})", origin
        )
        train, test = replace(parsed.train, x=ids[0]), replace(parsed.test, x=ids[1])
        return replace(parsed, train=train, test=test, tokens=True, words=words).with_notes(*notes)
