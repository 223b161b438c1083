"""Conversion of array-like Python values to numpy arrays, without losing masks or precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedloom.core.errors import DataError
from fedloom.data.sources.picture_notes import PictureNotes
from fedloom.data.sources.pixels import image_pixels

ArrayLike = Any
"""Any value that `as_array` converts, such as a list, an array or a tensor."""


def as_array(value: ArrayLike, origin: str, pictures: PictureNotes | None = None) -> np.ndarray:
    """Convert to an array; Pillow pictures and tensors with gradients are accepted.

    Args:
        value: an array, a picture, a tensor, or a list of such.
        origin: name of the values in messages.
        pictures: counts the pictures that are read.

    Raises `DataError` for masked values, whose mask would be lost, for sparse arrays, and for values of other types.
    """
    try:
        if isinstance(value, list | tuple) and any(map(_needs_conversion, value)):
            return np.asarray([as_array(element, origin, pictures) for element in value])
        if isinstance(value, np.ma.MaskedArray):
            count = int(np.ma.getmaskarray(value).sum())
            if count:
                raise DataError(
                    f"{origin}: {count:,} of {value.size:,} values are masked; fill them, or leave their samples out"
                )
            return np.asarray(value.data)
        if _is_picture(value):
            return image_pixels(value, origin, None, PictureNotes() if pictures is None else pictures)
        if hasattr(value, "toarray") or (isinstance(value, torch.Tensor) and value.layout != torch.strided):
            method = "to_dense" if isinstance(value, torch.Tensor) else "toarray"
            raise DataError(f"{origin}: a sparse {type(value).__name__} is no array; give its {method}()")
        if isinstance(value, torch.Tensor):
            tensor = value.detach().cpu()
            return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)  # numpy has no bfloat16
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{origin}: no array can be made of this ({' '.join(str(error).split())[:200]})") from None


def _needs_conversion(element: Any) -> bool:
    if isinstance(element, int | float | str):
        return False
    return isinstance(element, torch.Tensor | np.ma.MaskedArray) or hasattr(element, "toarray") or _is_picture(element)


def _is_picture(value: Any) -> bool:
    return type(value).__module__.startswith("PIL.") and hasattr(value, "convert")


def index_notes(x: ArrayLike | None, y: ArrayLike | None) -> tuple[str, ...]:
    """Return a note if samples and labels are pandas objects with different indexes."""
    indexes = [getattr(values, "index", None) for values in (x, y)]
    if all(hasattr(index, "equals") for index in indexes) and not indexes[0].equals(indexes[1]):  # type: ignore[union-attr]
        return ("samples and labels have different indexes; rows are paired by their position, not by the index",)
    return ()
