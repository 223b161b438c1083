"""Which options the preset `sound` of the five methods has: one rule over the candidates of studies/sound.yaml.

1. A candidate's score is its validation accuracy (seeds 0 to 2), averaged over the settings that choose.
2. Candidates less than one point below the best score stay in the choice.
3. Of these the one with the fewest options that differ from preset `paper` wins; of equal ones the best score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cells import Cells, read_cells
from benchmarks.tables.words import FIVE, PLAIN, against, markdown, option_text, shown, titles
from fedloom.methods import METHODS
from fedloom.runs.studies.plan import StudyPlan, read_study

STUDY = Path(__file__).parents[1] / "studies" / "sound.yaml"
CHOOSE = ("digits", "fashion-0.1", "fashion-0.5", "cifar10-0.3")
REPORT = ("fashion-two-classes", "fashion-long-tail", "cifar10-0.1", "domains")
TIE = 0.01
PLAIN_OF = {"fedco2": "local", "fedssa": "local"}  # the plain method with the same kind of models; else FedAvg


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row of the study: the options in which it differs from preset `paper`, and the settings that choose."""

    label: str
    options: Mapping[str, Any]
    settings: tuple[str, ...]

    def score(self, cells: Cells) -> float | None:
        """Return the mean validation accuracy over the settings that choose; None while one is missing."""
        settings_cells = [cells.get(f"{setting}/{self.label}") for setting in self.settings]
        return fmean(fmean(cell["validations"]) for cell in settings_cells if cell) if all(settings_cells) else None


@cache
def _plan() -> StudyPlan:
    return read_study(STUDY)


@cache
def candidates(method: str) -> tuple[Candidate, ...]:
    """Return the rows of one method, in the study's order."""
    rows: dict[str, Candidate] = {}
    for cell in _plan().cells:
        if cell.config.method != method:
            continue
        preset = METHODS.get(method).presets[cell.values.get("preset", "sound")]
        options = {**preset, **cell.values.get(method, {})}
        before = rows[cell.method].settings if cell.method in rows else ()
        chooses = (cell.setting,) if cell.setting in CHOOSE and cell.setting not in before else ()
        rows[cell.method] = Candidate(cell.method, options, before + chooses)
    return tuple(rows.values())


def chosen(among: Sequence[Candidate], cells: Cells) -> Candidate | None:
    """Return the winner by the rule; None while a score is missing."""
    scores = {candidate.label: candidate.score(cells) for candidate in among}
    if not among or None in scores.values():
        return None
    best = max(scores.values())
    tied = [candidate for candidate in among if scores[candidate.label] > best - TIE]
    return min(tied, key=lambda candidate: (len(candidate.options), -scores[candidate.label]))


def tables() -> dict[str, str]:
    """Return the tables by name."""
    return sound_tables(read_cells("sound"))


def sound_tables(cells: Cells) -> dict[str, str]:
    """Return what was chosen and how it does in the other settings; the candidates by method, with validation
    accuracy in the settings that choose and test accuracy in the others."""
    made = {"sound-chosen": _chosen(cells), "sound-unseen": _unseen(cells), "sound-others": _others(cells)}
    return made | {f"sound-{name}": _candidates(name, cells) for name in FIVE}


def _chosen(cells: Cells) -> str:
    """Scores of what was chosen, of the paper's options and of the plain method, and in how many runs it is higher."""
    rows = []
    for method in FIVE:
        among = candidates(method)
        winner, plain = chosen(among, cells), PLAIN_OF.get(method, "fedavg")
        if winner is None:
            continue
        paper = next(candidate for candidate in among if not candidate.options)
        ours, theirs = (
            [value for setting in winner.settings for value in cells[f"{setting}/{label}"]["validations"]]
            for label in (winner.label, plain)
        )
        higher = sum(our > their for our, their in zip(ours, theirs, strict=True))
        scores = [_score(candidate, cells) for candidate in (winner, paper, Candidate(plain, {}, winner.settings))]
        scores[2] = f"{PLAIN[plain]}: {scores[2]}"
        rows.append([titles()[method], _options(winner) or "nothing", *scores, f"in {higher} of {len(ours)} runs"])
    headers = ("method", "`sound` is `paper` with", "score", "`paper`", "plain method", "higher than it")
    return markdown(headers, rows)


def _unseen(cells: Cells) -> str:
    """Test accuracy of what was chosen minus that of the plain method, where the choice did not look."""
    rows = []
    for method in FIVE:
        winner, plain = chosen(candidates(method), cells), PLAIN_OF.get(method, "fedavg")
        if winner is None:
            continue
        pairs = [(cells.get(f"{setting}/{winner.label}"), cells.get(f"{setting}/{plain}")) for setting in REPORT]
        differences = [
            against(ours["accuracies"], theirs["accuracies"]) if ours and theirs else "–" for ours, theirs in pairs
        ]
        rows.append([titles()[method], PLAIN[plain], *differences])
    return markdown(("method", "against", *REPORT), rows)


def _candidates(method: str, cells: Cells) -> str:
    among = candidates(method)
    winner = chosen(among, cells)
    rows = []
    for candidate in among:
        name = candidate.label.removeprefix(f"{method}-")
        name = f"**{name}**" if candidate == winner else name
        percents = _percents(candidate.label, cells)
        rows.append([name, _options(candidate) or "–", _score(candidate, cells), *percents])
    return markdown(("candidate", "options", "score", *CHOOSE, *REPORT), rows)


def _others(cells: Cells) -> str:
    return markdown(("method", *CHOOSE, *REPORT), [[title, *_percents(label, cells)] for label, title in PLAIN.items()])


def _percents(label: str, cells: Cells) -> list[str]:
    keys = dict.fromkeys(CHOOSE, "validations") | dict.fromkeys(REPORT, "accuracies")
    return [shown(cells.get(f"{setting}/{label}"), key) for setting, key in keys.items()]


def _score(candidate: Candidate, cells: Cells) -> str:
    score = candidate.score(cells)
    return "–" if score is None else f"{100 * score:.1f}"


def _options(candidate: Candidate) -> str:
    return ", ".join(f"{key}={option_text(value)}" for key, value in candidate.options.items())
