"""Digits blended into photographs: a domain that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.digits import Digits
from fedloom.data.sources.images import resized
from fedloom.data.sources.mnist import MNIST
from fedloom.data.sources.source import source

_PHOTOGRAPH_NAMES = ("china.jpg", "flower.jpg")


@source("blended")
class Blended(ImageSource):
    """Colour images [3, size, size]: |photograph - digit| per pixel and channel, the recipe of Ganin et al. 2016.

    Digits lie on patches of the two photographs that scikit-learn ships: training digits on the left three quarters,
    test digits on the right quarter. Results cannot be compared with those on published blended digits.
    """

    model: ClassVar[str] = "fedbn-digits-cnn"

    digits: Literal["digits", "mnist"] = Field(
        "digits",
        description="Digits that are blended in: scikit-learn's 8x8 images, or MNIST's.",
    )
    path: Path | None = Field(
        None,
        description="Folder, archive or .npz file of MNIST, for `digits: mnist`; null searches `$FEDLOOM_DATA/mnist`.",
    )
    size: int = Field(
        28,
        ge=8,
        le=128,
        description="Height and width of the images, in pixels.",
    )
    copies: int = Field(
        1,
        ge=1,
        le=100,
        description="Number of images made of each digit, each on another patch.",
    )
    source_seed: int = Field(
        0,
        ge=0,
        description="Seed of the images; the same seed gives the same images.",
    )

    def files(self) -> Sequence[Path]:
        return [*_photograph_paths(), *self._digit_source().files()]

    def parse(self, allocate: Allocator) -> ParsedSplits:
        splits = self._digit_source().load()
        photographs = [_read_photograph(path) for path in _photograph_paths()]
        train, test = (
            self._blend(data, photographs, part, allocate) for part, data in enumerate((splits.train, splits.test))
        )
        return ParsedSplits("blended", train, test, splits.train.classes)

    def _digit_source(self) -> Digits | MNIST:
        return Digits() if self.digits == "digits" else MNIST(path=self.path)

    def _blend(self, data: Dataset, photographs: list[np.ndarray], part: int, allocate: Allocator) -> ParsedSamples:
        """Blend every digit; part: 0 for training, 1 for test."""
        rng = np.random.default_rng([self.source_seed, part])
        x = data.x.numpy()
        white = 16 if self.digits == "digits" else 255
        digits = resized((x.astype(np.float64) * 255 / white).astype(np.uint8), self.size, 1)
        blended = allocate(("train.x", "test.x")[part], (self.copies * len(x), 3, self.size, self.size), np.uint8)
        for row in range(len(blended)):
            photograph = photographs[rng.integers(len(photographs))]
            height, width = photograph.shape[1:]
            border = width * 3 // 4
            left_edge, right_edge = (0, border) if part == 0 else (border, width)
            top = int(rng.integers(height - self.size + 1))
            left_column = int(rng.integers(left_edge, right_edge - self.size + 1))
            patch = photograph[:, top : top + self.size, left_column : left_column + self.size].astype(np.int16)
            blended[row] = np.abs(patch - digits[row % len(x)])
        return ParsedSamples(blended, np.tile(data.y.numpy(), self.copies))


def _photograph_paths() -> list[Path]:
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("source blended: scikit-learn is not installed; its package holds the photographs")
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "images"
    return [folder / name for name in _PHOTOGRAPH_NAMES]


def _read_photograph(path: Path) -> np.ndarray:
    """Read pixels [3, height, width]."""
    from PIL import Image

    try:
        with Image.open(path, formats=["JPEG"]) as image:
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    except OSError as error:
        raise DataError(f"{path}: scikit-learn's photograph cannot be read ({error})") from None
