"""Pictures to pixels."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch

from fedloom.core.errors import DataError
from fedloom.data.sources.files import Files

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_MOST_PIXELS = 64_000_000
_RESIZED_AT_ONCE = 1024


def is_image(name: str) -> bool:
    """Whether a file's suffix says that it is a picture."""
    return name.lower().endswith(SUFFIXES)


def decode(raw: bytes, label: str, size: int, channels: int) -> np.ndarray:
    """One picture as uint8 [channels, size, size], resized bilinearly; `channels` is 1 (gray) or 3.

    16-bit gray keeps its upper eight bits. Raises `DataError` naming `label` for what does not decode.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(raw)) as opened:
            if opened.width * opened.height > _MOST_PIXELS:
                raise ValueError(f"{opened.width} x {opened.height} pixels are too many")
            opened.load()
            image: Image.Image = opened
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise ValueError(f"mode {image.mode} has no fixed range")
            elif image.mode == "P":
                image = image.convert("RGBA")  # palettes with transparency have no direct way to gray or RGB
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (size, size):
                image = image.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        why = "unknown format" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split())
        raise DataError(f"{label}: cannot be decoded as an image ({why})") from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_into(files: Files, places: Mapping[str, np.ndarray], channels: int) -> None:
    """Decode every named picture into its place, an array [channels, size, size]."""
    for name, raw in files.each(places):
        place = places[name]
        place[...] = decode(raw, files.label(name), place.shape[-1], channels)


def resized(x: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Pixels uint8 [n, c, h, w] -> uint8 [n, channels, size, size]: bilinear with antialiasing, gray replicated, colour
    to gray by luma weights.
    """
    if x.shape[1] != channels:
        gray = x if x.shape[1] == 1 else np.rint(np.tensordot(x, (0.299, 0.587, 0.114), (1, 0)))[:, None]
        x = np.repeat(gray.astype(np.uint8), channels, axis=1)
    if x.shape[2:] == (size, size):
        return x
    out = np.empty((len(x), channels, size, size), np.uint8)
    for start in range(0, len(x), _RESIZED_AT_ONCE):
        block = torch.from_numpy(x[start : start + _RESIZED_AT_ONCE].astype(np.float32))
        block = torch.nn.functional.interpolate(block, (size, size), mode="bilinear", antialias=True)
        out[start : start + _RESIZED_AT_ONCE] = block.round_().clamp_(0, 255).numpy()
    return out
