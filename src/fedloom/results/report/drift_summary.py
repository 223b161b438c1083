"""The drift of a run in a few rows and sentences. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.text import counted
from fedloom.runs.storage.log import DriftRound

PARTS = ("local", "sampling", "server")
NOT_MEASURED = (
    "drift during training was not measured; run again with drift=true, or with drift.decompose_every=5 for its parts"
)
_LEAST = 1e-12
_FIGURES: tuple[tuple[str, str], ...] = (
    ("drift", "drift: distance to a centralised round"),
    *((f"{part}_share", f"drift: share of the {part} part") for part in PARTS),
    ("step_cosine", "cosine of the round and a centralised one"),
    ("diversity", "diversity of the updates"),
    ("cosine_to_mean", "cosine of a client's update to the mean"),
    ("weights_from_uniform", "weights of the mean: distance from equal ones"),
    ("weights_from_samples", "weights of the mean: distance from samples"),
    ("head_turn_held", "head: turn of rows of own classes (degrees)"),
    ("head_turn_missing", "head: turn of rows of missing classes (degrees)"),
    ("head_correlation", "head: correlation of row lengths with samples"),
    ("table_distance", "class tables: distance between clients"),
    ("table_step", "class tables: change since the last round"),
)


def mean_of_figure(drift: DriftRound, name: str) -> float | None:
    """Return the mean of a figure over clients, classes and pairs in a round; None where it is nowhere defined.

    Args:
        drift: the round.
        name: name of the figure.
    """
    values = [value.value for value in drift.values if value.name == name and value.value is not None]
    return sum(values) / len(values) if values else None


def figure_text(value: float) -> str:
    """Return a figure with three digits; what is only rounding is 0.

    Example:
        >>> figure_text(0.12345), figure_text(8e-17)
        ('0.123', '0')
    """
    return f"{value:.3g}" if abs(value) > _LEAST else "0"


def drift_rows(rounds: Sequence[DriftRound]) -> list[tuple[str, str, str, str]]:
    """Return each figure in words, with its value in the first and in the last round that has it, and its mean.

    Figures of clients, classes and pairs are means over them.
    """
    rows = []
    for name, words in _FIGURES:
        values = [value for drift in rounds if (value := mean_of_figure(drift, name)) is not None]
        if values:
            first, last, mean = map(figure_text, (values[0], values[-1], sum(values) / len(values)))
            rows.append((words, first, last, mean))
    return rows


def drift_sentences(rounds: Sequence[DriftRound]) -> list[str]:
    """Return what the figures say, one sentence each."""
    split = [drift for drift in rounds if any(value.name == "local_share" for value in drift.values)]
    shares = {part: _mean([mean_of_figure(drift, f"{part}_share") for drift in split]) for part in PARTS}
    known = {part: share for part, share in shares.items() if share is not None}
    sentences = []
    if known:
        largest = max(known, key=lambda part: known[part])
        with_shares = sum(mean_of_figure(drift, f"{largest}_share") is not None for drift in split)
        sentences.append(
            f"the largest part of the drift is {largest}, on average {100 * known[largest]:.0f} % over "
            f"{counted(with_shares, 'decomposed round')}"
        )
    diverged = sum(mean_of_figure(drift, "drift") is None for drift in split)
    if diverged:
        sentences.append(
            f"the drift is no number in {diverged} of {counted(len(split), 'decomposed round')}: weights diverged"
        )
    elif split and not known:
        sentences.append("the rounds are those of centralised training, up to the rounding of the weights")
    unusual = [drift.round for drift in split if _outside(drift)]
    if unusual:
        sentences.append(
            f"the cohort was unusual in {len(unusual)} of {counted(len(split), 'decomposed round')}: its sampling "
            "drift is outside the 95 % interval of other draws"
        )
    cosines = [mean_of_figure(drift, "cosine") for drift in rounds]
    opposed = sum(cosine is not None and cosine < 0 for cosine in cosines)
    if opposed:
        sentences.append(f"updates of two clients point apart on average in {opposed} of {len(rounds)} rounds")
    return sentences


def drift_notes(rounds: Sequence[DriftRound]) -> list[str]:
    """Return what could not be measured, each reason once, with the number of its rounds."""
    counts: dict[str, int] = {}
    for drift in rounds:
        for note in drift.notes:
            counts[note] = counts.get(note, 0) + 1
    return [
        note if count == len(rounds) else f"{note} (in {count} of {len(rounds)} rounds)"
        for note, count in counts.items()
    ]


def _outside(drift: DriftRound) -> bool:
    """Whether the sampling drift is outside the interval of other cohorts."""
    value, low, high = (mean_of_figure(drift, name) for name in ("sampling_drift", "cohort_low", "cohort_high"))
    return value is not None and low is not None and high is not None and not low <= value <= high


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
