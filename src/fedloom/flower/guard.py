"""Tests of every new server state; the engine drops the upload that spoils it.

A state is valid if all its values are finite and below `LARGEST`, and if no entry changes much further than in any
accepted round before. These references are stored in the run's folder, so that a restarted server judges as before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import RunFolderError
from fedloom.core.files import read_file, write_atomic
from fedloom.core.records import Record, floats_of
from fedloom.flower.bounds import UploadNorm

FILE = "flower-references.json"
LARGEST = 1e9  # value of the server's state: beyond it, clients' losses overflow
STRIDE = 50.0  # change of an entry, over the largest of any accepted round before


_Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class References(BaseModel):
    """The usual sizes of a run. items: the largest median of each norm of uploads. steps: the largest accepted change
    (L2) of each entry of the server's state."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: dict[str, _Length] = Field(default_factory=dict)
    steps: dict[str, _Length] = Field(default_factory=dict)

    @staticmethod
    def read(out: Path | None) -> References:
        """Read the references of the run in `out`, empty for a new run. Raises `RunFolderError` for a damaged file."""
        if out is None or not (out / FILE).exists():
            return References()
        try:
            return References.model_validate_json(read_file(out / FILE))
        except (OSError, ValidationError):
            raise RunFolderError(
                f"{out / FILE}: damaged; delete it, and the run goes on with new references for its bounds"
            ) from None

    def write(self, out: Path | None) -> None:
        """Write the references to the run's folder."""
        if out is not None:
            write_atomic(out / FILE, self.model_dump_json(indent=1) + "\n")


class StateGuard:
    """Tests new server states. references: of this run; every accepted state updates them."""

    def __init__(self, references: References) -> None:
        self._references = references

    def fault(self, before: Record, after: Record) -> str | None:
        """Return why the state `after` cannot replace `before`; None if it can."""
        steps = _steps(before, after)
        fault = _fault(after) or self._too_far(steps)
        if fault is None:
            for name, step in steps.items():
                self._references.steps[name] = max(self._references.steps.get(name, 0.0), step)
        return fault

    def size(self, norms: Iterable[UploadNorm]) -> float:
        """Return the largest ratio of an upload's norms to their references."""
        references = self._references.items
        return max((norm.norm / (references.get(norm.key) or 1.0) for norm in norms), default=0.0)

    def _too_far(self, steps: Mapping[str, float]) -> str | None:
        for name, step in steps.items():
            reference = self._references.steps.get(name, 0.0)
            if reference and step > STRIDE * reference:
                return f"the server's {name} would change {step / reference:.3g} times as far as in any round before"
        return None


def _fault(state: Record) -> str | None:
    """Return why the values of a state are invalid; None if they are valid."""
    for name, tensor in floats_of(state):
        if not torch.isfinite(tensor).all():
            return f"the server's {name} would not be finite"
        if tensor.numel() and float(tensor.abs().max()) > LARGEST:
            return f"the server's {name} would reach {float(tensor.abs().max()):.3g}, beyond {LARGEST:g}"
    return None


def _steps(before: Record, after: Record) -> dict[str, float]:
    """Return the change (L2) of each entry, over floating-point tensors that have the same shape in both states."""
    squares: dict[str, float] = {}
    for name, value in after.items():
        earlier = before.get(name)
        if earlier is None or type(earlier) is not type(value):
            continue
        for (_, new), (_, old) in zip(floats_of({name: value}), floats_of({name: earlier}), strict=False):
            if new.shape == old.shape:
                squares[name] = squares.get(name, 0.0) + float((new.double() - old.double()).square().sum())
    return {name: math.sqrt(square) for name, square in squares.items()}
