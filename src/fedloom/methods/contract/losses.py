"""Per-sample losses. Reduce with `batch.mean`, so that padded rows never count."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

# Added to the logit of a class, it leaves the class out of a softmax. No infinity: 0 times it is no NaN.
ABSENT = -1e9


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute -log softmax(logits)[label] of each sample: logits [B, C], labels [B] int64 -> [B].

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
        >>> cross_entropy(logits, torch.tensor([0, 1]))
        tensor([0.1269, 0.6931])
    """
    return functional.cross_entropy(logits, labels, reduction="none")


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Compute KL(softmax(teacher) || softmax(student)) of each sample, without temperature: logits [B, C] -> [B].

    Example:
        >>> teacher, student = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> kl_divergence(teacher, student)
        tensor([0.3278])
    """
    teacher_logs, student_logs = functional.log_softmax(teacher, dim=1), functional.log_softmax(student, dim=1)
    return (teacher_logs.exp() * (teacher_logs - student_logs)).sum(1)
