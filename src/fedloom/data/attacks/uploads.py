"""What bad clients send in place of what they should. Every floating number of an upload is attacked alike.

An upload is seen as a change: of an entry that the client received under the same name and shape, of a row of a class
table that it received, and of 0 where it received nothing. Running statistics of batch norm, counters, counts and
numbers of samples stay as they are: a negative variance would be seen at once. Where uploads are compressed, what is
attacked is what travels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.records import Record, Value
from fedloom.core.tables import ClassTable
from fedloom.data.attacks.attack import Attack, attack


@dataclass(frozen=True, slots=True)
class Round:
    """What a bad client knows when it lies: m `bad` of n `participants`, entries that stay (`left`), names of what is
    sent as a change already (`changes`), and its generator of the round."""

    participants: int
    bad: int
    left: Collection[str]
    changes: Collection[str]
    rng: np.random.Generator


class UploadAttack(Attack):
    """Base of attacks on uploads: clients train honestly and lie about what came out.

    colludes: whether bad clients see each other's honest uploads.
    """

    colludes: ClassVar[bool] = False

    @abstractmethod
    def lie(self, change: Tensor, known: Tensor, now: Round) -> Tensor:
        """What is sent in place of an honest `change` [n]; `known` [k, n] are those of all bad participants that sent
        such an entry, its own among them (its own alone unless they collude). All are float64."""

    def forged(self, own: Record, received: Record, known: Sequence[Record], now: Round) -> Record:
        """The upload of a bad client in place of its honest one, `own`; `known` as in `lie`."""
        return {
            name: self._value(
                value,
                None if name in now.changes else received.get(name),
                [other[name] for other in known if name in other],
                now,
            )
            for name, value in own.items()
        }

    def _value(self, value: Value, before: Value | None, known: Sequence[Value], now: Round) -> Value:
        if isinstance(value, dict):
            old: Mapping[str, Tensor] = before if isinstance(before, dict) else {}
            trees = [other for other in known if isinstance(other, dict)]
            return {
                name: entry
                if name in now.left
                else self._tensor(entry, old.get(name), [tree[name] for tree in trees if name in tree], now)
                for name, entry in value.items()
            }
        if isinstance(value, ClassTable):
            same = isinstance(before, ClassTable) and before.values.shape == value.values.shape
            return self._table(value, before if same else None, [t for t in known if isinstance(t, ClassTable)], now)  # type: ignore[arg-type]
        if isinstance(value, Tensor):
            old_tensor = before if isinstance(before, Tensor) else None
            return self._tensor(value, old_tensor, [other for other in known if isinstance(other, Tensor)], now)
        return value

    def _table(
        self, value: ClassTable, before: ClassTable | None, known: Sequence[ClassTable], now: Round
    ) -> ClassTable:
        rows = value.values.clone()
        for place in value.held.nonzero().flatten().tolist():
            old = before.values[place] if before is not None and before.held[place] else None
            others = [t.values[place] for t in known if t.values.shape == value.values.shape and t.held[place]]
            rows[place] = self._tensor(rows[place], old, others, now)
        return ClassTable(rows, value.held)

    def _tensor(self, value: Tensor, before: Tensor | None, known: Sequence[Tensor], now: Round) -> Tensor:
        if not value.is_floating_point() or not value.numel():
            return value
        same = before is not None and before.shape == value.shape
        old = before.double() if before is not None and same else torch.zeros_like(value, dtype=torch.float64)
        changes = torch.stack([(other.double() - old).flatten() for other in known if other.shape == value.shape])
        sent = self.lie((value.double() - old).flatten(), changes, now)
        return (old + sent.view(value.shape)).to(value.dtype)


@attack("sign-flip")
class SignFlip(UploadAttack):
    """Sign flip: a bad client sends its change the other way round, times `factor`. Li et al., AAAI 2019, 1811.03761.

    Success is the fall of accuracy against a run without the attack; one run cannot show it.

        attack: {name: sign-flip, share: 0.2, factor: 4}
    """

    factor: float = Field(
        1.0,
        gt=0,
        description="Factor of the reversed change that a misbehaving client uploads.",
    )

    def lie(self, change: Tensor, known: Tensor, now: Round) -> Tensor:
        return -self.factor * change


@attack("gaussian")
class Gaussian(UploadAttack):
    """Gaussian: a bad client sends normal noise with mean 0 instead of its change.

    Blanchard et al., NeurIPS 2017, 1703.02757, take a standard deviation of 200. One run cannot show its success.

        attack: {name: gaussian, share: 0.2, std: 1}
    """

    std: float = Field(
        1.0,
        gt=0,
        description="Standard deviation of the noise, in units of a weight. The default is our choice.",
    )

    def lie(self, change: Tensor, known: Tensor, now: Round) -> Tensor:
        return self.std * torch.from_numpy(now.rng.standard_normal(len(change)))


@attack("scaled")
class Scaled(UploadAttack):
    """Scaled: a bad client sends a multiple of its change, to outweigh the others.

    Bagdasaryan et al., AISTATS 2020, 1807.00459; their factor is the number of clients. One run cannot show its
    success.

        attack: {name: scaled, share: 0.2, factor: 10}
    """

    factor: float = Field(
        10.0,
        gt=0,
        description="Factor of the change that a misbehaving client uploads. The default is our choice.",
    )

    def lie(self, change: Tensor, known: Tensor, now: Round) -> Tensor:
        return self.factor * change


@attack("alie")
class Alie(UploadAttack):
    """A little is enough: all bad clients send mean + z deviations of their own honest changes, number by number.
    Baruch et al., NeurIPS 2019, 1902.06156, Algorithm 3; deviations have the divisor k. One run cannot show its
    success.

        attack: {name: alie, share: 0.2, z: 1.5}
    """

    colludes: ClassVar[bool] = True
    fewest: ClassVar[int] = 2
    z: float | None = Field(
        None,
        gt=0,
        description="Number of standard deviations that the uploads are moved by. Null takes the published value: "
        "with n participants, m of them bad, and s = floor(n / 2 + 1) - m, the normal quantile of (n - m - s) / (n "
        "- m). With few bad clients that is 0, and the run reports that the attack does nothing.",
    )

    def lie(self, change: Tensor, known: Tensor, now: Round) -> Tensor:
        z = published_z(now.participants, now.bad) if self.z is None else self.z
        return known.mean(0) + z * known.std(0, correction=0)

    def idle(self, participants: int) -> str | None:
        bad = math.floor(self.share * participants + 1e-9)
        if not self.share or self.z is not None or published_z(participants, bad) > 0:
            return None
        return (
            f"attack alie: with {bad} of {participants} participants bad, the published z is 0, and all of them send "
            "the mean of their honest changes; set scenario.attack.z, e.g. 1.5"
        )


def published_z(participants: int, bad: int) -> float:
    """ALIE's z for `bad` of `participants`; at least 0, and finite where the bad are many."""
    honest = max(1, participants - bad)
    supporters = max(1, participants // 2 + 1 - bad)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0
