"""FedSKC as released (commit b513979): its contrast, and the paper's plain exponentials.

The code puts the positive in front of all classes, its own included, so it stands twice in the denominator: no
sample's loss falls below log 2. A sample of a class without knowledge is its own positive (cosine 1, no gradient) and
is still pushed away from all known classes. Its proximal term compares the weights with themselves and is left out.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedloom.methods.contract.phases import Batch, Consts
from fedloom.methods.parts.contrast import Scaling, log_sum_exp, scaled_similarities


class Quirks(Scaling, Protocol):
    """The options that this file reads."""

    @property
    def denominator(self) -> str: ...

    @property
    def missing_positive(self) -> str: ...

    @property
    def naive_exp(self) -> bool: ...


def lcl(logits: Tensor, batch: Batch, consts: Consts, options: Quirks) -> Tensor:
    """Contrast of logits as released, or with plain exponentials: scalar, mean over samples.

    Args:
        logits: [B, C].
        batch: labels and mask.
        consts: "prototypes", "known" [C] bool, and "scale" [Q] if `options.scale` is "dataset".
        options: temperature, and which of the released code's departures hold.
    """
    scores, has_knowledge = scaled_similarities(logits, batch, consts, options), consts["known"]
    has = has_knowledge[batch.y]
    own_score = scores.gather(1, batch.y.unsqueeze(1)).squeeze(1)
    positive = torch.where(has, own_score, 1 / options.tau)
    added = torch.ones_like(has) if options.denominator == "positive_twice" else ~has
    if options.naive_exp:
        pool = torch.where(has_knowledge, scores.exp(), 0.0).sum(1)
        losses = -(positive.exp() / torch.where(added, pool + positive.exp(), pool)).log()
    else:
        pool = log_sum_exp(scores, has_knowledge)
        losses = torch.where(added, torch.logaddexp(pool, positive), pool) - positive
    return batch.mean(losses, among=None if options.missing_positive == "self" else has)
