"""Fixed parts of a client's training samples, for phases that must not see each other's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.core.streams import Streams


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a client's training samples that is the same in every phase, every round and every test of a run.

    The part and its `others` share no sample, and each has at least one. A client with a single sample has it in both,
    which a run reports once; a method for which that is wrong asks for `ctx.samples`.

    Attributes:
        name: of the draw. Parts of one name are cut from one random order of the client's samples.
        size: number of samples, at least 1, or their share, a float between 0 and 1. It is rounded to the nearest
            number, and lowered to the client's samples less one.
        drawn: whether the samples are drawn; False takes the first ones in stored order, in which they may lie class by
            class.
        remainder: the samples that the part leaves.

    Example:
        >>> quiz = Part("quiz", 0.2)
        >>> quiz.count(10), quiz.others.count(10), quiz.count(2), quiz.count(1), quiz.others.count(1)
        (2, 8, 1, 1, 1)
    """

    name: str
    size: float
    drawn: bool = True
    remainder: bool = False

    def __post_init__(self) -> None:
        share = isinstance(self.size, float)
        if (share and not 0 < self.size < 1) or (not share and self.size < 1):
            raise ValueError(
                f"Part('{self.name}', {self.size}): a number of samples is an int of at least 1, a share a float "
                "between 0 and 1"
            )

    @property
    def others(self) -> Part:
        """The samples outside this part."""
        return replace(self, remainder=not self.remainder)

    def count(self, samples: int) -> int:
        """Return how many of a client's `samples` the part has."""
        taken = self._taken(samples)
        return samples - taken if self.remainder and samples > 1 else taken

    def of(self, indices: Tensor, streams: Streams, client: int) -> Tensor:
        """Return the part's samples in stored order.

        Args:
            indices: the client's samples [n], int64.
            streams: the run's random streams.
            client: its id.
        """
        samples = indices.numel()
        if samples < 2:
            return indices
        inside = torch.zeros(samples, dtype=torch.bool)
        if self.drawn:
            order = streams.numpy(f"part {self.name}", 0, client).permutation(samples)
            inside[torch.from_numpy(order[: self._taken(samples)])] = True
        else:
            inside[: self._taken(samples)] = True
        return indices[inside != self.remainder]

    def _taken(self, samples: int) -> int:
        wanted = int(self.size * samples + 0.5) if isinstance(self.size, float) else self.size
        return min(max(wanted, 1), max(samples - 1, 1))
