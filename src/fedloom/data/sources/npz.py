"""Arrays in an .npz file, in the Keras convention."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocate, ImageSource, Parsed, Part
from fedloom.data.sources.source import source

_KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path, keys: Sequence[str] = _KEYS) -> dict[str, np.ndarray]:
    """All arrays of an .npz that must hold `keys`. Object arrays are refused, never unpickled."""
    try:
        if not zipfile.is_zipfile(path) and path.exists():
            raise zipfile.BadZipFile("no zip archive")
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise DataError(f"{path}: lacks {', '.join(missing)}; need {', '.join(keys)}")
            return {key: archive[key] for key in archive}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected an .npz with {', '.join(keys)}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as .npz ({error}); damaged or truncated") from None


def channels_first(x: np.ndarray, new: Allocate | None = None, name: str = "") -> np.ndarray:
    """[n, h, w, c] with c of 1 or 3 -> [n, c, h, w], in an array made by `new(name, ...)`; anything else as it is."""
    if x.ndim != 4 or x.shape[-1] not in (1, 3) or x.shape[1] in (1, 3) or not x.size:
        return x
    n, h, w, c = x.shape
    out = np.empty((n, c, h, w), x.dtype) if new is None else new(name, (n, c, h, w), x.dtype)
    np.copyto(out.reshape(n, c, h * w), x.reshape(n, h * w, c).swapaxes(1, 2))  # flat: five times as fast
    return out


def parse_npz(path: Path, new: Allocate, classes: Sequence[str] | None = None) -> Parsed:
    """A set from `x_train, y_train, x_test, y_test` and, if there, `classes`.

    Class names are those of the file, else `classes`, else 0 .. the largest label.
    """
    arrays = read_npz(path)
    named = arrays.get("classes")
    if named is not None:
        if named.ndim != 1 or named.dtype.kind not in "US":
            raise DataError(f"{path}: classes have shape {named.shape} and dtype {named.dtype}; need names [C]")
        classes = [str(name) for name in named.astype(str)]
    elif classes is None:
        labels = [arrays[key] for key in ("y_train", "y_test")]
        classes = [str(c) for c in range(1 + max(int(y.max(initial=0)) if y.dtype.kind in "iu" else 0 for y in labels))]
    train, test = (
        Part(channels_first(arrays[f"x_{part}"], new, f"{part}.x"), arrays[f"y_{part}"]) for part in ("train", "test")
    )
    return Parsed(str(path), train, test, tuple(classes))


@source("npz")
class Npz(ImageSource):
    """Any `.npz` with `x_train, y_train, x_test, y_test` (the Keras convention) and optional `classes`, at `path`.

    Images [n, h, w], [n, h, w, c] with c of 1 or 3, or [n, c, h, w]; uint8 or real numbers; or features [n, d]. Labels
    are integers from 0. Images are scaled by the training set's own mean and standard deviation per channel.
    """

    path: Path

    def files(self) -> Sequence[Path]:
        if not self.path.exists():
            raise DataError(f"{self.path}: no such file; expected an .npz with {', '.join(_KEYS)}")
        return [self.path]

    def parse(self, new: Allocate) -> Parsed:
        return parse_npz(self.path, new)
