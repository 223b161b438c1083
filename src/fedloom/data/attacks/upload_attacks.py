"""Attacks on uploads: bad clients forge every floating number of an upload in the same way.

An attack acts on changes: the difference of an entry from the received entry of the same name and shape, of a row of a
class table from the received row, and the entry itself if nothing was received. Running statistics of batch norm,
counters and numbers of samples stay honest, because a negative variance would be noticed at once. Compressed uploads
are attacked in their compressed form.
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
class AttackRound:
    """The facts of a round that a bad client knows.

    Attributes:
        participants: how many clients take part.
        bad: how many of these are bad.
        unchanged: names of tree entries that are not attacked.
        changes: names of upload entries that are changes already.
        rng: the client's generator.
    """

    participants: int
    bad: int
    unchanged: Collection[str]
    changes: Collection[str]
    rng: np.random.Generator


class UploadAttack(Attack):
    """Base of attacks on uploads: clients train honestly and forge the result.

    Attributes:
        colludes: whether bad clients see each other's honest uploads.
    """

    colludes: ClassVar[bool] = False

    @abstractmethod
    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        """Return the change that is sent instead of the honest one.

        Args:
            change: the honest change [n], float64.
            colluding: [k, n], the honest changes of all bad participants with this entry, or only its own.
            round_: the facts of the round that the client knows, and its random generator.
        """

    def forge_upload(
        self, honest: Record, received: Record, colluding: Sequence[Record], round_: AttackRound
    ) -> Record:
        """Return the upload that is sent instead of the honest one.

        Args:
            honest: the upload of the honest training.
            received: the payload that the client got.
            colluding: the honest uploads of all bad participants, or only its own.
            round_: as for `forge_change`.
        """
        return {
            name: self._forge_value(
                value,
                None if name in round_.changes else received.get(name),
                [upload[name] for upload in colluding if name in upload],
                round_,
            )
            for name, value in honest.items()
        }

    def _forge_value(
        self, value: Value, received: Value | None, colluding: Sequence[Value], round_: AttackRound
    ) -> Value:
        if isinstance(value, dict):
            received_tree: Mapping[str, Tensor] = received if isinstance(received, dict) else {}
            trees = [tree for tree in colluding if isinstance(tree, dict)]
            return {
                name: entry
                if name in round_.unchanged
                else self._forge_tensor(
                    entry, received_tree.get(name), [tree[name] for tree in trees if name in tree], round_
                )
                for name, entry in value.items()
            }
        if isinstance(value, ClassTable):
            has_origin = isinstance(received, ClassTable) and received.values.shape == value.values.shape
            origin = received if has_origin else None
            tables = [table for table in colluding if isinstance(table, ClassTable)]
            return self._forge_table(value, origin, tables, round_)  # type: ignore[arg-type]
        if isinstance(value, Tensor):
            received_tensor = received if isinstance(received, Tensor) else None
            tensors = [tensor for tensor in colluding if isinstance(tensor, Tensor)]
            return self._forge_tensor(value, received_tensor, tensors, round_)
        return value

    def _forge_table(
        self, table: ClassTable, received: ClassTable | None, colluding: Sequence[ClassTable], round_: AttackRound
    ) -> ClassTable:
        rows = table.values.clone()
        tables = [other_table for other_table in colluding if other_table.values.shape == table.values.shape]
        for label in table.held.nonzero().flatten().tolist():
            received_row = received.values[label] if received is not None and received.held[label] else None
            colluding_rows = [holder.values[label] for holder in tables if holder.held[label]]
            rows[label] = self._forge_tensor(rows[label], received_row, colluding_rows, round_)
        return ClassTable(rows, table.held)

    def _forge_tensor(
        self, value: Tensor, received: Tensor | None, colluding: Sequence[Tensor], round_: AttackRound
    ) -> Tensor:
        if not value.is_floating_point() or not value.numel():
            return value
        has_origin = received is not None and received.shape == value.shape
        zeros = torch.zeros_like(value, dtype=torch.float64)
        origin = received.double() if received is not None and has_origin else zeros
        changes = torch.stack(
            [(tensor.double() - origin).flatten() for tensor in colluding if tensor.shape == value.shape]
        )
        forged_change = self.forge_change((value.double() - origin).flatten(), changes, round_)
        return (origin + forged_change.view(value.shape)).to(value.dtype)


@attack("sign-flip")
class SignFlip(UploadAttack):
    """Sign flip: a bad client sends its change the other way round, times `factor`. Li et al., AAAI 2019, 1811.03761.

    Success is the fall of accuracy against a run without the attack; one run cannot show it.

        attack: {name: sign-flip, share: 0.2, factor: 4}
    """

    factor: float = Field(1.0, gt=0, description="Factor of the reversed change that a misbehaving client uploads.")

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return -self.factor * change


@attack("gaussian")
class Gaussian(UploadAttack):
    """Gaussian: a bad client sends normal noise with mean 0 instead of its change.

    Blanchard et al., NeurIPS 2017, 1703.02757, take a standard deviation of 200. One run cannot show its success.

        attack: {name: gaussian, share: 0.2, std: 1}
    """

    std: float = Field(
        1.0, gt=0, description="Standard deviation of the noise, in units of a weight. The default is our choice."
    )

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return self.std * torch.from_numpy(round_.rng.standard_normal(len(change)))


@attack("scaled")
class Scaled(UploadAttack):
    """Scaled: a bad client sends a multiple of its change, to outweigh the others.

    Bagdasaryan et al., AISTATS 2020, 1807.00459; their factor is the number of clients. One run cannot show its
    success.

        attack: {name: scaled, share: 0.2, factor: 10}
    """

    factor: float = Field(
        10.0, gt=0, description="Factor of the change that a misbehaving client uploads. The default is our choice."
    )

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return self.factor * change


@attack("alie")
class Alie(UploadAttack):
    """A little is enough: all bad clients send mean + z deviations of their own honest changes, number by number.
    Baruch et al., NeurIPS 2019, 1902.06156, Algorithm 3; deviations have the divisor k. One run cannot show its
    success.

        attack: {name: alie, share: 0.2, z: 1.5}
    """

    colludes: ClassVar[bool] = True
    min_bad: ClassVar[int] = 2
    z: float | None = Field(
        None,
        gt=0,
        description="Number of standard deviations that the uploads are moved by. Null takes the published value: "
        "with n participants, m of them bad, and s = floor(n / 2 + 1) - m, the normal quantile of (n - m - s) / (n "
        "- m). With few bad clients that is 0, and the run reports that the attack does nothing.",
    )

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        z = published_z(round_.participants, round_.bad) if self.z is None else self.z
        return colluding.mean(0) + z * colluding.std(0, correction=0)

    def why_idle(self, participants: int) -> str | None:
        bad = math.floor(self.share * participants + 1e-9)
        if not self.share or self.z is not None or published_z(participants, bad) > 0:
            return None
        return (
            f"attack alie: with {bad} of {participants} participants bad, the published z is 0, and all of them send "
            "the mean of their honest changes; set scenario.attack.z, e.g. 1.5"
        )


def published_z(participants: int, bad: int) -> float:
    """Return ALIE's z for `bad` of `participants` clients; at least 0, and finite if most are bad."""
    honest = max(1, participants - bad)
    supporters = max(1, participants // 2 + 1 - bad)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0
