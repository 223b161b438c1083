"""Augmentation of one batch, per image size and dtype: what it costs beyond the plain gather of the same batch.

One thread. The contestants take turns (A B C A B C ...); a figure is the median over turns of the best of REPEATS
batches, so that other work on the machine counts as little as possible. Beside fedloom's own ways stand those that were
tried and lost; all that only crop and flip are checked to give the same bits first.

    python benchmarks/augment.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor
from torch.nn.functional import pad

from fedloom.core.streams import Streams
from fedloom.data import augment as module
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.runs.storage.environment import describe_environment

BATCH, STORED, TURNS, REPEATS, CROP = 64, 2000, 15, 8, 4
LIMIT_MS = 1.5
Way = Callable[[Tensor, Tensor, np.ndarray, np.ndarray], Tensor]


def padded_windows(x: Tensor, indices: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
    """Pad the batch once, then copy one window per image."""
    windows = padded(x, indices).numpy()
    out = np.empty((len(indices), *x.shape[1:]), windows.dtype)
    height, width = x.shape[2:]
    for index, ((down, right), mirrored) in enumerate(zip((shifts + CROP).tolist(), flips.tolist(), strict=True)):
        window = windows[index, :, down : down + height, right : right + width]
        out[index] = window[:, :, ::-1] if mirrored else window
    return torch.from_numpy(out)


def strided_windows(x: Tensor, indices: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
    """Pad the batch, index all its windows at once (views by strides), then mirror some."""
    whole = padded(x, indices).numpy()
    n, c, h, w = whole.strides
    places = 2 * CROP + 1
    windows = as_strided(whole, (len(indices), places, places, *x.shape[1:]), (n, h, w, c, h, w))
    out = windows[np.arange(len(indices)), shifts[:, 0] + CROP, shifts[:, 1] + CROP]
    out[flips] = out[flips][..., ::-1]
    return torch.from_numpy(out)


def unfolded_windows(x: Tensor, indices: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
    """The same with torch's unfold."""
    height, width = x.shape[2:]
    windows = padded(x, indices).unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.from_numpy(shifts + CROP).T
    out = windows[torch.arange(len(indices)), :, down, right]
    mirrored = torch.from_numpy(flips)
    out[mirrored] = out[mirrored].flip(-1)
    return out


def four_indices(x: Tensor, indices: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
    """Advanced indexing over image, channel, row and column."""
    height, width = x.shape[2:]
    offsets, across = torch.from_numpy(shifts + CROP), torch.arange(width)
    rows = offsets[:, :1] + torch.arange(height)
    columns = offsets[:, 1:] + torch.where(torch.from_numpy(flips)[:, None], width - 1 - across, across)
    image, channel = torch.arange(len(indices)).view(-1, 1, 1, 1), torch.arange(x.shape[1]).view(1, -1, 1, 1)
    return padded(x, indices)[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def torch_slices(x: Tensor, indices: Tensor, shifts: np.ndarray, flips: np.ndarray) -> Tensor:
    """One torch slice per image, stacked."""
    (height, width), whole = x.shape[2:], padded(x, indices)
    parts = []
    for image, (down, right), mirrored in zip(whole, (shifts + CROP).tolist(), flips.tolist(), strict=True):
        part = image[:, down : down + height, right : right + width]
        parts.append(part.flip(-1) if mirrored else part)
    return torch.stack(parts)


def padded(x: Tensor, indices: Tensor) -> Tensor:
    return pad(x.index_select(0, indices), (CROP,) * 4)


WAYS: dict[str, Way] = {
    "one copy per image (CPU)": module._one_by_one,
    "gather of pixels (GPU)": module._at_once,
    "padded, one window each": padded_windows,
    "padded, strided views": strided_windows,
    "padded, unfold": unfolded_windows,
    "padded, four indices": four_indices,
    "padded, torch slices": torch_slices,
}
FULL = {
    "fedloom: crop, flip": Augmentation(crop=CROP, flip=True),
    "fedloom: crop, flip, fill mean": Augmentation(crop=CROP, flip=True, fill="mean"),
    "fedloom: crop, flip, per batch": Augmentation(crop=CROP, flip=True, per="batch"),
    "fedloom: crop, flip, rotate": Augmentation(crop=CROP, flip=True, rotate=15.0),
}


def images(shape: tuple[int, int, int], dtype: torch.dtype) -> Dataset:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (STORED, *shape), dtype=np.uint8)).to(dtype)
    return Dataset(
        x, torch.zeros(STORED, dtype=torch.int64), ("0",), torch.full((shape[0],), 120.0), torch.full((shape[0],), 60.0)
    )


def contestants(data: Dataset, rng: np.random.Generator) -> dict[str, Callable[[Tensor], Tensor]]:
    """Functions from indices to a normalised batch; each draws its own offsets."""

    def finished(way: Way) -> Callable[[Tensor], Tensor]:
        def gather(indices: Tensor) -> Tensor:
            shifts, flips = rng.integers(-CROP, CROP + 1, (BATCH, 2)), rng.random(BATCH) < 0.5
            x = way(data.x, indices, shifts, flips).to(torch.float32)
            return x.sub_(data.mean.view(1, -1, 1, 1)).div_(data.std.view(1, -1, 1, 1))

        return gather

    full = {name: lambda indices, a=augment: a.gather(data, indices, rng) for name, augment in FULL.items()}
    return {"plain gather": data.gather} | full | {name: finished(way) for name, way in WAYS.items()}


def agree(data: Dataset) -> None:
    """All ways of cropping and flipping give the same bits."""
    rng = np.random.default_rng(1)
    indices, shifts = torch.from_numpy(rng.integers(0, STORED, BATCH)), rng.integers(-CROP, CROP + 1, (BATCH, 2))
    flips = rng.random(BATCH) < 0.5
    results = [way(data.x, indices, shifts, flips) for way in WAYS.values()]
    assert all(torch.equal(results[0], result) for result in results)


def measure(data: Dataset) -> dict[str, float]:
    """Milliseconds per batch by contestant."""
    agree(data)
    rng = Streams(0).numpy("benchmark")
    work = contestants(data, rng)
    runs: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(TURNS + 1):
        for name, gather in work.items():
            best = float("inf")
            for _ in range(REPEATS):
                indices = torch.from_numpy(rng.integers(0, STORED, BATCH))
                started = time.perf_counter()
                gather(indices)
                best = min(best, time.perf_counter() - started)
            if turn:  # the first turn warms up
                runs[name].append(best * 1e3)
    return {name: statistics.median(times) for name, times in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"batch": BATCH, "turns": TURNS, "repeats": REPEATS, "environment": describe_environment()}
    for shape in ((3, 32, 32), (3, 64, 64)):
        for dtype in (torch.float32, torch.uint8):
            figures = measure(images(shape, dtype))
            plain, label = figures["plain gather"], f"{BATCH} x {shape} {str(dtype).removeprefix('torch.')}"
            result[label] = figures
            print(f"{label}: plain gather {plain:.3f} ms; beyond it")
            for name, spent in figures.items():
                bound = f"   (bound {LIMIT_MS} ms)" if name == "fedloom: crop, flip" and shape[1] == 32 else ""
                if name != "plain gather":
                    print(f"    {name:<32} {spent - plain:7.3f} ms{bound}")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
