"""The metrics, by what they are computed from: counts of classes, ranks of scores, confidences.

`ALWAYS` names those that every run records, `SHOWN` those of them that every summary and table shows beside accuracy.
"""

from fedloom.evaluation.metrics.basic import Accuracy, AttackSuccess, Loss

ALWAYS = ("accuracy", "loss", "attack_success", "balanced_accuracy", "macro_f1", "ece")
SHOWN = ("balanced_accuracy", "macro_f1", "ece")

__all__ = ["ALWAYS", "SHOWN", "Accuracy", "AttackSuccess", "Loss"]
