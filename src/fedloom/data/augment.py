"""Augmentation of batches: random crop with padding, horizontal flip and rotation.

The caller passes a generator for (seed, round, client). Crop and flip only move stored values: their bits are the same
everywhere."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from fedloom.core.errors import ConfigError
from fedloom.core.key_models import Keys
from fedloom.core.trees import sent_to
from fedloom.data.dataset import Dataset
from fedloom.data.views import Indices


class Augmentation(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Random changes of training images, in this order: crop, flip, rotate. The default does nothing."""

    crop: int = Field(0, ge=0, examples=[4])
    flip: bool = Field(False, description="Whether images are mirrored left to right, with probability 1/2.")
    rotate: float = Field(0.0, ge=0, le=180)
    per: Literal["sample", "batch"] = "sample"
    fill: Literal["black", "mean"] = "black"

    @property
    def active(self) -> bool:
        return bool(self.crop or self.flip or self.rotate)

    def check(self, data: Dataset) -> None:
        """Raise `ConfigError` if samples like those of `data` cannot be augmented."""
        if not self.active:
            return
        shape = data.input_shape
        if len(shape) != 3 or data.x.dtype not in (torch.uint8, torch.float32):
            operations = ", ".join(name for name in ("crop", "flip", "rotate") if getattr(self, name))
            samples = f"samples here have shape {shape} and dtype {str(data.x.dtype).removeprefix('torch.')}"
            need = f"augment ({operations}): needs images [channels, height, width]"
            raise ConfigError(f"{need}; {samples}; leave augment out")
        if self.crop >= min(shape[1:]):
            detail = f"a crop this far off would hold nothing of them; need less than {min(shape[1:])}"
            raise ConfigError(f"augment.crop = {self.crop}: images are {shape[1]} x {shape[2]} pixels; {detail}")

    def gather(self, data: Dataset, indices: Tensor, rng: np.random.Generator) -> Tensor:
        """Return `data.gather(indices)`, augmented: indices [B] int64 -> normalised float32 [B, c, h, w]. Only active
        operations draw from `rng`, in the order crop, flip, rotate."""
        shifts, flips, angles = self._draw(len(indices), rng)
        if self.fill == "mean":
            # After normalisation, where the zeros from outside are the mean colour.
            x = data.gather(indices)
            if self.crop or self.flip:
                x = crop_and_flip(x, torch.arange(len(x), device=x.device), shifts, flips)
            return rotate(x, angles) if self.rotate else x
        # Before normalisation, so that zeros from outside are black.
        x = crop_and_flip(data.x, indices, shifts, flips).to(torch.float32)
        if self.rotate:
            x = rotate(x, angles)
        if data.mean is not None and data.std is not None:
            # In place: `crop_and_flip` has copied the stored values, even where it moved none.
            x.sub_(data.mean.view(1, -1, 1, 1)).div_(data.std.view(1, -1, 1, 1))
        return x

    def views(self, data: Dataset, indices: Tensor, rng: np.random.Generator, n: int) -> list[Tensor]:
        """Return n independently augmented versions, as from `gather`, of the samples `indices` [B] of data."""
        return [self.gather(data, indices, rng) for _ in range(n)]

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[Indices, NDArray[np.bool_], NDArray[np.float64]]:
        """Return shifts [B, 2] (down, right), flips [B] and angles [B] in degrees."""
        n = 1 if self.per == "batch" else count
        shifts = rng.integers(-self.crop, self.crop + 1, (n, 2)) if self.crop else np.zeros((n, 2), np.int64)
        flips = rng.random(n) < 0.5 if self.flip else np.zeros(n, np.bool_)
        angles = rng.uniform(-self.rotate, self.rotate, n) if self.rotate else np.zeros(n)
        return np.broadcast_to(shifts, (count, 2)), np.broadcast_to(flips, count), np.broadcast_to(angles, count)


def crop_and_flip(x: Tensor, indices: Tensor, shifts: Indices, flips: NDArray[np.bool_]) -> Tensor:
    """Return images `x[indices]` [B, c, h, w], each seen through a window shifted by `shifts` (down, right), then
    mirrored where `flips`; zeros from outside. A CPU copies images one by one, at half the cost."""
    return _one_by_one(x, indices, shifts, flips) if x.device.type == "cpu" else _at_once(x, indices, shifts, flips)


def _one_by_one(x: Tensor, indices: Tensor, shifts: Indices, flips: NDArray[np.bool_]) -> Tensor:
    # In NumPy, because torch has no slices with a negative step, which mirror an image without a copy.
    store = x.numpy()
    height, width = store.shape[2:]
    out = np.zeros((len(indices), *store.shape[1:]), store.dtype)
    draws = zip(indices.tolist(), shifts.tolist(), flips.tolist(), strict=True)
    for row, (index, (down, right), mirrored) in enumerate(draws):
        first_row, end_row = max(0, -down), height - max(0, down)  # rows of the window that the image covers
        first_column, end_column = max(0, -right), width - max(0, right)
        window = store[index, :, first_row + down : end_row + down, first_column + right : end_column + right]
        if mirrored:
            out[row, :, first_row:end_row, width - end_column : width - first_column] = window[:, :, ::-1]
        else:
            out[row, :, first_row:end_row, first_column:end_column] = window
    return torch.from_numpy(out)


def _at_once(x: Tensor, indices: Tensor, shifts: Indices, flips: NDArray[np.bool_]) -> Tensor:
    # Pad once by the largest shift: every window then lies inside, and one gather fetches all of them.
    margin = int(np.abs(shifts).max(initial=0))
    padded = pad(x.index_select(0, indices), (margin,) * 4)
    (height, width), wide = x.shape[2:], padded.shape[3]
    draws = sent_to(torch.from_numpy(np.column_stack([shifts + margin, flips])), x.device)  # one copy for all
    offsets, mirrored = draws[:, :2], draws[:, 2].bool()
    rows = offsets[:, :1] + torch.arange(height, device=x.device)
    across = torch.arange(width, device=x.device)
    columns = offsets[:, 1:] + torch.where(mirrored[:, None], width - 1 - across, across)
    pixel_indices = (rows[:, :, None] * wide + columns[:, None, :]).flatten(1)[:, None, :]
    pixels = padded.flatten(2).gather(2, pixel_indices.expand(-1, x.shape[1], -1))
    return pixels.view(len(indices), *x.shape[1:])


def rotate(x: Tensor, degrees: NDArray[np.float64]) -> Tensor:
    """Turn images x [B, c, h, w] float32 counter-clockwise by degrees [B] about their centres; bilinear, zeros outside.
    Height and width may differ: the rotation is one of pixels, not of the unit square."""
    height, width = x.shape[2:]
    angle = np.radians(degrees)
    cos, sin, zero = np.cos(angle), np.sin(angle), np.zeros(len(angle))
    # affine_grid works on [-1, 1] per axis; the ratios make the rotation one of square pixels.
    rows = [[cos, -sin * height / width, zero], [sin * width / height, cos, zero]]
    theta = torch.from_numpy(np.array(rows)).permute(2, 0, 1).to(x)
    return grid_sample(x, affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)
