"""One picture to pixels, by what its format says: the one reader of pictures for all doors of data."""

from __future__ import annotations

import io
import sys
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

WHITE = 255.0
"""Pixels reach from 0 to this: as bytes, or as real numbers where a picture has more than 256 levels."""

SUFFIXES = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
"""The formats that are read. Pillow is asked for no other: its reader of EPS would start Ghostscript."""

_MOST_PIXELS = 64_000_000
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)
_OTHER_BYTE = {";16L": ";16B", ";16B": ";16L", ";16N": ";16B" if sys.byteorder == "little" else ";16L"}
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # of TIFF
_FLAT = 8  # of 255: a picture whose colours differ by no more shows nothing in them

_MODES = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "P": "RGBA", "PA": "RGBA", "RGBa": "RGBA"}
"""Modes of Pillow by the mode that they are converted to first; all others become RGB. Palettes may be transparent."""

_SENTENCES = {
    "deep": "pictures with more than 256 levels: {count}; all pixels are kept as real numbers from 0 to 255",
    "dark": "pictures with 16 bits that use the lower 12 at most: {count}; normalise=own sees all their levels, unit "
    "and half make them nearly black",
    "reduced": "pictures with more than 8 bits per channel, of which the upper 8 are read: {count}, first {first}",
    "frames": "pictures with several frames or pages, of which only the first is read: {count}, first {first}",
    "format": "pictures of another format than their suffix says, read by their content: {count}, first {first}",
    "drawn": "pictures drawn in their transparency alone, laid over white (light ones over black): {count}, first "
    "{first}",
    "exif": "pictures with a damaged EXIF block, whose orientation is not known: {count}, first {first}",
}


class PictureNotes:
    """Counts the pictures of a set that are read, and what is unusual about them."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, name: str) -> None:
        """Count the picture `name` under `kind`, a key of `_SENTENCES`."""
        self._counts[kind] += 1
        self._first.setdefault(kind, name)

    def sentences(self) -> tuple[str, ...]:
        """One sentence for each kind that occurred among the pictures that were read."""
        counts = dict(self._counts)
        if counts.get("dark") != counts.get("deep"):  # some use the whole range: no sign of 12 bits
            counts.pop("dark", None)
        return tuple(
            sentence.format(count=f"{counts[kind]:,} of {self.total:,}", first=self._first[kind])
            for kind, sentence in _SENTENCES.items()
            if kind in counts
        )


def read_pixels(raw: bytes, label: str, channels: int | None, notes: PictureNotes) -> np.ndarray:
    """The pixels in the bytes of a picture file, as `image_pixels` returns them.

    Raises `DataError` naming `label` for bytes that are no picture of a format in `SUFFIXES`, that are damaged, and
    that hold more than 64 million pixels.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(raw), formats=list(SUFFIXES)) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels are too many")
                kind = str(image.format)
                if kind != "MPO" and getattr(image, "is_animated", False):
                    notes.add("frames", label)
                lower_bytes = _with_lower_bytes(raw, image, label, notes)
                image.load()
                pixels = image_pixels(image, label, channels, notes, lower_bytes)
    except DataError:
        raise
    except Exception as error:  # Pillow has no one kind of error for damaged files
        why = "unknown format" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split())[:200]
        raise DataError(f"{label}: cannot be decoded as an image ({why or type(error).__name__})") from None
    kind = "JPEG" if kind == "MPO" else kind  # several pictures of one shot, of which the first is the picture
    suffix = f".{label.rpartition('.')[2].lower()}"
    if suffix not in SUFFIXES[kind] and any(suffix in suffixes for suffixes in SUFFIXES.values()):
        notes.add("format", f"{label} is a {kind}")
    return pixels


def image_pixels(
    image: Image.Image,
    label: str,
    channels: int | None,
    notes: PictureNotes,
    lower_bytes: Image.Image | None = None,
) -> np.ndarray:
    """Pixels [h, w] or [h, w, 3] of a picture, turned as its EXIF orientation says.

    channels: 1 for grey [h, w], 3 for colour; None keeps grey pictures grey and makes all others colour. Pixels are
    uint8 from 0 to 255, or float32 from 0 to 255 where the picture has 12 or 16 bits, so that no level is lost.
    Palettes become their colours. Transparency is dropped, unless a picture is drawn in it alone, in one colour: that
    is laid over white, or over black if its colour is light. lower_bytes: the lower bytes of colours with 16 bits,
    where `image` has the upper ones. Raises `DataError` for 32-bit pictures, whose range no format states.
    """
    notes.total += 1
    if lower_bytes is not None:
        notes.add("deep", label)
        upper, lower = (np.asarray(_upright(part, label, notes), np.float32) for part in (image, lower_bytes))
        pixels = (upper * 256 + lower) / np.float32(257)
    elif image.mode in ("F", "I") or image.mode.startswith("I;16"):
        pixels = _deep_grey(image, label, notes)
    else:
        upright = _upright(image, label, notes)
        mode = _MODES.get(upright.mode, "RGB")
        if upright.mode == "YCbCr" and channels == 1:
            mode = "L"
        pixels = np.asarray(upright.convert(mode))
    if pixels.ndim == 3 and pixels.shape[2] in (2, 4):
        pixels = _opaque(pixels, label, notes)
    return _with_channels(pixels, channels)


def _upright(image: Image.Image, label: str, notes: PictureNotes) -> Image.Image:
    """The picture as its EXIF orientation says; as it is stored where that block is damaged (counted)."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow has no one kind of error for damaged blocks
        notes.add("exif", label)
        return image


def _deep_grey(image: Image.Image, label: str, notes: PictureNotes) -> np.ndarray:
    """Grey of 12 or 16 bits as float32 [h, w] from 0 to 255."""
    tags = getattr(image, "tag_v2", {})
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):  # theirs have 16 bits
        raise DataError(
            f"{label}: cannot be decoded as an image (mode {image.mode} has no fixed range; save 16 bits, or arrays in "
            "an .npz)"
        )
    levels = np.asarray(_upright(image, label, notes)).astype(np.float32)
    white = 4095 if tags.get(_BITS_PER_SAMPLE) == (12,) else 65535
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = white - levels
    notes.add("deep", label)
    if white == 65535 and levels.max(initial=0) <= 4095:
        notes.add("dark", label)
    return levels * np.float32(WHITE) / np.float32(white)


def _with_lower_bytes(raw: bytes, image: Image.Image, label: str, notes: PictureNotes) -> Image.Image | None:
    """The same picture with the lower bytes of its colours, where they have 16 bits: Pillow reads the upper ones only.

    Read in the other byte order, the file gives the lower bytes. None where colours have 8 bits.
    """
    from PIL import Image

    tiles: list[Any] = list(getattr(image, "tile", []))  # (codec, extents, offset, raw mode or (raw mode, ...))
    arguments = [tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in tiles]
    raw_modes = [str(first) for first, *_ in arguments]
    wide = any(";16" in mode for mode in raw_modes)
    if image.format == "PPM":  # its second argument is the value of white
        wide = any(isinstance(value, int) and value > WHITE for _, *rest in arguments for value in rest)
    if image.mode.startswith("I") or not wide:
        return None
    if not all(mode[:-4] in ("RGB", "RGBA") and mode[-4:] in _OTHER_BYTE for mode in raw_modes):
        notes.add("reduced", label)
        return None
    swapped = [
        (mode[:-4] + _OTHER_BYTE[mode[-4:]], *rest) for mode, (_, *rest) in zip(raw_modes, arguments, strict=True)
    ]
    other = Image.open(io.BytesIO(raw), formats=[str(image.format)])
    other.tile = [
        type(tile)(*tile[:3], args if isinstance(tile[3], tuple) else args[0])
        for tile, args in zip(tiles, swapped, strict=True)
    ]
    other.load()
    return other


def _opaque(pixels: np.ndarray, label: str, notes: PictureNotes) -> np.ndarray:
    """Colours without their transparency: [h, w, 2] -> [h, w], [h, w, 4] -> [h, w, 3]."""
    colour, alpha = pixels[..., :-1], pixels[..., -1:]
    if pixels.size and max(np.ptp(colour[..., k]) for k in range(colour.shape[2])) <= _FLAT < np.ptp(alpha):
        notes.add("drawn", label)
        paper = 0.0 if colour.mean() >= WHITE / 2 else WHITE
        laid = paper + (colour.astype(np.float32) - paper) * (alpha.astype(np.float32) / np.float32(WHITE))
        colour = laid if pixels.dtype == np.float32 else np.rint(laid).astype(np.uint8)
    return colour[..., 0] if colour.shape[2] == 1 else np.ascontiguousarray(colour)


def _with_channels(pixels: np.ndarray, channels: int | None) -> np.ndarray:
    from PIL import Image

    if channels == 3 and pixels.ndim == 2:
        return np.repeat(pixels[..., None], 3, axis=2)
    if channels == 1 and pixels.ndim == 3:
        return np.asarray(Image.fromarray(pixels).convert("L")) if pixels.dtype == np.uint8 else pixels @ _LUMA
    return pixels
