"""Pictures in class folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.class_folders import LabelledFiles, class_name_notes, find_class_folders, missing_classes
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.images import decode_into
from fedloom.data.sources.pixels import WHITE
from fedloom.data.sources.source import source
from fedloom.data.sources.train_test_split import stratified_split


def decode_parts(
    files: Files,
    train: LabelledFiles,
    test: LabelledFiles,
    classes: Sequence[str],
    size: int,
    channels: int,
    allocate: Allocator,
) -> ParsedSplits:
    """Decode both parts, in the order of the lists; see `fedloom.data.sources.images.decode_into`.

    Args:
        files: the folder or archive.
        train: names and labels of the training pictures.
        test: names and labels of the test pictures.
        classes: names of the C classes.
        size: height and width of the pixels, to which pictures are fitted.
        channels: 1 for grey, 3 for colour.
        allocate: makes the arrays [n, channels, size, size], uint8.

    Raises `DataError` for a picture that is listed twice, or that cannot be decoded.
    """
    arrays = {"train.x": train, "test.x": test}
    pixels = {key: allocate(key, (len(listed), channels, size, size), np.uint8) for key, listed in arrays.items()}
    rows = {name: (key, row) for key, listed in arrays.items() for row, (name, _) in enumerate(listed)}
    if len(rows) < len(train) + len(test):
        raise DataError(f"{files.path}: a picture is listed twice; each may be in one part only, once")
    notes = decode_into(files, rows, pixels, allocate)
    parts = [
        ParsedSamples(pixels[key], np.array([label for _, label in listed], np.int64)) for key, listed in arrays.items()
    ]
    return ParsedSplits(str(files.path), parts[0], parts[1], tuple(classes), white=WHITE, notes=notes)


def parse_class_folders(
    files: Files,
    size: int,
    channels: int,
    allocate: Allocator,
    *,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
) -> ParsedSplits:
    """Make a set from class folders, see `find_class_folders`.

    The training set is in shuffled order, so that a prefix of it is a fair sample.

    Args:
        files: the folder or archive.
        size: height and width of the pixels, to which pictures are fitted.
        channels: 1 for grey, 3 for colour.
        allocate: makes the arrays of pixels.
        classes: allowed names of class folders, in the order of their labels; None takes all folders, sorted.
        test_share: share of each class, in (0, 1), that becomes the test set (seed 0) where there is no test part.
    """
    origin = str(files.path)
    listed = find_class_folders(files.names(), classes, origin)
    rng = np.random.default_rng(0)
    if listed.test is not None:
        train = [listed.train[row] for row in rng.permutation(len(listed.train))]
        test = listed.test
    else:
        rows = stratified_split(np.array([label for _, label in listed.train]), test_share, rng, origin)
        train, test = ([listed.train[row] for row in part] for part in rows)
    parsed = decode_parts(files, train, test, listed.classes, size, channels, allocate)
    about_classes = missing_classes(train, test, listed.classes)
    if classes is None:
        about_classes += class_name_notes(train, test, listed.classes, origin)
    return replace(parsed.with_notes(*listed.notes, *files.notes(), *about_classes), has_class_notes=True)


@source("image-folder")
class ImageFolder(ImageSource):
    """Any pictures in class folders, in a folder or an archive (.zip, .tar.gz).

    train/<class>/* and test/<class>/*, or <class>/train/* and <class>/test/*, or <class>/* alone: then a share of
    each class is held out, the same in every run. Parts may be spelled as is usual ("Train", "val_images", "Testing
    Set"), and folders may lie around all of it. Without a test folder, validation pictures are the test set. Each
    picture is turned as its EXIF orientation says and resized. PNG, JPEG, BMP, GIF, WebP, TIFF and
    PPM are read; other files are counted in a note. Pixels with 12 or 16 bits keep their levels, as real numbers.
    """

    path: Path = Field(
        description="Path of the folder or the archive.",
        examples=["photos"],
    )
    size: int = Field(
        64,
        ge=1,
        le=2048,
        description="Height and width that pictures are resized to, in pixels.",
    )
    channels: Literal[1, 3] = Field(
        3,
        description="Number of channels of the images: 1 for gray, 3 for colour.",
    )
    test_share: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of each class that is held out as test pictures where the folder has no test part.",
    )

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"source image-folder: no {self.path}; need a folder or archive of class folders")
        return open_files(self.path).stamped_paths()

    def parse(self, allocate: Allocator) -> ParsedSplits:
        files = open_files(self.path)
        return parse_class_folders(files, self.size, self.channels, allocate, test_share=self.test_share)
