"""The metrics. Every run records those in `ALWAYS`; summaries and tables show those in `SHOWN` next to accuracy."""

from fedloom.evaluation.metrics.basic import Accuracy, AttackSuccess, Loss

ALWAYS = ("accuracy", "loss", "attack_success", "balanced_accuracy", "macro_f1", "ece")
SHOWN = ("balanced_accuracy", "macro_f1", "ece")

__all__ = ["ALWAYS", "SHOWN", "Accuracy", "AttackSuccess", "Loss"]
