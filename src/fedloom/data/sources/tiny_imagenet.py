"""Tiny-ImageNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ParsedSplits
from fedloom.data.sources.class_folders import list_classes
from fedloom.data.sources.files import Files
from fedloom.data.sources.image_folder import decode_parts
from fedloom.data.sources.published import PublishedImages
from fedloom.data.sources.source import source
from fedloom.data.sources.text import utf8

_ANNOTATIONS = "val/val_annotations.txt"


@source("tiny-imagenet")
class TinyImageNet(PublishedImages):
    """Tiny-ImageNet (Stanford CS231n): 100,000 training and 10,000 validation colour images of 64x64, 200 classes.

    `tiny-imagenet-200.zip` or its folder. The published test images carry no labels, so the validation images are the
    test set, as is usual. Classes are the WordNet ids, sorted, called by their first word where `words.txt` gives one
    that no other class has. The training set is in shuffled order, the same in every run.
    """

    publisher: ClassVar[str] = "Stanford's CS231n as tiny-imagenet-200.zip"
    checksums: ClassVar[dict[str, str]] = {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"}
    model: ClassVar[str] = "resnet18-cifar"

    def layouts(self) -> Sequence[tuple[str, str]]:
        folders = [(place, _ANNOTATIONS) for place in ("", "tiny-imagenet-200")]
        return [*folders, ("tiny-imagenet-200.zip", ""), ("tiny-imagenet.npz", "")]

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, ids = list_classes(files.names(), "train", None, str(files.path))
        rows = np.random.default_rng(0).permutation(len(train))
        label = {name: c for c, name in enumerate(ids)}
        test = []
        for number, line in enumerate(utf8(files.read(_ANNOTATIONS), files.display_name(_ANNOTATIONS)).splitlines(), 1):
            name, _, rest = line.partition("\t")
            wnid = rest.partition("\t")[0]
            if wnid not in label:
                raise DataError(
                    f"{files.display_name(_ANNOTATIONS)}: line {number} names class '{wnid}', which train/ lacks"
                )
            test.append((f"val/images/{name}", label[wnid]))
        return decode_parts(files, [train[row] for row in rows], test, _called(files, ids), 64, 3, allocate)


def _called(files: Files, ids: Sequence[str]) -> list[str]:
    if not files.has("words.txt"):
        return list(ids)
    lines = (
        line.partition("\t") for line in utf8(files.read("words.txt"), files.display_name("words.txt")).splitlines()
    )
    first = {wnid: words.split(",")[0].strip() for wnid, _, words in lines}
    names = [first.get(wnid, wnid) for wnid in ids]
    return [name if names.count(name) == 1 else wnid for name, wnid in zip(names, ids, strict=True)]
