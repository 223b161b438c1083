"""Pictures to pixels, by what their format says: the one reader of pictures for all doors of data."""

import io
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from fedloom.core.errors import DataError, FedloomError, printable
from fedloom.core.files import package_table
from fedloom.data.sources import medical
from fedloom.data.sources.cached import Allocator
from fedloom.data.sources.files import Files

if TYPE_CHECKING:
    from PIL import Image


_FORMATS = package_table(Path(__file__).with_name("formats.toml"))


class PictureNotes:
    """Counts the pictures of a set as they are read, and their oddities."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self.spacings: Counter[str] = Counter()  # of the voxels of NIfTI files

    def add(self, kind: str, name: str) -> None:
        """Count the picture `name` under `kind`, one of the notes in `formats.toml`."""
        self._counts[kind] += 1
        self._first.setdefault(kind, name)

    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each kind of oddity that occurred."""
        return tuple(sentence for _, _, sentence in self.by_kind())

    def by_kind(self, *, with_depth: bool = True) -> list[tuple[str, int, str]]:
        """Return kind, number of pictures and sentence of each kind that occurred. with_depth: also of levels."""
        counts = dict(self._counts)
        for kind in () if with_depth else ("deep", "window", "nifti"):
            counts.pop(kind, None)
        if counts.get("dicom") == self.total:
            counts.pop("dicom", None)
        if counts.get("dark") != counts.get("deep"):  # some use the whole range: no sign of 12 bits
            counts.pop("dark", None)
        listed = [f"{spacing} in {count:,}" for spacing, count in self.spacings.most_common(5)]
        spacings = ", ".join(listed) + (f", {len(self.spacings)} in all" if len(self.spacings) > 5 else "")
        sentences = []
        for kind in [kind for kind in _FORMATS["notes"] if kind in counts]:
            facts = {"count": f"{counts[kind]:,} of {self.total:,}", "first": self._first[kind], "spacings": spacings}
            sentences.append((kind, counts[kind], _FORMATS["notes"][kind].format(**facts)))
        return sentences


WHITE = 255.0  # pixels reach from 0 to this, as bytes or (with more than 256 levels) as real numbers

# Pillow is asked for these formats alone: its reader of EPS would start Ghostscript.
SUFFIXES: dict[str, tuple[str, ...]] = _FORMATS["suffixes"]
_MOST_PIXELS = 64_000_000
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)
_OTHER_BYTE = {";16L": ";16B", ";16B": ";16L", ";16N": ";16B" if sys.byteorder == "little" else ";16L"}
_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0  # of TIFF
_ORIENTATION = 0x0112  # of EXIF; 1 is upright
_FLAT = 8  # of 255: a picture whose colours differ by no more shows nothing in them
# The mode to which each mode of Pillow is converted first (others: RGB). Palettes may be transparent.
_MODES = {"1": "L", "L": "L", "LA": "LA", "La": "LA", "RGBA": "RGBA", "P": "RGBA", "PA": "RGBA", "RGBa": "RGBA"}


def read_pixels(
    raw: bytes, label: str, channels: int | None, notes: PictureNotes, size: int | None = None
) -> np.ndarray:
    """Return the pixels in the `raw` bytes of a picture file, as `image_pixels` (channels, notes, size). Raises
    `DataError` naming `label` for what is no picture, damaged, or above 64 million pixels; `MissingPackageError`."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            is_dicom = medical.is_dicom(raw) or label.lower().endswith(medical.SUFFIXES[:2])
            if is_dicom:
                warnings.simplefilter("ignore")  # pydicom's would print values of the header
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if medical.is_nifti(label):
                notes.total += 1
                return medical.nifti_voxels(raw, label, notes, size)
            if is_dicom and (pixels := medical.dicom_pixels(raw, label, notes)).dtype == np.uint8:
                return image_pixels(Image.fromarray(pixels), label, channels, notes, size=size)
            if is_dicom:
                notes.total += 1
                return _planes(pixels, channels, size)
            with Image.open(io.BytesIO(raw), formats=list(SUFFIXES)) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"{image.width} x {image.height} pixels are too many")
                kind = str(image.format)
                if kind != "MPO" and getattr(image, "is_animated", False):
                    notes.add("frames", label)
                lower_bytes = _with_lower_bytes(raw, image, label, notes)
                image.load()
                pixels = image_pixels(image, label, channels, notes, size=size, lower_bytes=lower_bytes)
    except FedloomError:
        raise
    except Exception as error:  # neither Pillow nor the medical packages have one kind of error for damaged files
        why = "unknown format" if isinstance(error, UnidentifiedImageError) else " ".join(str(error).split())[:200]
        raise DataError(f"{label}: cannot be decoded as an image ({why or type(error).__name__})") from None
    kind = "JPEG" if kind == "MPO" else kind  # several pictures of one shot; the first is the main one
    suffix = f".{label.rpartition('.')[2].lower()}"
    if suffix not in SUFFIXES[kind] and any(suffix in suffixes for suffixes in SUFFIXES.values()):
        notes.add("format", f"{label} is a {kind}")
    return pixels


def image_pixels(
    image: "Image.Image",
    label: str,
    channels: int | None,
    notes: PictureNotes,
    *,
    size: int | None = None,
    lower_bytes: "Image.Image | None" = None,
) -> np.ndarray:
    """Return the pixels of a picture, [h, w] or [h, w, 3], turned as its EXIF orientation says: uint8, or float32 from
    0 to 255 of 12 or 16 bits. Transparency is dropped, unless the whole drawing is in it: that is laid over white, or
    black if light. channels: 1 for grey, 3 for colour; None makes all but grey pictures colour. size: resized
    bilinearly; None keeps its size. lower_bytes: of colours with 16 bits, whose upper ones `image` has. label, notes:
    names it, and counts oddities. Raises `DataError` for 32-bit pictures, whose range no format states."""
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
    image: "Image.Image",
    label: str,
    channels: int | None,
    notes: PictureNotes,
    size: int | None,
    lower_bytes: "Image.Image | None",
) -> np.ndarray:
    """Return float32 pixels of pictures with more than 8 bits per channel."""
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
    return _planes(pixels @ _LUMA if pixels.ndim == 3 and channels == 1 else pixels, channels, size)


def _planes(pixels: np.ndarray, channels: int | None, size: int | None) -> np.ndarray:
    """Return real numbers [h, w] or [h, w, 3], resized and with the channels as in `image_pixels`."""
    from PIL import Image

    planes = [pixels] if pixels.ndim == 2 else list(np.moveaxis(pixels, 2, 0))
    if size is not None:  # Pillow resizes real numbers plane by plane
        planes = [np.asarray(_resized(Image.fromarray(np.ascontiguousarray(plane)), size)) for plane in planes]
    if len(planes) == 1 and channels != 3:
        return planes[0]
    return np.stack(planes if len(planes) == 3 else planes * 3, axis=2)


def _in_mode(image: "Image.Image", mode: str) -> "Image.Image":
    return image if image.mode == mode else image.convert(mode)


def _resized(image: "Image.Image", size: int) -> "Image.Image":
    from PIL import Image

    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


def _upright(image: "Image.Image", label: str, notes: PictureNotes) -> "Image.Image":
    """Return the picture as its EXIF orientation says; as it is stored (and counted) if that block is damaged."""
    from PIL import ImageOps

    try:
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # Pillow has no one kind of error for damaged blocks
        notes.add("exif", label)
        return image


def _deep_grey(image: "Image.Image", label: str, notes: PictureNotes) -> np.ndarray:
    """Return grey of 12 or 16 bits as float32 [h, w] from 0 to 255."""
    tags = getattr(image, "tag_v2", {})
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):  # theirs have 16 bits
        why = f"mode {image.mode} has no fixed range; save 16 bits, or arrays in an .npz"
        raise DataError(f"{label}: cannot be decoded as an image ({why})")
    levels = np.asarray(_upright(image, label, notes)).astype(np.float32)
    white = 4095 if tags.get(_BITS_PER_SAMPLE) == (12,) else 65535
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        levels = white - levels
    if white == 65535 and levels.max(initial=0) <= 4095:
        notes.add("dark", label)
    return levels * np.float32(WHITE) / np.float32(white)


def _with_lower_bytes(raw: bytes, image: "Image.Image", label: str, notes: PictureNotes) -> "Image.Image | None":
    """Return the picture with the lower bytes of 16-bit colours, whose upper ones Pillow reads; None for 8 bits."""
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
    # Pillow keeps the upper byte of 16-bit colours. With the byte order swapped it takes the lower one for the upper.
    lower = Image.open(io.BytesIO(raw), formats=[str(image.format)])
    lower.tile = [
        type(tile)(*tile[:3], args if isinstance(tile[3], tuple) else args[0])
        for tile, args in zip(tiles, swapped, strict=True)
    ]
    lower.load()
    return lower


def _is_drawn_in_alpha(colours: Sequence[tuple[float, float]], alpha: tuple[float, float]) -> bool:
    """Tell whether colours, as (lowest, highest) per channel, show nothing, and transparency does."""
    return max(high - low for low, high in colours) <= _FLAT < alpha[1] - alpha[0]


def _opaque(pixels: np.ndarray, label: str, notes: PictureNotes) -> np.ndarray:
    """Lay a drawing in its transparency [h, w, c + 1] over white or black: float32 [h, w, c], or [h, w] of grey."""
    notes.add("drawn", label)
    colour, alpha = pixels[..., :-1].astype(np.float32), pixels[..., -1:].astype(np.float32)
    paper = np.float32(0 if colour.mean() >= WHITE / 2 else WHITE)
    laid = paper + (colour - paper) * (alpha / np.float32(WHITE))
    return np.asarray(laid[..., 0] if laid.shape[2] == 1 else laid)


_SUFFIXES = (*(suffix for suffixes in SUFFIXES.values() for suffix in suffixes), *medical.SUFFIXES)
_RESIZED_AT_ONCE = 1024


def is_image(name: str) -> bool:
    """Tell by its suffix whether a file is a picture of a format that is read."""
    return name.lower().endswith(_SUFFIXES)


def picture_names(files: Files, names: Sequence[str]) -> list[str]:
    """Return the names of pictures: by their suffix, and in a folder also of DICOM files without one."""
    return [name for name in names if is_image(name) or medical.is_bare_dicom(files, name)]


def decode(raw: bytes, label: str, size: int, channels: int, notes: PictureNotes | None = None) -> np.ndarray:
    """Return one picture as [channels, size, size], resized bilinearly; otherwise as `read_pixels` of the bytes `raw`,
    named `label`. A NIfTI file becomes [channels, size, size] or [channels, size, size, size]."""
    pixels = read_pixels(raw, label, channels, notes or PictureNotes(), size)
    if medical.is_nifti(label):
        return np.repeat(pixels[None], channels, axis=0)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_into(
    files: Files,
    rows: Mapping[str, tuple[str, int]],
    arrays: dict[str, np.ndarray],
    allocate: Allocator,
    max_bad: int = 0,
) -> tuple[tuple[str, ...], list[str]]:
    """Decode pictures of files into rows of arrays [n, channels, size, size]; `rows` gives (key, row) by name.
    Return notes, and the names of pictures that cannot be decoded. Raises `DataError` for more than `max_bad` of them:
    the first one, and how many."""
    notes = PictureNotes()
    damaged: dict[str, str] = {}
    channels, size = next(iter(arrays.values())).shape[1::2]
    for name, raw in files.read_each(rows):
        try:
            pixels = decode(raw, printable(name), size, channels, notes)
            if pixels.ndim != arrays[rows[name][0]].ndim - 1:
                raise DataError(f"{printable(name)}: cannot be among the others (a volume among slices, or a slice)")
        except DataError as error:
            damaged[name] = f"{files.display_name(name)}{str(error).removeprefix(printable(name))}"
            continue
        key, row = rows[name]
        put(pixels, arrays, key, row, allocate)
    if not damaged:
        return notes.sentences(), []
    first, *others = damaged.values()
    text = f"{first}; {len(damaged):,} of {len(rows):,} pictures cannot be decoded"
    if len(damaged) > max_bad:
        text += "".join(f", {line.partition(': cannot')[0]}" for line in others[:3])
        allowed = f" (max_bad_samples: {max_bad})" if max_bad else ""
        raise DataError(f"{text}{allowed}: copy them again, or take them out")
    listed = ", ".join(files.display_name(name) for name in damaged)
    return (*notes.sentences(), f"{text} and were left out (max_bad_samples: {max_bad}): {listed}"), [*damaged]


def put(pixels: np.ndarray, arrays: dict[str, np.ndarray], key: str, row: int, allocate: Allocator) -> None:
    """Write one picture into its row of an array. The first one with more than 256 levels replaces all arrays of bytes
    by arrays of real numbers with the same values, made by `allocate`."""
    if pixels.dtype != np.uint8 and arrays[key].dtype == np.uint8:
        for name, stored in arrays.items():
            arrays[name] = allocate(name, stored.shape, np.float32)
            arrays[name][...] = stored
    arrays[key][row] = pixels


def resized(x: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Resize pixels [n, c, h, w] to [n, channels, size, size]: bilinear with antialiasing, grey replicated, colour to
    grey by luma weights. uint8 is rounded to uint8; float32 stays float32."""
    whole = x.dtype == np.uint8
    if x.shape[1] != channels:
        grey = x if x.shape[1] == 1 else np.tensordot(x, (0.299, 0.587, 0.114), (1, 0))[:, None]
        x = np.repeat((np.rint(grey) if whole else grey).astype(x.dtype), channels, axis=1)
    if x.shape[2:] == (size, size):
        return x
    out = np.empty((len(x), channels, size, size), x.dtype)
    for start in range(0, len(x), _RESIZED_AT_ONCE):
        block = torch.from_numpy(x[start : start + _RESIZED_AT_ONCE].astype(np.float32))
        block = interpolate(block, (size, size), mode="bilinear", antialias=True)
        block = block.clamp_(0, 255)
        out[start : start + _RESIZED_AT_ONCE] = (block.round_() if whole else block).numpy()
    return out
