"""The metrics. Every run records those in `ALWAYS`; summaries and tables show those in `SHOWN` next to accuracy."""

from collections.abc import Iterable, Mapping

from fedloom.core.errors import ConfigError
from fedloom.evaluation.metric import METRICS, Metric
from fedloom.evaluation.metrics.basic import Accuracy, AttackSuccess, LabelAccuracy, LabelLoss, Loss

ALWAYS = ("accuracy", "loss", "attack_success", "balanced_accuracy", "macro_f1", "ece")
SHOWN = ("balanced_accuracy", "macro_f1", "ece")
_OF_LABELS: Mapping[str, type[Metric]] = {"accuracy": LabelAccuracy, "loss": LabelLoss}

__all__ = ["ALWAYS", "SHOWN", "Accuracy", "AttackSuccess", "Loss", "metric_kinds"]


def metric_kinds(names: Iterable[str], multi: bool, always: Iterable[str] = ALWAYS) -> dict[str, type[Metric]]:
    """Return the classes of `always` and of further metrics, by name. multi: samples have several labels, which some of
    `always` do not know; raises `ConfigError` for others that do not."""
    kinds = {name: METRICS.get(name) for name in dict.fromkeys((*always, *names))}
    if not multi:
        return kinds | ({"hamming": Accuracy} if "hamming" in kinds else {})
    kinds |= {name: kind for name, kind in _OF_LABELS.items() if name in kinds}
    if unknown := [name for name in names if not kinds[name].multi_label]:
        known = [name for name, kind in METRICS if _OF_LABELS.get(name, kind).multi_label]
        remedy = f"take {', '.join(known)}"
        raise ConfigError(f"evaluation.metrics = {unknown}: not defined for samples with several labels; {remedy}")
    return {name: kind for name, kind in kinds.items() if kind.multi_label}
