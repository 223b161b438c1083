"""IMDB: film reviews, positive or negative."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.files import Files, open_files, verify_md5
from fedloom.data.sources.published import locate
from fedloom.data.sources.source import source
from fedloom.data.sources.text import Texts, TextSource, utf8
from fedloom.data.sources.tsv import read_tsv

_CLASSES = ("neg", "pos")


@source("imdb")
class IMDB(TextSource):
    """IMDB (Maas et al. 2011): 25,000 + 25,000 film reviews as token ids, classes neg and pos.

    `aclImdb_v1.tar.gz` or its folder (train/pos/*.txt and so on; unsup/ is not used), or `imdb_train.tsv` and
    `imdb_test.tsv` with lines label, file, text. The training set is in shuffled order, the same in every run: the
    files are sorted by class. Official test set kept; 123 texts are in both parts, as published.
    """

    publisher: ClassVar[str] = "Stanford's AI lab as aclImdb_v1.tar.gz"
    checksums: ClassVar[dict[str, str]] = {"aclImdb_v1.tar.gz": "7c2ac02c03563afcf9b574c7e56c153a"}

    path: Path | None = Field(
        None,
        description="Folder or archive of the published files; null searches `$FEDLOOM_DATA/imdb`.",
    )
    verify: bool = Field(
        True,
        description="Whether the archive is compared with the publisher's MD5.",
    )

    def files(self) -> Sequence[Path]:
        folder = self._data_path()
        files = open_files(folder)
        return files.stamped_paths(_wanted(files) if folder.is_dir() else None)

    def read_texts(self) -> tuple[str, Texts, Texts, tuple[str, ...]]:
        folder = self._data_path()
        files = open_files(folder)
        if self.verify:
            verify_md5([folder] if folder.is_file() else [], self.checksums)
        if folder.is_dir() and files.has("imdb_train.tsv"):
            train, test, _ = read_tsv(files, "imdb_train.tsv", "imdb_test.tsv", classes=("0", "1"))
        else:
            train, test = _read_folders(files)
        rows = np.random.default_rng(0).permutation(len(train.texts))
        return str(folder), Texts([train.texts[row] for row in rows], train.labels[rows]), test, _CLASSES

    def _data_path(self) -> Path:
        layouts = [("", "train/pos/"), ("aclImdb", "train/pos/"), ("aclImdb_v1.tar.gz", ""), ("", "imdb_train.tsv")]
        return locate(self.kind, self.path, layouts, self.publisher)


def _wanted(files: Files) -> list[str]:
    if files.has("imdb_train.tsv"):
        return ["imdb_train.tsv", "imdb_test.tsv"]
    places = tuple(f"{part}/{name}/" for part in ("train", "test") for name in _CLASSES)
    return [name for name in files.names() if name.startswith(places) and name.endswith(".txt")]


def _read_folders(files: Files) -> tuple[Texts, Texts]:
    names = _wanted(files)
    read = {name: utf8(raw, files.display_name(name)) for name, raw in files.read_each(names)}
    parts = []
    for part in ("train", "test"):
        texts: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(_CLASSES):
            members = [read[file] for file in names if file.startswith(f"{part}/{name}/")]
            if not members:
                raise DataError(f"{files.path}: no {part}/{name}/*.txt; need both classes in train and test")
            texts += members
            labels += [label] * len(members)
        parts.append(Texts(texts, np.array(labels, np.int64)))
    return parts[0], parts[1]
