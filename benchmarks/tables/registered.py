"""Tables of the two studies whose primary comparisons were registered before they ran: five-methods, natural-owners.

Each question compares a few rows with one baseline, in one measure. In a setting these comparisons are a family of the
rule, and they get words when all rows of the setting have all their seeds, as the plan says. What else is in the table
of all rows is exploratory and has none.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import Cells, studies_by_name
from benchmarks.tables.honest_scale import GLOBAL, GLOBAL_MODEL, PERSONAL
from benchmarks.tables.words import DIVERGED, display_name, has_diverged, judged, markdown, percent
from fedloom.core.text import counted
from fedloom.results.difference import Difference
from fedloom.runs.studies.plan import read_study

FIVE_METHODS, NATURAL_OWNERS = "five-methods", "natural-owners"
TUNED = ("fedavg+finetune", "fedavg-smallest+finetune")  # the first one that a setting has
_STUDIES = Path(__file__).parents[1] / "studies"
_TITLES = {PERSONAL: "own data", GLOBAL: "one model", GLOBAL_MODEL: "one model on clients' data"}


class Question(NamedTuple):
    """The rows that a study compares with the first baseline that a setting has, and the protocol that decides."""

    study: str
    rows: tuple[str, ...]
    baselines: tuple[str, ...]
    protocol: str


Answers = Mapping[str, Mapping[str, Difference | None]]  # by setting and row; None for a row of which a run diverged


@cache
def planned(study: str) -> dict[str, list[str]]:
    """Return the rows of each setting of a study's plan."""
    rows: dict[str, list[str]] = {}
    for setting, row in dict.fromkeys((cell.setting, cell.method) for cell in read_study(_file(study)).cells):
        rows.setdefault(setting, []).append(row)
    return rows


@cache
def questions() -> dict[str, Question]:
    """Return the questions by the name of their table: first the primary ones."""
    own = {
        study: Question(study, tuple(read_study(_file(study)).values["primary"]), TUNED, PERSONAL)
        for study in (FIVE_METHODS, NATURAL_OWNERS)
    }
    return own | {"five-methods-one-model": Question(FIVE_METHODS, ("fedskc", "feddw", "fedsc"), ("fedavg",), GLOBAL)}


def tables() -> dict[str, str]:
    """Return the tables by name."""
    studies = studies_by_name()
    made = {name: answer_table(asked, studies.get(asked.study, {})) for name, asked in questions().items()}
    return made | {
        f"{study}-rows": row_table(study, studies.get(study, {})) for study in (FIVE_METHODS, NATURAL_OWNERS)
    }


def answers(asked: Question, cells: Cells) -> Answers:
    """Return the differences from the baseline in every complete setting that has the compared rows."""
    found: dict[str, dict[str, Difference | None]] = {}
    for setting, rows in planned(asked.study).items():
        labels = [label for label in asked.rows if label in rows]
        if not labels or _missing(asked.study, setting, cells):
            continue
        base = next(label for label in asked.baselines if label in rows)
        measured = {
            label: (cell["seeds"], _accuracies(cell)[asked.protocol])
            for label in (base, *labels)
            if not has_diverged(cell := cells[f"{setting}/{label}"])
        }
        plain = measured.pop(base, None)
        differences = judged(measured, plain) if plain else {}
        found[setting] = {label: differences.get(label) for label in labels}
    return found


def answer_table(asked: Question, cells: Cells) -> str:
    """Return the compared rows by setting; a line of its own says which settings are not complete."""
    lines, answered = [], answers(asked, cells)
    for setting, differences in answered.items():
        rows = planned(asked.study)[setting]
        base = cells[f"{setting}/{next(label for label in asked.baselines if label in rows)}"]
        for label, difference in differences.items():
            cell = cells[f"{setting}/{label}"]
            ours, theirs = (percent(_accuracies(each)[asked.protocol]) for each in (cell, base))
            words = (DIVERGED, "–", "–") if difference is None else _words(difference)
            lines.append([setting, display_name(label, cell), ours, theirs, *words])
    for setting, rows in planned(asked.study).items():
        if setting not in answered and set(asked.rows) & set(rows):
            done = len(rows) - len(_missing(asked.study, setting, cells))
            lines.append([setting, f"not complete: {done} of {len(rows)} rows", *"–––––"])
    headers = ("setting", "method", "accuracy %", "baseline %", "difference", "95 % interval (alone)", "verdict")
    return markdown(headers, lines)


def row_table(study: str, cells: Cells) -> str:
    """Return all measured rows of a study, setting by setting, in every protocol that was tested, with their cost."""
    protocols = [name for name in _TITLES if any(name in _accuracies(cell) for cell in cells.values())]
    lines = []
    for setting, rows in planned(study).items():
        base = cells.get(f"{setting}/{next(label for label in TUNED if label in rows)}")
        for label in rows:
            if cell := cells.get(f"{setting}/{label}"):
                tested = _accuracies(cell)
                lines.append(
                    [
                        setting,
                        display_name(label, cell) + (f", {DIVERGED}" if has_diverged(cell) else ""),
                        *(percent(tested[name]) if name in tested else "–" for name in protocols),
                        f"{(cell['bytes_up'] + cell['bytes_down']) / 1e6:,.1f}",
                        f"{cell['flops'] / base['flops']:.1f}" if base else "–",
                    ]
                )
    titles = [f"{_TITLES[name]} %" for name in protocols]
    return markdown(("setting", "method", *titles, "MB", "operations, by those of tuned FedAvg"), lines)


def summary(cells: Cells) -> str:
    """Return in one paragraph what the experiment about the five methods says so far; empty before its first words."""
    own, one = (questions()[name] for name in (FIVE_METHODS, "five-methods-one-model"))
    settings, complete = len(planned(FIVE_METHODS)), len(answers(own, cells))
    if not complete:
        return ""
    so_far = (
        []
        if complete == settings
        else [f"So far {complete} of its {settings} settings {'is' if complete == 1 else 'are'} complete."]
    )
    text = [_count("with FedAvg tuned at each client", answers(own, cells))]
    if answered := answers(one, cells):
        text.append(_count("of FedSKC, FedDW and FedSC with FedAvg, as one model for all", answered))
    return " ".join([*so_far, *text])


def _count(compared: str, answered: Answers) -> str:
    """How many comparisons have which word, and which ones are ahead or behind."""
    places: dict[str, dict[str, list[str]]] = {}
    for setting, differences in answered.items():
        for label, difference in differences.items():
            title = display_name(method := label.partition("+")[0].removesuffix("-label-skew"), {"method": method})
            places.setdefault(difference.word if difference else DIVERGED, {}).setdefault(title, []).append(setting)
    number = {word: sum(map(len, by_title.values())) for word, by_title in places.items()}
    if sum(number.values()) == 1:
        ((word, ((title, (setting,)),)),) = ((word, by_title.items()) for word, by_title in places.items())
        within = " within ±1 point" if word == "equivalent" else ""
        return f"In its only comparison {compared}, {title} is {word}{within} in {setting}."
    kinds = ("ahead", "behind", "equivalent", "undecided", DIVERGED)
    counts = [f"{number[word]} {word}" for word in kinds if word in number]
    counts[0] = counts[0].replace(" ", " is " if counts[0].startswith("1 ") else " are ", 1)
    words = _and(counts).replace("equivalent", "equivalent within ±1 point")
    first = f"Of its {counted(sum(number.values()), 'comparison')} {compared}, {words}."
    listed = [
        f"{word.capitalize()}: {'; '.join(f'{title} in {_and(where)}' for title, where in places[word].items())}."
        for word in ("ahead", "behind")
        if word in places
    ]
    return " ".join([first, *listed])


def _and(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _accuracies(cell: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """The accuracies by protocol. A run that was tested in one protocol alone has no others beside its own."""
    others = {name: metrics["accuracy"] for name, metrics in cell.get("tested", {}).items()}
    return {cell["protocol"]: cell["accuracies"]} | others


def _words(difference: Difference) -> tuple[str, str, str]:
    return f"{100 * difference.mean:+.1f}", difference.interval_text(100), difference.verdict


def _missing(study: str, setting: str, cells: Cells) -> list[str]:
    return [label for label in planned(study)[setting] if f"{setting}/{label}" not in cells]


def _file(study: str) -> Path:
    return _STUDIES / f"{study}.yaml"
