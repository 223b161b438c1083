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

from cells import BESIDE, FIVE, against, percent, titles, told
from fedloom.methods import METHODS
from fedloom.study.studies.plan import read_study

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
        found = [cells.get(f"{setting}/{self.label}") for setting in self.settings]
        return fmean(fmean(cell["validations"]) for cell in found if cell) if all(found) else None


def candidates(method: str) -> list[Candidate]:
    """The rows of one method, in the study's order."""
    rows: dict[str, Candidate] = {}
    for cell in read_study(STUDY).cells:
        if cell.config.method != method:
            continue
        preset = METHODS.get(method).presets[cell.values.get("preset", "sound")]
        own = {**preset, **cell.values.get(method, {})}
        before = rows[cell.method].settings if cell.method in rows else ()
        chooses = (cell.setting,) if cell.setting in CHOOSE and cell.setting not in before else ()
        rows[cell.method] = Candidate(cell.method, own, before + chooses)
    return list(rows.values())


def chosen(among: list[Candidate], cells: Cells) -> Candidate | None:
    """The winner by the rule; None while a score is missing."""
    scores = {one.label: one.score(cells) for one in among}
    if not among or None in scores.values():
        return None
    best = max(scores.values())
    tied = [one for one in among if scores[one.label] > best - TIE]
    return min(tied, key=lambda one: (len(one.options), -scores[one.label]))


def sound_tables(cells: Cells) -> dict[str, str]:
    """What was chosen, and what the other settings say of it; by method, its candidates: validation accuracy where it
    chooses, test accuracy where it does not."""
    found = {"sound-chosen": _chosen(cells), "sound-unseen": _unseen(cells)}
    return found | {f"sound-{name}": _table(name, cells) for name in FIVE} | {"sound-others": _others(cells)}


def _chosen(cells: Cells) -> str:
    """Scores of what was chosen, of the paper's options and of the plain method, and in how many runs it is ahead."""
    lines = ["| method | `sound` is `paper` with | score | `paper` | plain method | ahead of it |", "|---" * 6 + "|"]
    for method in FIVE:
        among = candidates(method)
        winner, plain = chosen(among, cells), PLAIN.get(method, "fedavg")
        if winner is None:
            continue
        paper = next(one for one in among if not one.options)
        ours, theirs = (
            [value for at in winner.settings for value in cells[f"{at}/{label}"]["validations"]]
            for label in (winner.label, plain)
        )
        ahead = sum(one > other for one, other in zip(ours, theirs, strict=True))
        beside = Candidate(plain, {}, winner.settings)
        lines.append(
            f"| {titles()[method]} | {_options(winner) or 'nothing'} | {_score(winner, cells)} |"
            f" {_score(paper, cells)} | {BESIDE[plain]}: {_score(beside, cells)} | in {ahead} of {len(ours)} runs |"
        )
    return "\n".join(lines) + "\n"


def _unseen(cells: Cells) -> str:
    """Test accuracy of what was chosen minus that of the plain method, where the choice did not look."""
    lines = [f"| method | against | {' | '.join(REPORT)} |", "|---" * (2 + len(REPORT)) + "|"]
    for method in FIVE:
        winner, plain = chosen(candidates(method), cells), PLAIN.get(method, "fedavg")
        if winner is None:
            continue
        pairs = [(cells.get(f"{at}/{winner.label}"), cells.get(f"{at}/{plain}")) for at in REPORT]
        each = [against(one["accuracies"], other["accuracies"]) if one and other else "–" for one, other in pairs]
        lines.append(f"| {titles()[method]} | {BESIDE[plain]} | {' | '.join(each)} |")
    return "\n".join(lines) + "\n"


def _score(one: Candidate, cells: Cells) -> str:
    score = one.score(cells)
    return "–" if score is None else f"{100 * score:.1f}"


def _options(one: Candidate) -> str:
    return ", ".join(f"{key}={told(value)}" for key, value in one.options.items())


def _table(method: str, cells: Cells) -> str:
    among = candidates(method)
    winner = chosen(among, cells)
    lines = [
        f"| candidate | options | score | {' | '.join(CHOOSE)} | {' | '.join(REPORT)} |",
        "|---" * (3 + len(CHOOSE) + len(REPORT)) + "|",
    ]
    for one in among:
        name = one.label.removeprefix(f"{method}-")
        at = [*_each(one.label, CHOOSE, cells, "validations"), *_each(one.label, REPORT, cells, "accuracies")]
        lines.append(
            f"| {f'**{name}**' if one == winner else name} | {_options(one) or '–'} | {_score(one, cells)} |"
            f" {' | '.join(at)} |"
        )
    return "\n".join(lines) + "\n"


def _others(cells: Cells) -> str:
    lines = [f"| method | {' | '.join(CHOOSE)} | {' | '.join(REPORT)} |", "|---" * (1 + len(CHOOSE + REPORT)) + "|"]
    for label, title in BESIDE.items():
        at = [*_each(label, CHOOSE, cells, "validations"), *_each(label, REPORT, cells, "accuracies")]
        lines.append(f"| {title} | {' | '.join(at)} |")
    return "\n".join(lines) + "\n"


def _each(label: str, settings: tuple[str, ...], cells: Cells, what: str) -> list[str]:
    found = [cells.get(f"{setting}/{label}") for setting in settings]
    return ["–" if cell is None else percent(cell[what]) for cell in found]
