"""One picture to pixels, by what its format says: the one reader of pictures for all doors of data."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.picture_notes import PictureNotes

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
_ORIENTATION = 0x0112  # of EXIF; 1 is upright
_FLAT = 8  # of 255: a picture whose colours differ by no more shows nothing in them

_MODES = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "P": "RGBA", "PA": "RGBA", "RGBa": "RGBA"}
"""Modes of Pillow by the mode that they are converted to first; all others become RGB. Palettes may be transparent."""


def read_pixels(
    raw: bytes, label: str, channels: int | None, notes: PictureNotes, size: int | None = None
) -> np.ndarray:
    """Return the pixels in the bytes of a picture file, as `image_pixels` does.

    Args:
        raw: contents of the file.
        label: name of the file in messages.
        channels: 1 for grey, 3 for colour; None keeps what the picture has.
        notes: counts what is unusual about pictures.
        size: height and width of the pixels, to which the picture is fitted; None keeps its own.

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
                pixels = image_pixels(image, label, channels, notes, size=size, lower_bytes=lower_bytes)
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
    *,
    size: int | None = None,
    lower_bytes: Image.Image | None = None,
) -> np.ndarray:
    """Return the pixels of a picture, [h, w] or [h, w, 3], turned as its EXIF orientation says.

    Pixels are uint8 from 0 to 255, or float32 from 0 to 255 where the picture has 12 or 16 bits, so that no level is
    lost. Palettes become their colours. Transparency is dropped, unless a picture is drawn in it alone, in one colour:
    that is laid over white, or over black if its colour is light.

    Args:
        image: the opened picture.
        label: name of the picture in messages.
        channels: 1 for grey [h, w], 3 for colour; None keeps grey pictures grey and makes all others colour.
        notes: counts what is unusual about pictures.
        size: resized bilinearly to size x size; None keeps its size.
        lower_bytes: the lower bytes of colours with 16 bits, where `image` has the upper ones.

    Raises `DataError` for 32-bit pictures, whose range no format states.
    """
    from PIL import Image

    notes.total += 1
    if lower_bytes is not None or image.mode in ("F", "I") or image.mode.startswith("I;16"):
        return _deep_pixels(image, label, channels, notes, size, lower_bytes)
    upright = _upright(image, label, notes)
    mode = _MODES.get(upright.mode, "RGB")
    if upright.mode == "YCbCr" and channels == 1:
        mode = "L"
    upright = _in_mode(upright, mode)
    if mode in ("LA", "RGBA"):
        extrema: Any = upright.getextrema()  # (lowest, highest) of each channel
        *colours, alpha = extrema
        if _is_drawn_in_alpha(colours, alpha):
            upright = Image.fromarray(np.rint(_opaque(np.asarray(upright), label, notes)).astype(np.uint8))
        upright = _in_mode(upright, {"LA": "L", "RGBA": "RGB"}.get(upright.mode, upright.mode))
    upright = _in_mode(upright, {None: upright.mode, 1: "L", 3: "RGB"}[channels])
    return np.asarray(upright if size is None else _resized(upright, size))


def _deep_pixels(
    image: Image.Image,
    label: str,
    channels: int | None,
    notes: PictureNotes,
    size: int | None,
    lower_bytes: Image.Image | None,
) -> np.ndarray:
    """`image_pixels` of pictures with more than 8 bits per channel: float32."""
    from PIL import Image

    if lower_bytes is None:
        pixels = _deep_grey(image, label, notes)
    else:
        upper, lower = (np.asarray(_upright(part, label, notes), np.float32) for part in (image, lower_bytes))
        pixels = (upper * 256 + lower) / np.float32(257)
    notes.add("deep", label)
    if pixels.ndim == 3 and pixels.shape[2] == 4:
        *colours, alpha = [(float(plane.min()), float(plane.max())) for plane in np.moveaxis(pixels, 2, 0)]
        drawn = _is_drawn_in_alpha(colours, alpha)
        pixels = _opaque(pixels, label, notes) if drawn else pixels[..., :3]
    if pixels.ndim == 3 and channels == 1:
        pixels = pixels @ _LUMA
    planes = [pixels] if pixels.ndim == 2 else list(np.moveaxis(pixels, 2, 0))
    if size is not None:  # Pillow resizes real numbers plane by plane
        planes = [np.asarray(_resized(Image.fromarray(np.ascontiguousarray(plane)), size)) for plane in planes]
    if len(planes) == 1 and channels != 3:
        return planes[0]
    return np.stack(planes if len(planes) == 3 else planes * 3, axis=2)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _resized(image: Image.Image, size: int) -> Image.Image:
    from PIL import Image

    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


def _upright(image: Image.Image, label: str, notes: PictureNotes) -> Image.Image:
    """The picture as its EXIF orientation says; as it is stored where that block is damaged (counted)."""
    from PIL import ImageOps

    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
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
    lower = Image.open(io.BytesIO(raw), formats=[str(image.format)])
    lower.tile = [
        type(tile)(*tile[:3], args if isinstance(tile[3], tuple) else args[0])
        for tile, args in zip(tiles, swapped, strict=True)
    ]
    lower.load()
    return lower


def _is_drawn_in_alpha(colours: Sequence[tuple[float, float]], alpha: tuple[float, float]) -> bool:
    """Whether colours, as (lowest, highest) per channel, show nothing, and transparency does."""
    return max(high - low for low, high in colours) <= _FLAT < alpha[1] - alpha[0]


def _opaque(pixels: np.ndarray, label: str, notes: PictureNotes) -> np.ndarray:
    """A drawing in its transparency [h, w, c + 1], laid over white or black: float32 [h, w, c], or [h, w] of grey."""
    notes.add("drawn", label)
    colour, alpha = pixels[..., :-1].astype(np.float32), pixels[..., -1:].astype(np.float32)
    paper = np.float32(0 if colour.mean() >= WHITE / 2 else WHITE)
    laid = paper + (colour - paper) * (alpha / np.float32(WHITE))
    return np.asarray(laid[..., 0] if laid.shape[2] == 1 else laid)
