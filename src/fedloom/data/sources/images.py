"""Pictures of files to arrays of one size."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch

from fedloom.core.errors import DataError, printable
from fedloom.data.sources.cached import Allocator
from fedloom.data.sources.files import Files
from fedloom.data.sources.picture_notes import PictureNotes
from fedloom.data.sources.pixels import SUFFIXES, read_pixels

_SUFFIXES = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
_RESIZED_AT_ONCE = 1024


def is_image(name: str) -> bool:
    """Whether a file's suffix says that it is a picture of a format that is read."""
    return name.lower().endswith(_SUFFIXES)


def decode(raw: bytes, label: str, size: int, channels: int, notes: PictureNotes | None = None) -> np.ndarray:
    """One picture as [channels, size, size], resized bilinearly; `channels` is 1 (grey) or 3.

    uint8, or float32 from 0 to 255 where the picture has more than 256 levels. Raises `DataError` naming `label` for
    what does not decode, see `fedloom.data.sources.pixels.read_pixels`.
    """
    pixels = read_pixels(raw, label, channels, notes or PictureNotes(), size)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def picture_size(raw: bytes) -> tuple[int, int]:
    """Return width and height of a picture that `decode` can decode, before its EXIF orientation turns it."""
    from PIL import Image

    with Image.open(io.BytesIO(raw)) as image:
        return image.size


def decode_into(
    files: Files, rows: Mapping[str, tuple[str, int]], arrays: dict[str, np.ndarray], allocate: Allocator
) -> tuple[str, ...]:
    """Decode every named picture into its row of an array [n, channels, size, size]: `rows` gives (key, row) by name.

    Arrays of bytes are replaced in `arrays`, by real numbers made with `new`, at the first picture that has more than
    256 levels. Returns notes. Raises `DataError` for pictures that cannot be decoded: the first one, and how many.
    """
    notes = PictureNotes()
    damaged: list[str] = []
    channels, size = next(iter(arrays.values())).shape[1::2]
    for name, raw in files.read_each(rows):
        try:
            pixels = decode(raw, printable(name), size, channels, notes)
        except DataError as error:
            damaged.append(f"{files.display_name(name)}{str(error).removeprefix(printable(name))}")
            continue
        key, row = rows[name]
        if pixels.dtype != np.uint8 and arrays[key].dtype == np.uint8:
            widen(arrays, allocate)
        arrays[key][row] = pixels
    if damaged:
        count = f"; {len(damaged):,} of {len(rows):,} pictures cannot be decoded" if len(damaged) > 1 else ""
        raise DataError(f"{damaged[0]}{count}")
    return notes.sentences()


def widen(arrays: dict[str, np.ndarray], allocate: Allocator) -> None:
    """Replace arrays of bytes by arrays of real numbers with the same values, made with `new`."""
    for key, array in arrays.items():
        if array.dtype == np.uint8:
            arrays[key] = allocate(key, array.shape, np.float32)
            arrays[key][...] = array


def resized(x: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Pixels [n, c, h, w] -> [n, channels, size, size]: bilinear with antialiasing, grey replicated, colour to grey by
    luma weights. uint8 is rounded to uint8; float32 stays float32.
    """
    whole = x.dtype == np.uint8
    if x.shape[1] != channels:
        grey = x if x.shape[1] == 1 else np.tensordot(x, (0.299, 0.587, 0.114), (1, 0))[:, None]
        x = np.repeat((np.rint(grey) if whole else grey).astype(x.dtype), channels, axis=1)
    if x.shape[2:] == (size, size):
        return x
    out = np.empty((len(x), channels, size, size), x.dtype)
    for start in range(0, len(x), _RESIZED_AT_ONCE):
        block = torch.from_numpy(x[start : start + _RESIZED_AT_ONCE].astype(np.float32))
        block = torch.nn.functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        block = block.clamp_(0, 255)
        out[start : start + _RESIZED_AT_ONCE] = (block.round_() if whole else block).numpy()
    return out
