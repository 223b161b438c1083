"""MNIST-M: digits blended into photographs, as published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ParsedSplits
from fedloom.data.sources.class_folders import LabelledFiles
from fedloom.data.sources.files import Files
from fedloom.data.sources.image_folder import decode_parts
from fedloom.data.sources.published import PublishedImages
from fedloom.data.sources.source import source
from fedloom.data.sources.text import utf8


@source("mnist-m")
class MNISTM(PublishedImages):
    """MNIST-M (Ganin and Lempitsky 2015): 59,001 + 9,001 colour images of 32x32, 10 classes.

    The published `mnist_m.tar.gz` or its folder (mnist_m_train/*.png with mnist_m_train_labels.txt, lines "name.png
    label", and the same for test), or `mnist-m.npz` in the Keras convention. Official test set kept.
    """

    publisher: ClassVar[str] = "Yaroslav Ganin as mnist_m.tar.gz"

    def layouts(self) -> Sequence[tuple[str, str]]:
        folders = [(place, "mnist_m_train_labels.txt") for place in ("", "mnist_m")]
        return [*folders, ("mnist_m.tar.gz", ""), ("mnist-m.npz", ""), ("mnistm.npz", "")]

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, test = (_listed(files, f"mnist_m_{part}") for part in ("train", "test"))
        return decode_parts(files, train, test, self.class_names, 32, 3, allocate)


def _listed(files: Files, folder: str) -> LabelledFiles:
    """Lines "name label" of the label list of a folder."""
    name = f"{folder}_labels.txt"
    listed = []
    for number, line in enumerate(utf8(files.read(name), files.display_name(name)).splitlines(), 1):
        picture, _, label = line.strip().rpartition(" ")
        if not picture or not label.isascii() or not label.isdigit():
            raise DataError(f"{files.display_name(name)}: line {number} is '{line[:80]}'; need 'name.png label'")
        listed.append((f"{folder}/{picture}", int(label)))
    return listed
