"""Where numbers lie in memory, and loops over them in C++."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

NUMBER, LABEL = "float", "std::int64_t"


class UntranslatableError(Exception):
    """Something for which there is no C++ here; torch computes it."""


@dataclass(frozen=True, slots=True)
class Array:
    """Numbers from `base` + `offset` on, a pointer's name; strides count numbers. kind: their type in C++."""

    base: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    kind: str = NUMBER

    @classmethod
    def plain(cls, base: str, shape: Sequence[int], kind: str = NUMBER) -> Array:
        """In plain order."""
        return cls(base, tuple(shape), plain_strides(shape), kind=kind)

    @property
    def is_plain(self) -> bool:
        expected = plain_strides(self.shape)
        return all(s == e for s, e, n in zip(self.strides, expected, self.shape, strict=True) if n > 1)

    @property
    def pointer(self) -> str:
        return f"{self.base} + {self.offset}" if self.offset else self.base

    def at(self, *indices: str) -> str:
        """One number; indices are expressions, one for each side."""
        terms = [f"{i} * {s}" if s != 1 else i for i, s in zip(indices, self.strides, strict=True) if s]
        return f"{self.base}[{' + '.join([*terms, *([str(self.offset)] if self.offset or not terms else [])])}]"

    # -- other looks at the same numbers ---------------------------------------------------------------------------
    def part(self, side: int, start: int, stop: int) -> Array:
        """Places `start` up to `stop` of a side."""
        shape = (*self.shape[:side], stop - start, *self.shape[side + 1 :])
        return replace(self, shape=shape, offset=self.offset + start * self.strides[side])

    def widened(self, side: int) -> Array:
        """With another side, of one."""
        shape, strides = ((*given[:side], 1, *given[side:]) for given in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def turned(self, order: Sequence[int]) -> Array:
        """Sides in another order."""
        return replace(self, shape=tuple(self.shape[s] for s in order), strides=tuple(self.strides[s] for s in order))

    def stretched(self, shape: Sequence[int]) -> Array:
        """Repeated to `shape`, as torch broadcasts. Raises `UntranslatableError` if it does not fit."""
        added = len(shape) - len(self.shape)
        if added < 0 or any(own not in (1, wanted) for own, wanted in zip(self.shape, shape[added:], strict=True)):
            raise UntranslatableError(f"{self.shape} does not stretch to {tuple(shape)}")
        strides = [0 if own == 1 else stride for own, stride in zip(self.shape, self.strides, strict=True)]
        return replace(self, shape=tuple(shape), strides=(*[0] * added, *strides))

    def reshaped(self, shape: Sequence[int]) -> Array:
        """In other sides; one may be -1. Raises `UntranslatableError` if the numbers do not lie in plain order."""
        count = math.prod(self.shape)
        known = math.prod(side for side in shape if side != -1)
        sides = tuple(count // known if side == -1 else side for side in shape)
        if not self.is_plain:
            raise UntranslatableError(f"a view of numbers that do not lie in plain order: {self.shape}, {self.strides}")
        return replace(self, shape=sides, strides=plain_strides(sides))


def plain_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of numbers one after another, the last side's first."""
    return tuple(math.prod(shape[side + 1 :]) for side in range(len(shape)))


def merged(*arrays: Array) -> list[Array]:
    """The same arrays, all of one shape, in as few sides as those that lie alike allow; sides of one are left out."""
    shape = arrays[0].shape
    kept: list[tuple[int, list[int]]] = []
    for side, size in enumerate(shape):
        strides = [array.strides[side] for array in arrays]
        if size == 1:
            continue
        if kept and kept[-1][1] == [stride * size for stride in strides]:
            kept[-1] = (kept[-1][0] * size, strides)
        else:
            kept.append((size, strides))
    sizes = tuple(size for size, _ in kept)
    return [replace(a, shape=sizes, strides=tuple(strides[n] for _, strides in kept)) for n, a in enumerate(arrays)]


def loops(sizes: Sequence[int], body: str, *, first: int = 0, pragma: str | None = "omp simd") -> str:
    """`body` for all numbers of i0, i1, ..., or from `first` on; pragma: of the last loop."""
    heads = [f"for (int i{n} = 0; i{n} < {size}; i{n}++) " for n, size in enumerate(sizes, first)]
    if heads and pragma:
        heads[-1] = f'\n_Pragma("{pragma}") {heads[-1]}'
    return "".join([*heads, body])


def indices(array: Array) -> list[str]:
    """The names of the loops over an array."""
    return [f"i{side}" for side in range(len(array.shape))]
