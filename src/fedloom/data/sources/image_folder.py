"""Pictures in user-supplied class folders, and Tiny-ImageNet."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.class_folders import (
    LabelledFiles,
    class_name_notes,
    find_class_folders,
    list_classes,
    missing_classes,
)
from fedloom.data.sources.files import Files, open_files
from fedloom.data.sources.npz import PublishedImages
from fedloom.data.sources.pixels import WHITE, decode_into
from fedloom.data.sources.source import source, stratified_split


def decode_parts(
    files: Files,
    train: LabelledFiles,
    test: LabelledFiles,
    classes: Sequence[str],
    size: int,
    channels: int,
    allocate: Allocator,
) -> ParsedSplits:
    """Decode the pictures of both parts from a folder or archive, in the order of the lists, into uint8 [n, channels,
    size, size] made by `allocate`; see `fedloom.data.sources.pixels.decode_into`. train, test: names and labels, of
    `classes`. Raises `DataError` for a picture that is listed twice, or that cannot be decoded."""
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
    """Make a set from class folders of files, see `find_class_folders` (also for `classes`) and `decode_parts` (size,
    channels). The training set is shuffled: its first samples are a fair sample of the whole. Without a test part, that
    is `test_share` of each class (seed 0)."""
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

    path: Path = Field(description="Path of the folder or the archive.", examples=["photos"])
    size: int = Field(64, ge=1, le=2048, description="Height and width that pictures are resized to, in pixels.")
    channels: Literal[1, 3] = Field(3, description="Number of channels of the images: 1 for gray, 3 for colour.")
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


_ANNOTATIONS = "val/val_annotations.txt"


@source("tiny-imagenet")
class TinyImageNet(PublishedImages):
    """Tiny-ImageNet (Stanford CS231n): 100,000 training and 10,000 validation colour images of 64x64, 200 classes.

    `tiny-imagenet-200.zip` or its folder. The published test images carry no labels, so the validation images are the
    test set, as is usual. Classes are the WordNet ids, sorted, called by their first word where `words.txt` gives one
    that no other class has. The training set is in shuffled order, the same in every run.
    """

    publisher = "Stanford's CS231n as tiny-imagenet-200.zip"
    checksums: ClassVar[dict[str, str]] = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    model = "resnet18-cifar"
    places = (
        *((folder, _ANNOTATIONS) for folder in ("", "tiny-imagenet-200")),
        *((archive, "") for archive in ("tiny-imagenet-200.zip", "tiny-imagenet.npz")),
    )

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, ids = list_classes(files.names(), "train", None, str(files.path))
        rows = np.random.default_rng(0).permutation(len(train))
        label = {name: c for c, name in enumerate(ids)}
        test = []
        for number, line in enumerate(files.lines(_ANNOTATIONS), 1):
            name, wnid, *_ = [*line.split("\t", 2), "", ""]
            if wnid not in label:
                place = f"{files.display_name(_ANNOTATIONS)}: line {number}"
                raise DataError(f"{place} names class '{wnid}', which train/ lacks")
            test.append((f"val/images/{name}", label[wnid]))
        return decode_parts(files, [train[row] for row in rows], test, _called(files, ids), 64, 3, allocate)


def _called(files: Files, ids: Sequence[str]) -> list[str]:
    if not files.has("words.txt"):
        return list(ids)
    lines = (line.partition("\t") for line in files.lines("words.txt"))
    first = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    names = [first.get(wnid, wnid) for wnid in ids]
    return [name if names.count(name) == 1 else wnid for name, wnid in zip(names, ids, strict=True)]
