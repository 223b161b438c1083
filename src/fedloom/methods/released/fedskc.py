"""FedSKC as released (commit b513979): its contrast, and the paper's plain exponentials.

The code puts the positive in front of all classes, its own included, so it stands twice in the denominator: no
sample's loss falls below log 2. A sample of a class without knowledge is its own positive (cosine 1, no gradient) and
is still pushed away from all known classes. Its proximal term compares the weights with themselves and is left out.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedloom.methods.parts.contrast import log_sum_exp
from fedloom.methods.phases import Batch


class Quirks(Protocol):
    """The options that this file reads."""

    @property
    def tau(self) -> float: ...

    @property
    def denominator(self) -> str: ...

    @property
    def missing_positive(self) -> str: ...

    @property
    def naive_exp(self) -> bool: ...


def contrast(scores: Tensor, known: Tensor, batch: Batch, options: Quirks) -> tuple[Tensor, Tensor]:
    """scores [B, C] (divided by tau), known [C] bool -> losses [B], and which of them count [B]."""
    has = known[batch.y]
    own = scores.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    positive = torch.where(has, own, 1 / options.tau)
    added = torch.ones_like(has) if options.denominator == "positive_twice" else ~has
    if options.naive_exp:
        pool = torch.where(known, scores.exp(), 0.0).sum(1)
        losses = -(positive.exp() / torch.where(added, pool + positive.exp(), pool)).log()
    else:
        pool = log_sum_exp(scores, known)
        losses = torch.where(added, torch.logaddexp(pool, positive), pool) - positive
    defined = torch.ones_like(has) if options.missing_positive == "self" else has
    return losses, defined
