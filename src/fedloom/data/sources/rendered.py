"""Digits drawn from fonts: a domain that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.source import source


@source("rendered")
class Rendered(ImageSource):
    """Colour images [3, size, size] of digits drawn from the twelve DejaVu text fonts that matplotlib ships.

    Each image draws its font, height (half to nine tenths of the image), rotation (up to 25 degrees), position and both
    colours; classes take turns. Results cannot be compared with those on published rendered digits.
    """

    model: ClassVar[str] = "fedbn-digits-cnn"

    size: int = Field(
        28,
        ge=8,
        le=256,
        description="Height and width of the images, in pixels.",
    )
    per_class: int = Field(
        800,
        ge=1,
        description="Number of training images of each class.",
    )
    test_per_class: int = Field(
        200,
        ge=1,
        description="Number of test images of each class.",
    )
    source_seed: int = Field(
        0,
        ge=0,
        description="Seed of the images; the same seed gives the same images under the same version of Pillow.",
    )

    def files(self) -> Sequence[Path]:
        return _find_fonts()

    def parse(self, allocate: Allocator) -> ParsedSplits:
        samples = []
        for part, count in enumerate((self.per_class, self.test_per_class)):
            rng = np.random.default_rng([self.source_seed, part])
            labels = np.arange(10 * count) % 10
            images = allocate(("train.x", "test.x")[part], (len(labels), 3, self.size, self.size), np.uint8)
            for row, label in enumerate(labels):
                images[row] = _draw_digit(int(label), self.size, rng)
            samples.append(ParsedSamples(images, labels))
        return ParsedSplits("rendered", samples[0], samples[1], tuple("0123456789"))


def _find_fonts() -> list[Path]:
    spec = find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("source rendered: matplotlib is not installed; its package holds the fonts")
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    fonts = [path for path in sorted(folder.glob("DejaVu*.ttf")) if "Display" not in path.name]
    if not fonts:
        raise DataError(f"source rendered: no DejaVu fonts in {folder}; reinstall matplotlib")
    return fonts


@lru_cache(maxsize=512)
def _load_font(path: Path, height: int) -> Any:
    from PIL import ImageFont

    return ImageFont.truetype(str(path), height)


def _draw_digit(label: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one digit as uint8 [3, size, size]."""
    from PIL import Image, ImageDraw

    fonts = _cached_fonts()
    font = _load_font(fonts[rng.integers(len(fonts))], int(rng.integers(size // 2, size * 9 // 10 + 1)) * 5 // 4)
    centre = size / 2 + rng.uniform(-size / 10, size / 10, 2)
    mask = Image.new("L", (size, size))
    ImageDraw.Draw(mask).text((float(centre[0]), float(centre[1])), str(label), fill=255, font=font, anchor="mm")
    mask = mask.rotate(float(rng.uniform(-25, 25)), resample=Image.Resampling.BILINEAR)
    background = rng.integers(0, 256, 3)
    ink = rng.integers(0, 256, 3)
    while abs(int(ink.sum()) - int(background.sum())) < 180:  # too little contrast to see the digit; half of all draws
        ink = rng.integers(0, 256, 3)
    opacity = np.asarray(mask, np.float64)[None] / 255
    return np.rint(background[:, None, None] * (1 - opacity) + ink[:, None, None] * opacity).astype(np.uint8)


@lru_cache(maxsize=1)
def _cached_fonts() -> list[Path]:
    return _find_fonts()
