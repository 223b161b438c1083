"""Tables of the page on honest scale, from the studies honest-scale and honest-scale-rest.

Both studies have the same settings, scenarios and trials, so their rows share one table: twenty methods with five
seeds, the others with three, compared on common seeds. The rows of one setting and protocol are a family of the rule,
and those of the second study, which came later, another one.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cells import Cells, studies_by_name
from benchmarks.tables.words import DIVERGED, display_name, has_diverged, in_words, judged, markdown, percent
from fedloom.results.difference import SEED_STEPS, Difference
from fedloom.results.fairness import client_shares, fairness
from fedloom.runs.studies.plan import read_study

STUDIES = ("honest-scale", "honest-scale-rest")
SETTINGS = ("authorities", "hundred-clients")
GLOBAL, PERSONAL, GLOBAL_MODEL = "global/global", "personal/local", "global/local"
COMPARED = ((GLOBAL, "fedavg"), (PERSONAL, "local"), (PERSONAL, "fedavg+finetune"))
REFERENCES = ("central", "local")
_FOLDER = Path(__file__).parents[1] / "studies"
_WORDS = {
    "ahead": "Ahead of {}",
    "behind": "Behind {}",
    "equivalent": "Equivalent to {} within ±1 point",
    "undecided": "Undecided against {}",
    "too few seeds": "Too few seeds to compare with {}",
}
_WAYS = ("zero-shot", "5-shot/all/5", "5-shot/lp_ft/5", "all-shot/all/5", "all-shot/lp_ft/5", "all-shot/own")


def tables() -> dict[str, str]:
    """Return the tables by name."""
    studies = studies_by_name()
    cells = joined(studies)
    made = {"honest-progress": progress(cells), "honest-forecast": forecast_of_seeds(cells)}
    for setting in SETTINGS:
        prefix = f"{setting}/"
        rows = {name.removeprefix(prefix): cell for name, cell in cells.items() if name.startswith(prefix)}
        made[f"honest-{setting}-global"] = global_table(rows)
        made[f"honest-{setting}-personal"] = personal_table(rows)
        made[f"honest-{setting}-newcomers"] = newcomers_table(rows)
    return made


def joined(studies: Mapping[str, Cells]) -> dict[str, dict[str, Any]]:
    """Return the rows of both studies; those of the second one say that they were added later."""
    return {
        name: {**cell, "added": study != STUDIES[0]}
        for study in STUDIES
        for name, cell in studies.get(study, {}).items()
    }


def ranked_rows(studies: Mapping[str, Cells], setting: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the rows of a setting for the leaderboard by "protocol/label", and their words against the plain method.

    A method has a row in each protocol in which it was tested. `central` has none, because no federation can have it.
    """
    prefix = f"{setting}/"
    cells: dict[str, dict[str, Any]] = {}
    words: dict[str, str] = {}
    rows = {
        name.removeprefix(prefix): cell
        for name, cell in joined(studies).items()
        if name.startswith(prefix) and not name.endswith("/central")
    }
    for protocol, baseline in ((GLOBAL, "fedavg"), (PERSONAL, "local")):
        tested = {label: cell for label, cell in rows.items() if protocol in cell["tested"]}
        for label, cell in tested.items():
            worst = [seed.worst10 for seed in map(fairness, cell["clients"].get(protocol, [])) if seed]
            cells[f"{protocol}/{label}"] = cell | {
                "protocol": protocol,
                "accuracies": cell["tested"][protocol]["accuracy"],
                "worst": fmean(worst) if worst else None,
            }
        differences = compared(tested, protocol, baseline)
        words |= {
            f"{protocol}/{label}": _word(cell, differences.get(label))
            for label, cell in tested.items()
            if label != baseline
        }
    return cells, words


def progress(cells: Cells) -> str:
    """Return which rows of both studies have been measured, on which machines, and which have not."""
    rows = []
    for study in STUDIES:
        planned = dict.fromkeys((cell.setting, cell.method) for cell in read_study(_FOLDER / f"{study}.yaml").cells)
        for setting in SETTINGS:
            labels = [label for in_setting, label in planned if in_setting == setting]
            done = [cells[f"{setting}/{label}"] for label in labels if f"{setting}/{label}" in cells]
            missing = [label for label in labels if f"{setting}/{label}" not in cells]
            hours = sum(len(cell["seeds"]) * cell["total_seconds"] for cell in done) / 3600
            rows.append([study, setting, f"{len(done)} of {len(labels)}", f"{hours:.1f}", ", ".join(missing) or "–"])
    table = markdown(("study", "setting", "rows measured", "hours by the clock", "not yet"), rows)
    machines = dict.fromkeys(_machine(cell["environment"]) for cell in cells.values())
    return "\n".join([table, "", *(f"Measured on {machine}." for machine in machines)])


def _machine(environment: Mapping[str, Any]) -> str:
    versions = environment["versions"]
    software = ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "fedloom"))
    return (
        f"one of {environment['cores']} cores of an {environment['processor']}, Python {versions['python']}, {software}"
    )


def global_table(rows: Cells) -> str:
    """Return all methods with a model for all, tested on the whole test set, best mean first."""
    chosen = {label: cell for label, cell in rows.items() if GLOBAL in cell["tested"]}
    words = compared(chosen, GLOBAL, "fedavg")
    lines = []
    for label, cell in sorted(chosen.items(), key=lambda row: -fmean(row[1]["tested"][GLOBAL]["accuracy"])):
        tested = cell["tested"][GLOBAL]
        lines.append(
            [
                _name(label, cell),
                len(cell["seeds"]),
                percent(tested["accuracy"]),
                _word(cell, words.get(label)),
                *(percent(tested[name]) for name in ("balanced_accuracy", "macro_f1", "auroc", "ece")),
                "–" if None in tested["nll"] else f"{fmean(tested['nll']):.2f}",
                optimiser(cell),
                f"{(cell['bytes_up'] + cell['bytes_down']) / 1e6:,.1f}",
            ]
        )
    headers = (
        "method, n, accuracy %, against FedAvg, balanced accuracy %, macro F1 %, AUROC %, ECE %, NLL, optimiser, MB"
    )
    lines += _majority(chosen, GLOBAL, "majority_global", headers.split(", "))
    return markdown(headers.split(", "), lines) + word_sentences("FedAvg", words, chosen)


def personal_table(rows: Cells) -> str:
    """Return all methods tested on each client's own samples: personal models, and FedAvg's one model, best first."""
    chosen = {label: cell for label, cell in rows.items() if PERSONAL in cell["tested"]}
    words = {name: compared(chosen, PERSONAL, name) for name in ("local", "fedavg+finetune")}
    shown = {label: (cell, PERSONAL) for label, cell in chosen.items()}
    if "fedavg" in rows:
        shown["fedavg"] = rows["fedavg"], GLOBAL_MODEL
    lines = []
    for label, (cell, protocol) in sorted(
        shown.items(), key=lambda row: -fmean(row[1][0]["tested"][row[1][1]]["accuracy"])
    ):
        tested = cell["tested"][protocol]
        by_seed = [shares for shares in map(fairness, cell["clients"][protocol]) if shares]
        lines.append(
            [
                _name(label, cell),
                protocol.partition("/")[0],
                len(cell["seeds"]),
                percent(tested["accuracy"]),
                *(_word(cell, differences.get(label)) for differences in words.values()),
                percent(tested["balanced_accuracy"]),
                percent(tested["ece"]),
                f"{100 * fmean(shares.std for shares in by_seed):.1f}",
                f"{100 * fmean(shares.worst10 for shares in by_seed):.1f}",
                _worse(cell, protocol, rows.get("local"), PERSONAL),
                _worse(cell, protocol, rows.get("fedavg"), GLOBAL_MODEL),
                optimiser(cell),
            ]
        )
    headers = (
        "method, model, n, accuracy %, against local training, against fine-tuned FedAvg, balanced accuracy %, "
        "ECE %, std over clients, worst 10 %, worse than alone, worse than FedAvg's one model, optimiser"
    )
    lines += _majority(chosen, PERSONAL, "majority_own", headers.split(", "))
    return (
        markdown(headers.split(", "), lines)
        + word_sentences("local training", words["local"], chosen)
        + word_sentences("fine-tuned FedAvg", words["fedavg+finetune"], chosen)
    )


def word_sentences(baseline: str, differences: Mapping[str, Difference], rows: Cells) -> str:
    """Return one sentence for each word of the rule, with its rows."""
    if not differences:
        return ""
    by_word: dict[str, list[str]] = {}
    for label, difference in differences.items():
        by_word.setdefault(difference.word, []).append(display_name(label, rows[label]))
    sentences = [
        f"{text.format(baseline)}: {', '.join(by_word.get(word, ['none']))}."
        for word, text in _WORDS.items()
        if word != "too few seeds" or word in by_word
    ]
    if lost := [display_name(label, cell) for label, cell in rows.items() if has_diverged(cell)]:
        sentences.append(f"Not compared, because a run diverged: {', '.join(lost)}.")
    return "\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)


def newcomers_table(rows: Cells) -> str:
    """Return the accuracy on clients that never trained, as they come and after tuning, by zero-shot accuracy."""
    chosen = {label: cell for label, cell in rows.items() if cell["newcomers"]}
    lines = []
    for label, cell in sorted(chosen.items(), key=lambda row: -fmean(row[1]["newcomers"]["zero-shot"]["accuracy"])):
        served = cell["newcomers"]
        shares = [percent(served[way]["accuracy"]) if way in served else "–" for way in _WAYS]
        name = f"{_name(label, cell)}, {DIVERGED}" if has_diverged(cell) else _name(label, cell)
        lines.append([name, len(cell["seeds"]), *shares])
    if "fedavg" in chosen:
        served, seeds = chosen["fedavg"]["newcomers"], len(chosen["fedavg"]["seeds"])
        alone = {way: way.split("/")[0] + "/local/5" for way in _WAYS if "/all/" in way}
        shares = [percent(served[alone[way]]["accuracy"]) if way in alone else "–" for way in _WAYS]
        lines.append(["*alone, from the first weights*", seeds, *shares])
    return markdown(("method", "n", *_WAYS), lines)


def forecast_of_seeds(cells: Cells) -> str:
    """Return what the first three of five seeds said or forecast, and what the five said of the same comparisons.

    These are the rows with five seeds of both settings, against FedAvg, local training and tuned FedAvg.
    """
    words: dict[str, list[str]] = {}
    for setting, (protocol, baseline) in product(SETTINGS, COMPARED):
        rows = {
            name.removeprefix(f"{setting}/"): cell
            for name, cell in cells.items()
            if name.startswith(f"{setting}/") and not cell["added"] and protocol in cell["tested"]
        }
        early = compared({label: _first_three(cell) for label, cell in rows.items()}, protocol, baseline)
        for label, difference in compared(rows, protocol, baseline).items():
            first = early[label]
            forecast = f"undecided, needs {f'about {first.needs}' if first.needs else 'more than 30'}"
            words.setdefault(forecast if first.word == "undecided" else first.word, []).append(difference.word)
    needs = (*map("undecided, needs about {}".format, SEED_STEPS), "undecided, needs more than 30")
    columns = ("ahead", "behind", "equivalent", "undecided")
    return markdown(
        ("after three seeds", "comparisons", *(f"{word} after five" for word in columns)),
        [
            [first, len(words[first]), *map(words[first].count, columns)]
            for first in ("ahead", "behind", "equivalent", *needs)
            if first in words
        ],
    )


def _first_three(cell: Mapping[str, Any]) -> dict[str, Any]:
    tested = {
        protocol: measures | {"accuracy": measures["accuracy"][:3]} for protocol, measures in cell["tested"].items()
    }
    return {**cell, "seeds": cell["seeds"][:3], "tested": tested}


def compared(rows: Cells, protocol: str, baseline: str) -> dict[str, Difference]:
    """Return the difference of each row from a baseline, by label, as one family for each study.

    `central`, which no federation can have, and rows with a run that diverged are left out.
    """
    if baseline not in rows:
        return {}
    labels = [label for label in rows if label not in (baseline, "central") and not has_diverged(rows[label])]
    measured = {
        label: (rows[label]["seeds"], rows[label]["tested"][protocol]["accuracy"]) for label in (*labels, baseline)
    }
    plain = measured.pop(baseline)
    return judged(measured, plain, [label for label in measured if rows[label].get("added")])


def optimiser(cell: Mapping[str, Any]) -> str:
    """Return the optimiser that the trials chose, e.g. "SGD 0.9, 0.03": momentum and rate."""
    keys = cell["tuned"]["optimizer"]
    if keys["name"] == "adam":
        return f"Adam, {keys['lr']:g}"
    return f"SGD {keys['momentum']:g}, {keys['lr']:g}" if keys["momentum"] else f"SGD, {keys['lr']:g}"


def _name(label: str, cell: Mapping[str, Any]) -> str:
    name = display_name(label, cell)
    return f"*{name}*" if label in REFERENCES else name


def _word(cell: Mapping[str, Any], difference: Difference | None) -> str:
    if difference is None:
        return DIVERGED if has_diverged(cell) else "–"
    return in_words(difference)


def _worse(cell: Mapping[str, Any], protocol: str, other: Mapping[str, Any] | None, in_protocol: str) -> str:
    """The mean share of clients that are worse than another method's, over common seeds, as a percentage."""
    if other is None or (other is cell and protocol == in_protocol):
        return "–"
    ours, theirs = (
        dict(zip(row["seeds"], row["clients"][of], strict=True)) for row, of in ((cell, protocol), (other, in_protocol))
    )
    shares = [
        client_shares(dict(enumerate(ours[seed])), dict(enumerate(theirs[seed])))
        for seed in sorted(ours.keys() & theirs.keys())
    ]
    return f"{100 * fmean(share.worse for share in shares if share):.0f} %" if shares else "–"


def _majority(rows: Cells, protocol: str, name: str, headers: Sequence[str]) -> list[list[str]]:
    """The last row: the accuracy of always naming the most frequent training class, which needs no model."""
    values = max((cell["tested"][protocol][name] for cell in rows.values()), key=len, default=None)
    if values is None:
        return []
    filled = {"method": "*majority class*", "n": str(len(values)), "accuracy %": percent(values)}
    return [[filled.get(header, "–") for header in headers]]
