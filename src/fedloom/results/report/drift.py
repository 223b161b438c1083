"""The drift of runs as sections of a report, from their drift.jsonl. Needs neither torch nor matplotlib."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fedloom.core.text import counted
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.page_sections import Block, PageSection, SectionPicture
from fedloom.runs.storage.log import DriftRound
from fedloom.runs.storage.run_data import RunData

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
)


def mean_of_figure(drift: DriftRound, name: str) -> float | None:
    """Return the mean of the figure `name` over clients and pairs in a round; None without one."""
    return _mean([value.value for value in drift.values if value.name == name])


def figure_text(value: float) -> str:
    """Format a value with three digits; rounding errors become 0.

    >>> figure_text(0.12345), figure_text(8e-17)
    ('0.123', '0')
    """
    return f"{value:.3g}" if abs(value) > _LEAST else "0"


def drift_rows(rounds: Sequence[DriftRound]) -> list[tuple[str, str, str, str]]:
    """Return each figure in words, with its first, last and mean value over rounds."""
    rows = []
    for name, words in _FIGURES:
        values = [value for drift in rounds if (value := mean_of_figure(drift, name)) is not None]
        if values:
            first, last, mean = map(figure_text, (values[0], values[-1], sum(values) / len(values)))
            rows.append((words, first, last, mean))
    return rows


def drift_sentences(rounds: Sequence[DriftRound]) -> list[str]:
    """Return the findings on drift, one sentence each."""
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
    cosines = [mean_of_figure(drift, "cosine") for drift in rounds]
    opposed = sum(cosine is not None and cosine < 0 for cosine in cosines)
    if opposed:
        sentences.append(f"updates of two clients point apart on average in {opposed} of {len(rounds)} rounds")
    return sentences


def drift_notes(rounds: Sequence[DriftRound]) -> list[str]:
    """Return what could not be measured, each reason once, with the number of its rounds."""
    counts = Counter(note for drift in rounds for note in drift.notes)
    return [
        note if count == len(rounds) else f"{note} (in {count} of {len(rounds)} rounds)"
        for note, count in counts.items()
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


_MOST_RUNS = 6  # further runs get no section
_COLUMNS = ("round", "drift", *(f"{part} share" for part in PARTS), "diversity", "cosine to the mean")
_MEASURES = ("drift", *(f"{part}_share" for part in PARTS), "diversity", "cosine_to_mean")


def drift_sections(runs: Iterable[RunData]) -> list[PageSection]:
    """Return a section for each of the first six runs that measured drift; a run in several rows has one."""
    distinct = {run.folder or number: run for number, run in enumerate(runs)}.values()
    measured = [(run, rounds) for run in distinct if (rounds := run.measured_drift())]
    sections = [_section(run, rounds, number) for number, (run, rounds) in enumerate(measured[:_MOST_RUNS], 1)]
    if len(measured) > _MOST_RUNS:
        text = f"{len(measured)} runs measured drift; the first {_MOST_RUNS} are shown, Result.drift() has the others."
        sections.append(PageSection("drift-others", "Drift of the other runs", [text]))
    return sections


def _section(run: RunData, rounds: Sequence[DriftRound], number: int) -> PageSection:
    numbers = run.numbers
    title = f"Drift in training: {numbers['method']} ({numbers['preset']}), seed {numbers['seed']}"
    summary: list[list[Cell]] = [list(row) for row in drift_rows(rounds)]
    by_round: list[list[Cell]] = [
        [(str(drift.round), float(drift.round)), *(_cell(mean_of_figure(drift, name)) for name in _MEASURES)]
        for drift in rounds
    ]
    blocks: list[Block] = [
        drift_sentences(rounds),
        *_parts(rounds),
        DataTable("summary", "Drift in figures", ("figure", "first", "last", "mean"), summary),
        DataTable("rounds", "Drift by round", _COLUMNS, by_round, folds=True),
    ]
    if notes := drift_notes(rounds):
        blocks.append([f"Not measured: {note}" for note in notes])
    return PageSection("drift" if number == 1 else f"drift-{number}", title, blocks)


def _cell(value: float | None) -> Cell:
    return ("–" if value is None else figure_text(value), value)


def _parts(rounds: Sequence[DriftRound]) -> list[SectionPicture]:
    """The drift of each decomposed round as a stack of its parts along the drift's direction."""
    heights: dict[int, dict[str, float]] = {}
    for drift in rounds:
        length = mean_of_figure(drift, "drift")
        shares = {part: mean_of_figure(drift, f"{part}_share") for part in PARTS}
        known = {part: share for part, share in shares.items() if share is not None}
        if length is not None and len(known) == len(PARTS):
            heights[drift.round] = {part: length * share for part, share in known.items()}
    if not heights:
        return []
    last = heights[max(heights)]
    picture = SectionPicture(
        "parts",
        list(heights),
        {part: [of[part] for of in heights.values()] for part in PARTS},
        "Drift by its parts",
        "Distance of the new global model to a centralised round. Each part counts along the drift; below zero it "
        "pulls back.",
        f"Stacked bars of {len(heights)} rounds. Last: {', '.join(f'{part} {last[part]:.3g}' for part in PARTS)}.",
    )
    return [picture]
