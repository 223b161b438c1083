"""The server tests every new state before it keeps it, and leaves out the upload that spoils it.

A state is kept if all its values are finite and below `LARGEST`, and if no entry changes much further than it did in
any good round before. What the run has seen so far is kept in its folder, so that a server that starts again judges as
before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import RunFolderError
from fedloom.core.files import write_atomic
from fedloom.core.records import Record
from fedloom.flower.bounds import UploadNorm, floats_of

FILE = "flower-references.json"
LARGEST = 1e9  # of any value of the server's state: beyond it, clients' losses overflow
STRIDE = 50.0  # times as far as in any good round before


class References(BaseModel):
    """What is normal in a run. items: the largest median of each item of uploads; steps: how far each entry of the
    server's state has changed at most in a good round."""

    model_config = ConfigDict(extra="forbid", strict=True)

    items: dict[str, float] = Field(default_factory=dict)
    steps: dict[str, float] = Field(default_factory=dict)

    @staticmethod
    def read(out: Path | None) -> References:
        """Those of the run in `out`; new ones for a run that begins. Raises `RunFolderError` for a damaged file."""
        if out is None or not (out / FILE).exists():
            return References()
        try:
            return References.model_validate_json((out / FILE).read_bytes())
        except (OSError, ValidationError):
            raise RunFolderError(
                f"{out / FILE}: damaged; delete it, and the run goes on with new references for its bounds"
            ) from None

    def write(self, out: Path | None) -> None:
        """Keep them in the run's folder."""
        if out is not None:
            write_atomic(out / FILE, self.model_dump_json(indent=1) + "\n")


class StateGuard:
    """Tests new server states. references: what is normal in this run, which grows with every state that passes."""

    def __init__(self, references: References) -> None:
        self._references = references

    def fault(self, before: Record, after: Record) -> str | None:
        """Why the state `after` cannot be kept in place of `before`; None if it can."""
        steps = _steps(before, after)
        fault = _fault(after) or self._too_far(steps)
        if fault is None:
            for name, step in steps.items():
                self._references.steps[name] = max(self._references.steps.get(name, 0.0), step)
        return fault

    def size(self, items: Iterable[UploadNorm]) -> float:
        """The largest of an upload's items, each beside what is usual for it."""
        usual = self._references.items
        return max((item.norm / (usual.get(item.key) or 1.0) for item in items), default=0.0)

    def _too_far(self, steps: Mapping[str, float]) -> str | None:
        for name, step in steps.items():
            usual = self._references.steps.get(name, 0.0)
            if usual and step > STRIDE * usual:
                return f"the server's {name} would change {step / usual:.3g} times as far as in any round before"
        return None


def _fault(state: Record) -> str | None:
    """Why a state cannot be kept, by its values alone."""
    for name, tensor in floats_of(state):
        if not torch.isfinite(tensor).all():
            return f"the server's {name} would not be finite"
        if tensor.numel() and float(tensor.abs().max()) > LARGEST:
            return f"the server's {name} would reach {float(tensor.abs().max()):.3g}, beyond {LARGEST:g}"
    return None


def _steps(before: Record, after: Record) -> dict[str, float]:
    """How far each entry moves (L2), over the floating tensors that both states have in the same shape."""
    squares: dict[str, float] = {}
    for name, value in after.items():
        earlier = before.get(name)
        if earlier is None or type(earlier) is not type(value):
            continue
        for (_, new), (_, old) in zip(floats_of({name: value}), floats_of({name: earlier}), strict=False):
            if new.shape == old.shape:
                squares[name] = squares.get(name, 0.0) + float((new.double() - old.double()).square().sum())
    return {name: math.sqrt(square) for name, square in squares.items()}
