"""Per-sample losses. Reduce with `batch.mean`, so that padded rows never count."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

# Added to the logit of a class, it leaves the class out of a softmax. No infinity: 0 times it is no NaN.
ABSENT = -1e9


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """logits [B, C], labels [B] -> -log softmax(logits)[label], [B]."""
    return functional.cross_entropy(logits, labels, reduction="none")


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(softmax(teacher) || softmax(student)) of logits [B, C]: [B]. No temperature."""
    taught, learned = functional.log_softmax(teacher, dim=1), functional.log_softmax(student, dim=1)
    return (taught.exp() * (taught - learned)).sum(1)
