"""Attacks: what bad clients do to their labels or to their uploads."""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar, cast

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.key_models import Keys
from fedloom.core.records import Record, Value
from fedloom.core.registry import Registry
from fedloom.core.tables import ClassTable
from fedloom.data.scenario import Scenario

ATTACKS: "Registry[type[Attack]]" = Registry("attack", home="fedloom.data.attacks")


class Attack(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """Base of all attacks: its fields are its config keys."""

    kind: ClassVar[str] = ""  # the name under which it is registered
    min_bad: ClassVar[int] = 1
    """The smallest number of bad clients that it needs."""

    share: float = Field(0.2, examples=[0.2])

    @field_validator("share")
    @classmethod
    def _a_minority(cls, share: float) -> float:
        if not 0 <= share < 0.5:
            detail = "from one half on, the misbehaving clients are the majority, and no defence can tell who is right"
            raise ConfigError(f"scenario.attack.share = {short_repr(share)}: need a number in [0, 0.5); {detail}")
        return share

    def add_to(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """Draw the bad clients uniformly and return the scenario with their training data changed. Raises `ConfigError`
        if the share is too few clients for this attack."""
        clients = scenario.clients
        count = math.floor(self.share * clients + 1e-9)
        if self.share and count < self.min_bad:
            raise ConfigError(
                f"scenario.attack.share = {self.share:g}: that is {count} of {clients} clients, and "
                f"{self.kind} needs {self.min_bad} or more; raise it to {self.min_bad / clients:g}, or leave attack out"
            )
        bad = tuple(int(k) for k in np.sort(rng.choice(clients, count, replace=False)))
        return self.poison(replace(scenario, attack=self, bad=bad))

    def poison(self, scenario: Scenario) -> Scenario:
        """Return the scenario with the training data of the clients `scenario.bad` changed."""
        return scenario

    def why_idle(self, participants: int) -> str | None:
        """Return why the attack has no effect in rounds with so many participants, or None if it has one."""
        return None

    def target_classes(self, num_classes: int) -> Tensor | None:
        """Return the class [C] int64 that samples of each class shall be mistaken for, -1 for none; None if the attack
        has no such target, and its success cannot be measured in a single run."""
        return None


attack = ATTACKS.register  # `attack(name)` registers the decorated attack class under `name`


@attack("label-flip")
class LabelFlip(Attack):
    """Label flip: bad clients train on wrong labels.

    Without `source` and `target`, every class c becomes C - 1 - c (Fang et al., USENIX Security 2020, arXiv
    1911.11815). With both, only `source` becomes `target` (Tolpegin et al., ESORICS 2020, arXiv 2007.08432).
    Success is the share of test samples from flipped classes that are predicted as the class they were flipped to.

        attack: {name: label-flip, share: 0.2, source: 5, target: 3}"""

    source: int | None = Field(None, ge=0, examples=[5])
    target: int | None = Field(None, ge=0, examples=[3])

    def poison(self, scenario: Scenario) -> Scenario:
        scenario.train_set.require_one_class(f"scenario.attack {self.kind}")
        labels = scenario.train_set.y.numpy().copy()
        bad = np.isin(scenario.train.holders(), scenario.bad)
        # Labels are changed in the one shared training set, so each row must belong to bad clients only.
        bad_rows, honest_rows = scenario.train.order[bad], scenario.train.order[~bad]
        if np.isin(bad_rows, np.concatenate([honest_rows, scenario.val.order])).any():
            raise ConfigError(
                "scenario.attack label-flip: some samples of bad clients are others' or validation samples too, and "
                "would be flipped there; choose a partition whose clients share no samples"
            )
        targets = self.target_classes(scenario.num_classes).numpy()[labels[bad_rows]]
        labels[bad_rows] = np.where(targets >= 0, targets, labels[bad_rows])
        return replace(scenario, train_set=replace(scenario.train_set, y=torch.from_numpy(labels)))

    def target_classes(self, num_classes: int) -> Tensor:
        if (self.source is None) != (self.target is None):
            raise ConfigError("scenario.attack label-flip: source and target go together; give both, or neither")
        if self.source is None or self.target is None:
            mirrored = torch.arange(num_classes).flip(0)
            # Of an odd number of classes the middle one mirrors itself: none of its samples are flipped.
            return torch.where(mirrored == torch.arange(num_classes), -1, mirrored)
        if self.source == self.target or max(self.source, self.target) >= num_classes:
            problem = f"need two different classes of 0 .. {num_classes - 1}"
            raise ConfigError(f"scenario.attack label-flip: source = {self.source}, target = {self.target}: {problem}")
        targets = torch.full((num_classes,), -1)
        targets[self.source] = self.target
        return targets


@dataclass(frozen=True, slots=True)
class AttackRound:
    """The facts of a round that a bad client knows: how many clients take part, how many of these are bad, the names of
    tree entries that are not attacked (unchanged) and of upload entries that are changes already, and its generator."""

    participants: int
    bad: int
    unchanged: Collection[str]
    changes: Collection[str]
    rng: np.random.Generator


class UploadAttack(Attack):
    """Base of attacks on uploads: clients train honestly and forge the result. colludes: whether bad clients see each
    other's honest uploads."""

    colludes: ClassVar[bool] = False

    @abstractmethod
    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        """Return the change that is sent instead of the honest one: change [n], float64. colluding: [k, n], the honest
        changes of all bad participants with this entry, or only its own. round_: what the client knows of the round."""

    def forge_upload(
        self, honest: Record, received: Record, colluding: Sequence[Record], round_: AttackRound
    ) -> Record:
        """Return the upload that is sent instead of `honest`, that of the honest training. received: the payload that
        the client got. colluding: the honest uploads of all bad participants, or only its own."""
        forged = {}
        for name, value in honest.items():
            origin = None if name in round_.changes else received.get(name)
            forged[name] = self._forged(value, origin, [upload[name] for upload in colluding if name in upload], round_)
        return forged

    def _forged(self, value: Value, received: Value | None, colluding: Sequence[Value], round_: AttackRound) -> Value:
        if isinstance(value, dict):
            origins: Mapping[str, Tensor] = received if isinstance(received, dict) else {}
            trees = [tree for tree in colluding if isinstance(tree, dict)]
            forged: Any = {}
            for name, entry in value.items():
                entries = [tree[name] for tree in trees if name in tree]
                is_kept = name in round_.unchanged
                forged[name] = entry if is_kept else self._forged(entry, origins.get(name), entries, round_)
            return cast(Value, forged)
        if isinstance(value, ClassTable):
            rows, shape = value.values.clone(), value.values.shape
            tables = [other for other in colluding if isinstance(other, ClassTable) and other.values.shape == shape]
            known = received if isinstance(received, ClassTable) and received.values.shape == shape else None
            # Only held rows are forged: a class table keeps zeros in the others, which do not travel.
            for label in value.held.nonzero().flatten().tolist():
                received_row = known.values[label] if known is not None and known.held[label] else None
                colluding_rows = [holder.values[label] for holder in tables if holder.held[label]]
                rows[label] = cast(Tensor, self._forged(rows[label], received_row, colluding_rows, round_))
            return ClassTable(rows, value.held)
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        # Attacks forge changes, uploads are values: subtract what the client received, and add it back below.
        origin = torch.zeros_like(value, dtype=torch.float64)
        if isinstance(received, Tensor) and received.shape == value.shape:
            origin = received.double()
        tensors = [tensor for tensor in colluding if isinstance(tensor, Tensor) and tensor.shape == value.shape]
        changes = torch.stack([(tensor.double() - origin).flatten() for tensor in tensors])
        forged_change = self.forge_change((value.double() - origin).flatten(), changes, round_)
        return (origin + forged_change.view(value.shape)).to(value.dtype)


@attack("sign-flip")
class SignFlip(UploadAttack):
    """Sign flip: a bad client sends its change the other way round, times `factor`. Li et al., AAAI 2019, 1811.03761.

    Success is the fall of accuracy against a run without the attack; one run cannot show it.

        attack: {name: sign-flip, share: 0.2, factor: 4}"""

    factor: float = Field(1.0, gt=0, description="Factor of the reversed change that a misbehaving client uploads.")

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return -self.factor * change


@attack("gaussian")
class Gaussian(UploadAttack):
    """Gaussian: a bad client sends normal noise with mean 0 instead of its change.

    Blanchard et al., NeurIPS 2017, 1703.02757, take a standard deviation of 200. One run cannot show its success.

        attack: {name: gaussian, share: 0.2, std: 1}"""

    std: float = Field(1.0, gt=0)

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return self.std * torch.from_numpy(round_.rng.standard_normal(len(change)))


@attack("scaled")
class Scaled(UploadAttack):
    """Scaled: a bad client sends a multiple of its change, to outweigh the others.

    Bagdasaryan et al., AISTATS 2020, 1807.00459; their factor is the number of clients. One run cannot show its
    success.

        attack: {name: scaled, share: 0.2, factor: 10}"""

    factor: float = Field(10.0, gt=0)

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return self.factor * change


@attack("ipm")
class Ipm(UploadAttack):
    """Inner-product manipulation: all bad clients send minus `factor` times the mean of their honest changes, so that
    the mean of all uploads may point away from that of the honest ones. Xie et al., UAI 2019, 1903.03936, whose
    attackers know all honest changes. One run cannot show its success.

        attack: {name: ipm, share: 0.2, factor: 4}"""

    colludes = True
    factor: float = Field(1.0, gt=0)  # fmt: skip

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        return -self.factor * colluding.mean(0)


@attack("alie")
class Alie(UploadAttack):
    """A little is enough: all bad clients send, per weight, mean + z deviations of their own honest changes.
    Baruch et al., NeurIPS 2019, 1902.06156, Algorithm 3; deviations have the divisor k. One run cannot show its
    success.

        attack: {name: alie, share: 0.2, z: 1.5}"""

    colludes = True
    min_bad = 2
    z: float | None = Field(None, gt=0)

    def forge_change(self, change: Tensor, colluding: Tensor, round_: AttackRound) -> Tensor:
        z = published_z(round_.participants, round_.bad) if self.z is None else self.z
        return colluding.mean(0) + z * colluding.std(0, correction=0)

    def why_idle(self, participants: int) -> str | None:
        # The small number keeps a product such as 0.29 * 100 from being rounded down.
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
    # With this many honest clients further from the mean than the forged uploads, the bad ones have a majority.
    supporters = max(1, participants // 2 + 1 - bad)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(share) if share > 0.5 else 0.0
