"""Arrays in an .npz file, in the Keras convention."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.labels import class_ids
from fedloom.data.memory import require_memory
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSamples, ParsedSplits
from fedloom.data.sources.files import ENCRYPTED
from fedloom.data.sources.regular_files import require_regular
from fedloom.data.sources.source import source

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_LONGEST_HEADER = 10_000  # bytes, as numpy itself allows


def read_npz(path: Path, keys: Sequence[str] = _KEYS) -> dict[str, np.ndarray]:
    """All arrays of an .npz that must hold `keys`. Object arrays are refused, never unpickled.

    What headers and the archive's directory state is compared before anything is read: memory and time are bounded.
    """
    require_regular(path)
    try:
        if not zipfile.is_zipfile(path) and path.exists():
            raise zipfile.BadZipFile("no zip archive")
        with zipfile.ZipFile(path) as archive:
            listed = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            members = {info.filename.removesuffix(".npy"): info for info in listed}
            missing = [key for key in keys if key not in members]
            if missing:
                raise DataError(f"{path}: lacks {', '.join(missing)}; need {', '.join(keys)}")
            if any(info.flag_bits & ENCRYPTED for info in members.values()):
                raise DataError(f"{path}: is encrypted; unpack it, and save the arrays with numpy.savez")
            for info in members.values():
                _check_header(archive, info)
        require_memory(sum(info.file_size for info in members.values()), str(path))
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in members}
    except FileNotFoundError:
        content = f" with {', '.join(keys)}" if keys else ""
        raise DataError(f"{path}: no such file; expected an .npz{content}") from None
    except (OSError, ValueError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"{path}: cannot be read as .npz ({why}); damaged or truncated") from None


def _check_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raises `ValueError` for an array whose header is not the size of its data."""
    with archive.open(member) as stream:
        start = stream.read(12)
    is_version_one = start[6:7] == b"\x01"
    length = int.from_bytes(start[8:10] if is_version_one else start[8:12], "little")
    if not start.startswith(np.lib.format.MAGIC_PREFIX) or length > _LONGEST_HEADER:
        raise ValueError(f"{member.filename} does not begin as an array does")
    with archive.open(member) as stream:
        np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if is_version_one else np.lib.format.read_array_header_2_0
        try:
            shape, _, dtype = read(stream)
        except Exception as error:  # numpy has no one kind of error for headers that are no Python values
            raise ValueError(f"{member.filename}: {error}") from None
        stated, held = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
    if not dtype.hasobject and (stated != held or min(shape, default=0) < 0):
        raise ValueError(f"{member.filename} states shape {shape} of {dtype}, {stated:,} bytes, and holds {held:,}")


def channels_first(x: np.ndarray, allocate: Allocator | None = None, name: str = "") -> np.ndarray:
    """Return images [n, h, w, c] as [n, c, h, w], and volumes alike; anything else as it is (`channels_last`).

    Args:
        x: samples.
        allocate: makes the array of the result, from its name, shape and dtype; None takes memory.
        name: the array's name.
    """
    if x.ndim < 4 or not x.size or not channels_last(x.shape[1:]):
        return x
    n, *size, c = x.shape
    out = np.empty((n, c, *size), x.dtype) if allocate is None else allocate(name, (n, c, *size), x.dtype)
    np.copyto(out.reshape(n, c, -1), x.reshape(n, -1, c).swapaxes(1, 2))  # flat: five times as fast
    return out


def channels_last(shape: tuple[int, ...]) -> bool:
    """Whether samples of this shape are [h, w, c] (or [d, h, w, c]) rather than [c, h, w].

    An axis of 1 or 3 at one end is that of channels; then one end beside equal sides (32 x 32 x 8) or beside sides at
    least twice as long. What stays unclear is taken as [c, h, w]; see `layout_notes`.
    """
    return _ends(shape) == (False, True)


def layout_notes(shape: tuple[int, ...]) -> tuple[str, ...]:
    """A note on samples of this shape if it does not say where their channels are."""
    first, last = _ends(shape) if len(shape) > 2 else (True, False)
    if first != last:
        return ()
    return (f"samples of shape {shape} may be [c, h, w] or [h, w, c], and are read as [c, h, w]; move channels there",)


def _ends(shape: tuple[int, ...]) -> tuple[bool, bool]:
    """Whether the first axis may be that of channels, and whether the last one may be."""
    tests: tuple[Callable[[int, tuple[int, ...]], bool], ...] = (
        lambda c, _: c in (1, 3),
        lambda _, sides: len(set(sides)) == 1,
        lambda c, sides: 2 * c <= min(sides),
    )
    ends = (False, False)
    for test in tests:
        ends = test(shape[0], shape[1:]), test(shape[-1], shape[:-1])
        if any(ends):
            break
    return ends


def parse_npz(path: Path, allocate: Allocator, classes: Sequence[str] | None = None) -> ParsedSplits:
    """Make a set from `x_train, y_train, x_test, y_test` and, if there, `classes`.

    Args:
        path: the .npz file.
        allocate: makes the arrays whose axes change.
        classes: names of the classes, unless the file has them; None takes those that the labels have
            (`fedloom.data.labels.class_ids`).
    """
    arrays = read_npz(path)
    named = arrays.get("classes")
    if named is not None:
        if named.ndim != 1 or named.dtype.kind not in "US":
            raise DataError(f"{path}: classes have shape {named.shape} and dtype {named.dtype}; need names [C]")
        classes = [str(name) for name in named.astype(str)]
    ids, names = class_ids([arrays["y_train"], arrays["y_test"]], str(path), classes)
    train, test = (
        ParsedSamples(channels_first(arrays[f"x_{part}"], allocate, f"{part}.x"), labels)
        for part, labels in zip(("train", "test"), ids, strict=True)
    )
    return ParsedSplits(str(path), train, test, names, notes=layout_notes(arrays["x_train"].shape[1:]))


@source("npz")
class Npz(ImageSource):
    """Any `.npz` with `x_train, y_train, x_test, y_test` (the Keras convention) and optional `classes`.

    Images [n, h, w], [n, h, w, c] or [n, c, h, w], volumes [n, c, d, h, w]; uint8 or real numbers; or features [n, d].
    Labels are integers from 0, or words; other integers are the names of their classes. Images and volumes are scaled
    by the training set's own mean and standard deviation per channel.
    """

    path: Path = Field(
        description="Path of the .npz file.",
        examples=["data.npz"],
    )

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file; expected an .npz with {', '.join(_KEYS)}")
        require_regular(self.path)
        return [self.path]

    def parse(self, allocate: Allocator) -> ParsedSplits:
        return parse_npz(self.path, allocate)
