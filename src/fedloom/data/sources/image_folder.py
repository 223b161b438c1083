"""Pictures in class folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocate, ImageSource, Parsed, Part
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.images import decode_into, is_image
from fedloom.data.sources.source import source
from fedloom.data.sources.train_test_split import stratified

Listed = list[tuple[str, int]]
"""File names with their labels."""


def list_classes(
    names: Sequence[str], below: str, classes: Sequence[str] | None, origin: str
) -> tuple[Listed, list[str]]:
    """The pictures in class folders below the folder `below` ("" for the top), at any depth, and the class names.

    Classes are the sorted folder names; where `classes` is given, the folders must be these, and their order counts.
    """
    prefix = f"{below}/" if below else ""
    members = [name for name in names if name.startswith(prefix) and "/" in name[len(prefix) :] and is_image(name)]
    folders = [name[len(prefix) :].partition("/")[0] for name in members]
    found = sorted(set(folders))
    if not found:
        raise DataError(f"{origin}: no pictures in class folders{f' below {below}/' if below else ''}")
    if classes is not None and set(found) - set(classes):
        unknown = sorted(set(found) - set(classes))[0]
        raise DataError(f"{origin}: class folder '{prefix}{unknown}' is none of the classes {', '.join(classes)[:200]}")
    known = list(found if classes is None else classes)
    label = {name: c for c, name in enumerate(known)}
    return [(name, label[folder]) for name, folder in zip(members, folders, strict=True)], known


def decode_parts(
    files: Files, train: Listed, test: Listed, classes: Sequence[str], size: int, channels: int, new: Allocate
) -> Parsed:
    """Both parts decoded, in the order of the lists."""
    arrays = {"train.x": train, "test.x": test}
    made = {key: new(key, (len(listed), channels, size, size), np.uint8) for key, listed in arrays.items()}
    places = {name: made[key][row] for key, listed in arrays.items() for row, (name, _) in enumerate(listed)}
    if len(places) < len(train) + len(test):
        raise DataError(f"{files.path}: a picture is listed twice; each may be in one part only, once")
    decode_into(files, places, channels)
    parts = [Part(made[key], np.array([label for _, label in listed], np.int64)) for key, listed in arrays.items()]
    return Parsed(str(files.path), parts[0], parts[1], tuple(classes))


def parse_class_folders(
    files: Files,
    size: int,
    channels: int,
    new: Allocate,
    *,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
) -> Parsed:
    """A set from train/<class>/* and test/<class>/* (or val/), or from <class>/* alone with a stratified split of its
    own, seed 0. The training set is in shuffled order, so that a prefix of it is a fair sample.
    """
    names, origin = files.names(), str(files.path)
    tops = {name.partition("/")[0] for name in names}
    rng = np.random.default_rng(0)
    if "train" in tops:
        other = "test" if "test" in tops else "val"
        listed, classes = list_classes(names, "train", classes, origin)
        test, _ = list_classes(names, other, classes, origin)
        train = [listed[row] for row in rng.permutation(len(listed))]
    else:
        listed, classes = list_classes(names, "", classes, origin)
        rows = stratified(np.array([label for _, label in listed]), test_share, rng, origin)
        train, test = ([listed[row] for row in part] for part in rows)
    return decode_parts(files, train, test, classes, size, channels, new)


@source("image-folder")
class ImageFolder(ImageSource):
    """Any pictures in class folders, at `path`: a folder or an archive (.zip, .tar.gz).

    Either train/<class>/* and test/<class>/* (without test/, val/ is the test set), or <class>/* alone: then
    `test_share` of each class is held out, the same in every run. Each picture is resized to `size` x `size`.
    """

    path: Path
    size: int = Field(64, ge=1, le=2048)
    channels: Literal[1, 3] = 3
    test_share: float = Field(0.2, gt=0, lt=1)

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"source image-folder: no {self.path}; need a folder or archive of class folders")
        return open_files(self.path).stamped()

    def parse(self, new: Allocate) -> Parsed:
        files = open_files(self.path)
        return parse_class_folders(files, self.size, self.channels, new, test_share=self.test_share)
