"""Which options are preset `sound` of the five methods: one rule over the candidates of studies/sound.yaml.

1. A candidate's score is its validation accuracy (seeds 0 to 2), averaged over the settings that choose.
2. Candidates less than one point below the best score are tied with it.
3. Of tied ones the one with the fewest options that differ from preset `paper` wins; of equal ones the best score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from cells import BESIDE, FIVE, against, option_text, shown, titles
from fedloom.methods import METHODS
from fedloom.runs.studies.plan import read_study

STUDY = Path(__file__).parent / "studies" / "sound.yaml"
CHOOSE = ("digits", "fashion-0.1", "fashion-0.5", "cifar10-0.3")
REPORT = ("fashion-two-classes", "fashion-long-tail", "cifar10-0.1", "domains")
TIE = 0.01
PLAIN = {"fedco2": "local", "fedssa": "local"}  # the plain method with the same kind of models; of the others FedAvg
Cells = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of the study: the options in which it differs from preset `paper`, and the settings that choose."""

    label: str
    options: Mapping[str, Any]
    settings: tuple[str, ...]

    def score(self, cells: Cells) -> float | None:
        """Mean validation accuracy over the settings that choose; None while one is missing."""
        settings_cells = [cells.get(f"{setting}/{self.label}") for setting in self.settings]
        return fmean(fmean(cell["validations"]) for cell in settings_cells if cell) if all(settings_cells) else None


def candidates(method: str) -> list[Candidate]:
    """The rows of one method, in the study's order."""
    rows: dict[str, Candidate] = {}
    for cell in read_study(STUDY).cells:
        if cell.config.method != method:
            continue
        preset = METHODS.get(method).presets[cell.values.get("preset", "sound")]
        options = {**preset, **cell.values.get(method, {})}
        before = rows[cell.method].settings if cell.method in rows else ()
        chooses = (cell.setting,) if cell.setting in CHOOSE and cell.setting not in before else ()
        rows[cell.method] = Candidate(cell.method, options, before + chooses)
    return list(rows.values())


def chosen(among: list[Candidate], cells: Cells) -> Candidate | None:
    """The winner by the rule; None while a score is missing."""
    scores = {candidate.label: candidate.score(cells) for candidate in among}
    if not among or None in scores.values():
        return None
    best = max(scores.values())
    tied = [candidate for candidate in among if scores[candidate.label] > best - TIE]
    return min(tied, key=lambda candidate: (len(candidate.options), -scores[candidate.label]))


def sound_tables(cells: Cells) -> dict[str, str]:
    """What was chosen, and what the other settings say of it; by method, its candidates: validation accuracy where it
    chooses, test accuracy where it does not."""
    tables = {"sound-chosen": _chosen(cells), "sound-unseen": _unseen(cells)}
    return tables | {f"sound-{name}": _table(name, cells) for name in FIVE} | {"sound-others": _others(cells)}


def _chosen(cells: Cells) -> str:
    """Scores of what was chosen, of the paper's options and of the plain method, and in how many runs it is higher."""
    lines = ["| method | `sound` is `paper` with | score | `paper` | plain method | higher than it |", "|---" * 6 + "|"]
    for method in FIVE:
        among = candidates(method)
        winner, plain = chosen(among, cells), PLAIN.get(method, "fedavg")
        if winner is None:
            continue
        paper = next(candidate for candidate in among if not candidate.options)
        ours, theirs = (
            [value for setting in winner.settings for value in cells[f"{setting}/{label}"]["validations"]]
            for label in (winner.label, plain)
        )
        higher = sum(our > their for our, their in zip(ours, theirs, strict=True))
        plain_candidate = Candidate(plain, {}, winner.settings)
        lines.append(
            f"| {titles()[method]} | {_options(winner) or 'nothing'} | {_score(winner, cells)} |"
            f" {_score(paper, cells)} | {BESIDE[plain]}: {_score(plain_candidate, cells)} |"
            f" in {higher} of {len(ours)} runs |"
        )
    return "\n".join(lines) + "\n"


def _unseen(cells: Cells) -> str:
    """Test accuracy of what was chosen minus that of the plain method, where the choice did not look."""
    lines = [f"| method | against | {' | '.join(REPORT)} |", "|---" * (2 + len(REPORT)) + "|"]
    for method in FIVE:
        winner, plain = chosen(candidates(method), cells), PLAIN.get(method, "fedavg")
        if winner is None:
            continue
        pairs = [(cells.get(f"{setting}/{winner.label}"), cells.get(f"{setting}/{plain}")) for setting in REPORT]
        differences = [
            against(ours["accuracies"], theirs["accuracies"]) if ours and theirs else "–" for ours, theirs in pairs
        ]
        lines.append(f"| {titles()[method]} | {BESIDE[plain]} | {' | '.join(differences)} |")
    return "\n".join(lines) + "\n"


def _score(candidate: Candidate, cells: Cells) -> str:
    score = candidate.score(cells)
    return "–" if score is None else f"{100 * score:.1f}"


def _options(candidate: Candidate) -> str:
    return ", ".join(f"{key}={option_text(value)}" for key, value in candidate.options.items())


def _table(method: str, cells: Cells) -> str:
    among = candidates(method)
    winner = chosen(among, cells)
    lines = [
        f"| candidate | options | score | {' | '.join(CHOOSE)} | {' | '.join(REPORT)} |",
        "|---" * (3 + len(CHOOSE) + len(REPORT)) + "|",
    ]
    for candidate in among:
        name = candidate.label.removeprefix(f"{method}-")
        percents = _percents(candidate.label, CHOOSE, cells, "validations")
        percents += _percents(candidate.label, REPORT, cells, "accuracies")
        lines.append(
            f"| {f'**{name}**' if candidate == winner else name} | {_options(candidate) or '–'} |"
            f" {_score(candidate, cells)} |"
            f" {' | '.join(percents)} |"
        )
    return "\n".join(lines) + "\n"


def _others(cells: Cells) -> str:
    lines = [f"| method | {' | '.join(CHOOSE)} | {' | '.join(REPORT)} |", "|---" * (1 + len(CHOOSE + REPORT)) + "|"]
    for label, title in BESIDE.items():
        cells_of_row = [*_percents(label, CHOOSE, cells, "validations"), *_percents(label, REPORT, cells, "accuracies")]
        lines.append(f"| {title} | {' | '.join(cells_of_row)} |")
    return "\n".join(lines) + "\n"


def _percents(label: str, settings: tuple[str, ...], cells: Cells, key: str) -> list[str]:
    return [shown(cells.get(f"{setting}/{label}"), key) for setting in settings]
