"""Arrays in an .npz file, in the Keras convention."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.dataset import channel_moments, checked
from fedloom.data.sources.source import Source, Splits, source

_KEYS = ("x_train", "y_train", "x_test", "y_test")


@source("npz")
class Npz(Source):
    """Any `.npz` with `x_train, y_train, x_test, y_test` (the Keras convention), at `path`.

    Images [n, h, w], [n, h, w, c] with c of 1 or 3, or [n, c, h, w]; uint8 or real numbers. Labels are integers from
    0. Images are scaled by the training set's own mean and standard deviation per channel.
    """

    path: Path

    def load(self) -> Splits:
        arrays = self._read()
        for key in ("x_train", "x_test"):
            x = arrays[key]
            if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
                arrays[key] = x.transpose(0, 3, 1, 2)
        x, labels = arrays["x_train"], [arrays["y_train"], arrays["y_test"]]
        if x.shape[1:] != arrays["x_test"].shape[1:]:
            raise DataError(
                f"{self.path}: x_train {x.shape} and x_test {arrays['x_test'].shape} differ in sample shape"
            )
        highest = max(int(y.max(initial=0)) if y.dtype.kind in "iu" else 0 for y in labels)
        classes = [str(c) for c in range(highest + 1)]
        mean, std = channel_moments(x) if x.ndim in (3, 4) and x.size and x.dtype.kind in "iuf" else (None, None)
        train, test = (
            checked(
                arrays[f"x_{part}"],
                arrays[f"y_{part}"],
                origin=f"{self.path} ({part})",
                classes=classes,
                mean=mean,
                std=std,
            )
            for part in ("train", "test")
        )
        return Splits(train, test)

    def _read(self) -> dict[str, np.ndarray]:
        try:
            if not zipfile.is_zipfile(self.path) and self.path.exists():
                raise zipfile.BadZipFile("no zip archive")
            with np.load(self.path, allow_pickle=False) as archive:
                missing = [key for key in _KEYS if key not in archive]
                if missing:
                    raise DataError(f"{self.path}: lacks {', '.join(missing)}; need {', '.join(_KEYS)}")
                return {key: archive[key] for key in _KEYS}
        except FileNotFoundError:
            raise DataError(f"{self.path}: no such file; expected an .npz with {', '.join(_KEYS)}") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.path}: cannot be read as .npz ({error}); damaged or truncated") from None
