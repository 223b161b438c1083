"""USPS: scanned digits of the postal service."""

from __future__ import annotations

import bz2
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files
from fedloom.data.sources.published import PublishedImages
from fedloom.data.sources.source import source

_NAMES = ("usps.bz2", "usps.t.bz2")


@source("usps")
class USPS(PublishedImages):
    """USPS (Hull 1994): 7,291 + 2,007 gray images of 16x16, 10 classes. The LIBSVM files `usps.bz2` and `usps.t.bz2`
    (values -1 .. 1, labels 1 .. 10 for digits 0 .. 9), or `usps.npz` in the Keras convention. Official test set kept.
    """

    publisher: ClassVar[str] = "the LIBSVM data page as usps.bz2 and usps.t.bz2"
    checksums: ClassVar[dict[str, str]] = {
        "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
        "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
    }

    def layouts(self) -> Sequence[tuple[str, str]]:
        return [("", "usps.bz2"), ("usps.npz", "")]

    def names_to_read(self, files: Files) -> list[str] | None:
        return list(_NAMES)

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, test = (_parse(raw, files.display_name(name)) for name, raw in files.read_each(_NAMES))
        return ParsedSplits(str(files.path), train, test, self.class_names)


def _parse(packed: bytes, label: str) -> ParsedSamples:
    """Lines "label index:value ...", indices 1 .. 256 in row order; what is not listed is 0 in LIBSVM's sense."""
    try:
        lines = bz2.decompress(packed).decode("ascii").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{label}: cannot be read ({error}); damaged or truncated, fetch it again") from None
    values, labels = np.zeros((len(lines), 256)), np.zeros(len(lines), np.int64)
    for row, line in enumerate(lines):
        try:
            first, *pairs = line.split()
            labels[row] = int(float(first)) - 1
            index, value = zip(*(pair.split(":") for pair in pairs), strict=True)
            place = np.array(index, np.int64) - 1
            if place.min() < 0:
                raise IndexError("index below 1")
            values[row, place] = np.array(value, np.float64)
        except (ValueError, IndexError) as error:
            raise DataError(f"{label}: line {row + 1} is not 'label index:value ...' with 1 .. 256 ({error})") from None
    if not (np.abs(values) <= 1).all():
        raise DataError(f"{label}: values outside -1 .. 1; need LIBSVM's scaling")
    return ParsedSamples(((values + 1) / 2 * 255).astype(np.uint8).reshape(-1, 16, 16), labels)
