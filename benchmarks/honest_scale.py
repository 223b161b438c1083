"""The tables of docs/honest-scale.md, from results/studies/honest-scale.json and honest-scale-rest.json.

Both studies have the same settings, scenarios and trials, so that their rows stand in one table: twenty methods with
five seeds, the others with three. Differences are those of the common seeds. The rows of a study in one setting and
protocol are a family of the rule, so the twenty that were named before anything ran are corrected apart from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cells import DIVERGED, Measured, display_name, has_diverged, in_words, judged, percent
from fedloom.results.difference import Difference
from fedloom.results.fairness import client_shares, fairness
from fedloom.runs.studies.plan import read_study

STUDIES = ("honest-scale", "honest-scale-rest")
FOLDER = Path(__file__).parent / "studies"
SETTINGS = ("authorities", "hundred-clients")
PAGE = Path(__file__).parents[1] / "docs" / "honest-scale.md"
GLOBAL, PERSONAL, GLOBAL_MODEL = "global/global", "personal/local", "global/local"
REFERENCES = ("central", "local")
Cells = Mapping[str, dict[str, Any]]


def honest_tables(studies: Mapping[str, Cells]) -> dict[str, str]:
    """Return the page's tables by the name between their marks."""
    cells = {name: cell for study in STUDIES for name, cell in studies.get(study, {}).items()}
    tables = {"honest-progress": progress(cells)}
    for setting in SETTINGS:
        prefix = f"{setting}/"
        rows = {name.removeprefix(prefix): cell for name, cell in cells.items() if name.startswith(prefix)}
        tables[f"honest-{setting}-global"] = global_table(rows)
        tables[f"honest-{setting}-personal"] = personal_table(rows)
        tables[f"honest-{setting}-newcomers"] = newcomers_table(rows)
    return tables


def ranked_rows(studies: Mapping[str, Cells], setting: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the rows of a setting for the leaderboard by "protocol/label", and their words against the plain method.

    A method has a row in each protocol in which it was tested. `central` has none, because no federation can have it.
    """
    prefix, cells, words = f"{setting}/", {}, {}
    rows = {
        name.removeprefix(prefix): cell
        for study in STUDIES
        for name, cell in studies.get(study, {}).items()
        if name.startswith(prefix) and not name.endswith("/central")
    }
    for protocol, baseline in ((GLOBAL, "fedavg"), (PERSONAL, "local")):
        tested = {label: cell for label, cell in rows.items() if protocol in cell["tested"]}
        for label, cell in tested.items():
            of_seeds = filter(None, map(fairness, cell["clients"].get(protocol, [])))
            worst = [of_seed.worst10 for of_seed in of_seeds]
            cells[f"{protocol}/{label}"] = cell | {
                "protocol": protocol,
                "accuracies": cell["tested"][protocol]["accuracy"],
                "worst": fmean(worst) if worst else None,
            }
        compared_with_plain = compared(tested, protocol, baseline)
        words |= {
            f"{protocol}/{label}": _word(cell, compared_with_plain.get(label))
            for label, cell in tested.items()
            if label != baseline
        }
    return cells, words


def progress(cells: Cells) -> str:
    """Return which rows of both studies have been measured, and which have not."""
    lines = ["| study | setting | rows measured | hours by the clock | not yet |", "|---|---|---|---|---|"]
    for study in STUDIES:
        planned = dict.fromkeys((cell.setting, cell.method) for cell in read_study(FOLDER / f"{study}.yaml").cells)
        for setting in SETTINGS:
            labels = [label for in_setting, label in planned if in_setting == setting]
            done = [cells[f"{setting}/{label}"] for label in labels if f"{setting}/{label}" in cells]
            missing = [label for label in labels if f"{setting}/{label}" not in cells]
            hours = sum(len(cell["seeds"]) * cell["total_seconds"] for cell in done) / 3600
            rest = ", ".join(missing) if missing else "–"
            lines.append(f"| {study} | {setting} | {len(done)} of {len(labels)} | {hours:.1f} | {rest} |")
    machines = dict.fromkeys(_machine(cell["environment"]) for cell in cells.values())
    return "\n".join([*lines, "", *(f"Measured on {machine}." for machine in machines)]) + "\n"


def _machine(environment: Mapping[str, Any]) -> str:
    versions = environment["versions"]
    software = ", ".join(f"{name} {versions[name]}" for name in ("torch", "numpy", "fedloom"))
    return (
        f"one of {environment['cores']} cores of an {environment['processor']}, Python {versions['python']}, {software}"
    )


def global_table(rows: Cells) -> str:
    """Return all methods with a model for all, tested on the whole test set, best mean first."""
    lines = [
        "| method | n | accuracy % | against FedAvg | balanced accuracy % | macro F1 % | AUROC % | ECE % | NLL |"
        " optimiser | MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    chosen = {label: cell for label, cell in rows.items() if GLOBAL in cell["tested"]}
    words = compared(chosen, GLOBAL, "fedavg")
    for label, cell in _ranked(chosen, GLOBAL):
        tested = cell["tested"][GLOBAL]
        shares = [percent(tested[name]) for name in ("balanced_accuracy", "macro_f1", "auroc", "ece")]
        lines.append(
            f"| {_name(label, cell)} | {len(cell['seeds'])} | {percent(tested['accuracy'])} |"
            f" {_word(cell, words.get(label))} | {' | '.join(shares)} |"
            f" {_mean(tested['nll'])} | {optimiser(cell)} | {_megabytes(cell)} |"
        )
    return _with_majority(lines, chosen, GLOBAL, "majority_global", 11) + word_sentences("FedAvg", words, chosen)


def personal_table(rows: Cells) -> str:
    """Return all methods tested on each client's own samples: personal models, and FedAvg's one model, best first."""
    lines = [
        "| method | model | n | accuracy % | against local training | against fine-tuned FedAvg | balanced accuracy % |"
        " ECE % | std over clients | worst 10 % | worse than alone | worse than FedAvg's one model | optimiser |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    chosen = {label: cell for label, cell in rows.items() if PERSONAL in cell["tested"]}
    words = {name: compared(chosen, PERSONAL, name) for name in ("local", "fedavg+finetune")}
    shown = {label: (cell, PERSONAL) for label, cell in chosen.items()}
    if "fedavg" in rows:
        shown["fedavg"] = rows["fedavg"], GLOBAL_MODEL
    for label, (cell, protocol) in sorted(
        shown.items(), key=lambda row: -fmean(row[1][0]["tested"][row[1][1]]["accuracy"])
    ):
        tested = cell["tested"][protocol]
        spread = [found for found in map(fairness, cell["clients"][protocol]) if found]
        lines.append(
            f"| {_name(label, cell)} | {protocol.partition('/')[0]} | {len(cell['seeds'])} |"
            f" {percent(tested['accuracy'])} |"
            f" {' | '.join(_word(cell, words[name].get(label)) for name in words)} |"
            f" {percent(tested['balanced_accuracy'])} | {percent(tested['ece'])} |"
            f" {100 * fmean(found.std for found in spread):.1f} |"
            f" {100 * fmean(found.worst10 for found in spread):.1f} |"
            f" {_worse(cell, protocol, rows.get('local'), PERSONAL)} |"
            f" {_worse(cell, protocol, rows.get('fedavg'), GLOBAL_MODEL)} | {optimiser(cell)} |"
        )
    return (
        _with_majority(lines, chosen, PERSONAL, "majority_own", 13)
        + word_sentences("local training", words["local"], chosen)
        + word_sentences("fine-tuned FedAvg", words["fedavg+finetune"], chosen)
    )


def word_sentences(baseline: str, differences: Mapping[str, Difference], rows: Cells) -> str:
    """Return one sentence for each word of the rule that was said of a row, with the rows of which it was said."""
    by_word: dict[str, list[str]] = {}
    for label, difference in differences.items():
        by_word.setdefault(difference.word, []).append(display_name(label, rows[label]))
    texts = {
        "ahead": f"Ahead of {baseline}",
        "behind": f"Behind {baseline}",
        "no difference seen": f"No difference from {baseline} seen",
        "too few seeds": f"Too few seeds to compare with {baseline}",
    }
    sentences = [f"{text}: {', '.join(by_word.get(word, ['nobody']))}." for word, text in texts.items()]
    used = sentences if by_word.get("too few seeds") else sentences[:3]
    if lost := [display_name(label, cell) for label, cell in rows.items() if has_diverged(cell)]:
        used.append(f"Not compared, because a run diverged: {', '.join(lost)}.")
    return "\n" + "\n".join(f"- {sentence}" for sentence in used) + "\n" if differences else ""


def newcomers_table(rows: Cells) -> str:
    """Return the accuracy on clients that never trained, as they come and after tuning, by zero-shot accuracy."""
    ways = ("zero-shot", "5-shot/all/5", "5-shot/lp_ft/5", "all-shot/all/5", "all-shot/lp_ft/5", "all-shot/own")
    lines = [f"| method | n | {' | '.join(ways)} |", "|---" * (len(ways) + 2) + "|"]
    chosen = {label: cell for label, cell in rows.items() if cell["newcomers"]}
    best_first = sorted(chosen.items(), key=lambda row: -fmean(row[1]["newcomers"]["zero-shot"]["accuracy"]))
    for label, cell in best_first:
        served = cell["newcomers"]
        shares = [percent(served[way]["accuracy"]) if way in served else "–" for way in ways]
        name = f"{_name(label, cell)}, {DIVERGED}" if has_diverged(cell) else _name(label, cell)
        lines.append(f"| {name} | {len(cell['seeds'])} | {' | '.join(shares)} |")
    if "fedavg" in chosen:
        served, seeds = chosen["fedavg"]["newcomers"], len(chosen["fedavg"]["seeds"])
        alone = {way: way.split("/")[0] + "/local/5" for way in ways if "/all/" in way}
        shares = [percent(served[alone[way]]["accuracy"]) if way in alone else "–" for way in ways]
        lines.append(f"| *alone, from the first weights* | {seeds} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def compared(rows: Cells, protocol: str, baseline: str) -> dict[str, Difference]:
    """Return the difference of each row from a baseline, by label, as one family.

    `central`, which no federation can have, and rows with a run that diverged are in none.
    """
    plain = rows.get(baseline)
    if plain is None:
        return {}
    labels = [label for label in rows if label not in (baseline, "central") and not has_diverged(rows[label])]
    return judged({label: _measured(rows[label], protocol) for label in labels}, _measured(plain, protocol))


def _measured(cell: Mapping[str, Any], protocol: str) -> Measured:
    return cell["seeds"], cell["tested"][protocol]["accuracy"]


def optimiser(cell: Mapping[str, Any]) -> str:
    """Return the optimiser that the trials chose, e.g. "SGD 0.9, 0.03": momentum and rate."""
    keys = cell["tuned"]["optimizer"]
    if keys["name"] == "adam":
        return f"Adam, {keys['lr']:g}"
    return f"SGD {keys['momentum']:g}, {keys['lr']:g}" if keys["momentum"] else f"SGD, {keys['lr']:g}"


def _ranked(rows: Cells, protocol: str) -> list[tuple[str, dict[str, Any]]]:
    return sorted(rows.items(), key=lambda row: -fmean(row[1]["tested"][protocol]["accuracy"]))


def _name(label: str, cell: Mapping[str, Any]) -> str:
    name = display_name(label, cell)
    return f"*{name}*" if label in REFERENCES else name


def _mean(values: Sequence[float | None]) -> str:
    return "–" if None in values else f"{fmean(values):.2f}"


def _word(cell: Mapping[str, Any], difference: Difference | None) -> str:
    if difference is None:
        return DIVERGED if has_diverged(cell) else "–"
    return in_words(difference)


def _worse(cell: Mapping[str, Any], protocol: str, other: Mapping[str, Any] | None, in_protocol: str) -> str:
    """Return the mean share of clients that are worse than another method's, over common seeds, as a percentage."""
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


def _megabytes(cell: Mapping[str, Any]) -> str:
    return f"{(cell['bytes_up'] + cell['bytes_down']) / 1e6:,.1f}"


def _with_majority(lines: Sequence[str], rows: Cells, protocol: str, name: str, columns: int) -> str:
    """Return the table with a last row: the accuracy of the most frequent training class, which needs no model."""
    values = max((cell["tested"][protocol][name] for cell in rows.values()), key=len, default=None)
    if values is None:
        return "\n".join(lines) + "\n"
    cells = ["*majority class*", *["–"] * (columns - 1)]
    at = 2 if columns == 11 else 3
    cells[at - 1], cells[at] = str(len(values)), percent(values)
    return "\n".join([*lines, f"| {' | '.join(cells)} |"]) + "\n"
