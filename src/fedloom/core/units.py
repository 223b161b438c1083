"""Units of measures: one rule for tables, figures, reports and the terminal.

Shares in [0, 1] are stored as such and read in percent. All other measures, also those of plug-ins, are read as they
are stored.
"""

from __future__ import annotations

SHARES = frozenset(
    (
        *("accuracy", "best_val", "balanced_accuracy", "macro_f1", "weighted_f1", "precision", "recall", "auroc"),
        *("average_precision", "f1", "ece", "adaptive_ece", "attack_success", "majority", "majority_global"),
        *("majority_own", "worst10", "domain_accuracy", "accuracy_by_sample"),
    )
)
NATS = frozenset(("loss", "nll"))
LOWER_IS_BETTER = frozenset(("loss", "nll", "ece", "adaptive_ece", "brier", "attack_success"))


def higher_is_better(measure: str) -> bool | None:
    """Return whether the highest value of a measure is the best; None for one that fedloom does not bring along.

    Example:
        >>> higher_is_better("auroc"), higher_is_better("loss"), higher_is_better("own_metric")
        (True, False, None)
    """
    name = measure.partition("/")[0]
    return False if name in LOWER_IS_BETTER else True if name in SHARES else None


def is_share(measure: str) -> bool:
    """Whether a measure, also of one predictor, such as "accuracy/online", is a share in [0, 1]."""
    return measure.partition("/")[0] in SHARES


def unit(measure: str) -> str:
    """Return the unit in which people read a measure: "%", "nats", or "" for a plain number.

    Example:
        >>> unit("auroc"), unit("loss"), unit("brier")
        ('%', 'nats', '')
    """
    return "%" if is_share(measure) else "nats" if measure.partition("/")[0] in NATS else ""


def with_unit(measure: str) -> str:
    """Return a measure with its unit, for a heading: "auroc %"."""
    return f"{measure} {unit(measure)}".rstrip()


def number_text(measure: str, value: float, decimals: int = 1) -> str:
    """Return a value in the unit of its measure, without the unit.

    Args:
        measure: the name of the measure.
        value: the value as it is stored.
        decimals: of a percentage; plain numbers have two more.

    Example:
        >>> number_text("auroc", 0.9774), number_text("brier", 0.25)
        ('97.7', '0.250')
    """
    return f"{100 * value:.{decimals}f}" if is_share(measure) else f"{value:.{decimals + 2}f}"


def value_text(measure: str, value: float | None, decimals: int = 2) -> str:
    """Return a value with its unit, "97.74 %"; a dash for None.

    Args:
        measure: name of the measure, which has the unit.
        value: the number, or None.
        decimals: as in `number_text`.
    """
    return "–" if value is None else f"{number_text(measure, value, decimals)} {unit(measure)}".rstrip()
