"""Handwritten digits that ship with scikit-learn."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.dataset import checked
from fedloom.data.sources.source import Source, Splits, source

_TEST_EVERY = 5


@source("digits")
class Digits(Source):
    """1,797 real handwritten digits of 8x8 pixels (UCI optical digits, as shipped with scikit-learn).

    There is no official split: every fifth image of each class, in the file's order, is a test image (355 images).
    Pixels 0 .. 16 are scaled by mean 4.9 and standard deviation 6.
    """

    model: ClassVar[str] = "digits-cnn"

    def load(self) -> Splits:
        pixels, labels = _read_digits()
        rank_in_class = np.empty(len(labels), np.int64)
        for label in range(10):
            members = np.flatnonzero(labels == label)
            rank_in_class[members] = np.arange(len(members))
        is_test = rank_in_class % _TEST_EVERY == _TEST_EVERY - 1
        train, test = (
            checked(pixels[rows], labels[rows], origin="digits", classes=[*"0123456789"], mean=[4.9], std=[6.0])
            for rows in (~is_test, is_test)
        )
        return Splits(train, test)


def _read_digits() -> tuple[np.ndarray, np.ndarray]:
    """Read pixels [1797, 8, 8] uint8 and labels [1797] from scikit-learn's file."""
    # importing scikit-learn's loaders would cost a second and a half at every start
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("source digits: scikit-learn is not installed; its package holds the images")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        with gzip.open(path, "rt") as stream:
            table = np.array([row.split(",") for row in stream.read().split()], dtype=np.float32)
        return table[:, :64].reshape(-1, 8, 8).astype(np.uint8), table[:, 64].astype(np.int64)
    from sklearn.datasets import load_digits  # the file has moved: use the slow public loader

    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target.astype(np.int64)
