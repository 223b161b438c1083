"""Per-sample losses. Reduce with `batch.mean`, so that padded rows never count."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """logits [B, C], labels [B] -> -log softmax(logits)[label], [B]."""
    return functional.cross_entropy(logits, labels, reduction="none")
