"""Digits in MATLAB files: SVHN and SynthDigits."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import Files
from fedloom.data.sources.published import PublishedImages
from fedloom.data.sources.source import source


class _Mat(PublishedImages):
    """Base: two .mat files with `X` [32, 32, 3, n] uint8 and `y` [n, 1], where label 10 stands for digit 0."""

    names: ClassVar[tuple[str, str]]

    def names_to_read(self, files: Files) -> list[str] | None:
        return list(self.names)

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        train, test = (_parse(raw, files.display_name(name)) for name, raw in files.read_each(self.names))
        return ParsedSplits(str(files.path), train, test, self.class_names)


@source("svhn")
class SVHN(_Mat):
    """SVHN (Netzer et al. 2011), cropped digits: 73,257 + 26,032 colour images of 32x32, 10 classes (label 10 is digit
    0). `train_32x32.mat` and `test_32x32.mat`. Official test set kept; the extra images are not used.
    """

    publisher: ClassVar[str] = "Stanford's housenumbers page as train_32x32.mat and test_32x32.mat"
    names: ClassVar[tuple[str, str]] = ("train_32x32.mat", "test_32x32.mat")
    checksums: ClassVar[dict[str, str]] = {
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    }

    def layouts(self) -> Sequence[tuple[str, str]]:
        return [("", "train_32x32.mat"), ("svhn.npz", "")]


@source("synthdigits")
class SynthDigits(_Mat):
    """SynthDigits (Ganin and Lempitsky 2015): 479,400 + 9,553 colour images of rendered digits, 32x32, 10 classes.
    `synth_train_32x32.mat` and `synth_test_32x32.mat`, in a folder or in the published `SynthDigits.zip`.
    """

    publisher: ClassVar[str] = "Yaroslav Ganin as SynthDigits.zip"
    names: ClassVar[tuple[str, str]] = ("synth_train_32x32.mat", "synth_test_32x32.mat")

    def layouts(self) -> Sequence[tuple[str, str]]:
        places = [("", self.names[0]), ("SynthDigits", self.names[0])]
        return [*places, ("SynthDigits.zip", ""), ("synthdigits.npz", "")]


def _parse(raw: bytes, label: str) -> ParsedSamples:
    from scipy.io import loadmat

    try:
        arrays = loadmat(io.BytesIO(raw), variable_names=["X", "y"])
    except Exception as error:  # scipy has no one kind of error for damaged files
        raise DataError(f"{label}: cannot be read as .mat ({' '.join(str(error).split())}); fetch it again") from None
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.ndim != 4 or x.dtype != np.uint8 or y.dtype.kind not in "iuf":
        shapes = {name: (array.shape, str(array.dtype)) for name, array in arrays.items() if name in ("X", "y")}
        raise DataError(f"{label}: holds {shapes or 'neither X nor y'}; need X [h, w, c, n] uint8 and y [n, 1]")
    with np.errstate(invalid="ignore"):  # NaN becomes some whole number, and differs from it
        labels = y.reshape(-1).astype(np.int64)
    if (labels != y.reshape(-1)).any():
        raise DataError(f"{label}: labels y are not whole numbers; need 0 .. 9, or 10 for digit 0")
    if (labels == 10).any() and (labels == 0).any():
        raise DataError(f"{label}: has labels 0 and 10, which both stand for digit 0; use one of them")
    return ParsedSamples(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(labels == 10, 0, labels))
