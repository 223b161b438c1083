"""Sums of many rows in one pass, with the bits of `Tensor.add_` row after row."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fedloom.core.native.compiling import KernelError, library

LEAST_ROWS, LEAST_SIZE = 4, 1 << 16  # fewer gain little, and to compile takes half a second once


def add_scaled(total: Tensor, rows: Sequence[Tensor], weights: Sequence[float]) -> bool:
    """total [n] float64 += weight * row [n] for row after row, if that is faster and gives torch's bits; else nothing
    is done, and the answer is no.
    """
    if len(rows) < LEAST_ROWS or total.numel() < LEAST_SIZE or total.device.type != "cpu":
        return False
    if any(row.dtype != torch.float32 or not row.is_contiguous() for row in rows) or (kernel := _kernel()) is None:
        return False
    _run(kernel, total, rows, weights)
    return True


def _run(kernel: ctypes.CDLL, total: Tensor, rows: Sequence[Tensor], weights: Sequence[float]) -> None:
    pointers = (ctypes.c_void_p * len(rows))(*(row.data_ptr() for row in rows))
    kernel.add_scaled(total.data_ptr(), pointers, (ctypes.c_double * len(rows))(*weights), len(rows), total.numel())


@cache
def _kernel() -> ctypes.CDLL | None:
    """None where there is no compiler, or where torch rounds in another way."""
    try:
        found = library(Path(__file__).with_name("sums.cpp"))
    except KernelError:  # torch's own sums have the same bits
        return None
    found.add_scaled.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int, ctypes.c_long]
    draw = torch.Generator().manual_seed(0)
    rows = list(torch.randn(7, 10_007, generator=draw))
    weights: list[float] = torch.rand(7, generator=draw, dtype=torch.float64).tolist()
    total, wanted = torch.zeros(2, 10_007, dtype=torch.float64)
    for row, weight in zip(rows, weights, strict=True):
        wanted.add_(row, alpha=weight)
    _run(found, total, rows, weights)
    return found if torch.equal(total, wanted) else None
