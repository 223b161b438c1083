"""The rules of `fedloom advise`, derived from committed measurements: src/fedloom/diagnosis/advice/rules.json.

python benchmarks/advice_rules.py              # the rules again, from the committed rows and profiles
FEDLOOM_DATA=folder python benchmarks/advice_rules.py all-methods digit-domains   # first profile these studies' data

A setting of a study founds a rule if ten methods or more are measured there. A rule asks for the skew that its setting
stands for, and its threshold lies half-way between what `fedloom diagnose` says of this setting and of the next one. No
rule uses the eight scenarios of benchmarks/studies/advice.yaml, on which the advice is measured.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from cells import DIVERGED, FOLDER, Measured, has_diverged, judged
from fedloom.core.files import json_text, write_atomic
from fedloom.runs.studies.plan import read_study
from marked_tables import with_tables

OTHER_PROTOCOL = "another protocol"  # instead of a word of the rule, which compares within one
ROOT = Path(__file__).parents[1]
RULES = ROOT / "src" / "fedloom" / "diagnosis" / "advice" / "rules.json"
PROFILES = ROOT / "benchmarks" / "results" / "profiles.json"
PAGE = ROOT / "docs" / "how-to" / "advise.md"
METHODS_PAGE = ROOT / "docs" / "methods" / "README.md"
MIN_METHODS = 10  # measured in a setting that founds a rule
GOALS = {"global": ("global/global", "global/local"), "personal": ("personal/local", "global/local")}
TUNED = ("fedavg+finetune", "fedavg+lpft")  # FedAvg's traits, and a model for each client as well
Cells = Mapping[str, dict[str, Any]]


class Setting(NamedTuple):
    """A setting of a committed study: its words, its page, and the kind of heterogeneity that it stands for.

    `rest` names a second study of the same setting, whose methods have fewer seeds.
    """

    study: str
    setting: str
    title: str
    page: str
    kind: Literal["labels", "tail", "features", "nets"] = "labels"
    rest: str | None = None

    @property
    def name(self) -> str:
        return f"{self.study}/{self.setting}".rstrip("/")

    @property
    def studies(self) -> list[str]:
        return [self.study, *([self.rest] if self.rest else [])]


SETTINGS = (
    Setting("all-methods", "alpha-0.05", "Fashion-MNIST, Dirichlet 0.05, 20 clients", "results.md#dirichlet-005"),
    Setting("all-methods", "alpha-0.2", "Fashion-MNIST, Dirichlet 0.2, 20 clients", "results.md#dirichlet-02"),
    Setting(
        "long-tail", "", "Fashion-MNIST, long tail", "results.md#long-tail-fashion-mnist-rho-50-dirichlet-02", "tail"
    ),
    Setting(
        "digit-domains",
        "",
        "five digit domains",
        "results.md#feature-skew-five-digit-domains-one-client-each",
        "features",
    ),
    Setting(
        "two-classes", "", "different nets", "results.md#different-nets-fashion-mnist-two-classes-a-client", "nets"
    ),
    Setting(
        "honest-scale",
        "authorities",
        "grades in 131 education authorities",
        "honest-scale.md#authorities",
        rest="honest-scale-rest",
    ),
    Setting(
        "honest-scale",
        "hundred-clients",
        "Fashion-MNIST, Dirichlet 0.1, 100 clients",
        "honest-scale.md#a-hundred-clients",
        rest="honest-scale-rest",
    ),
)


def measured_profiles(studies: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Profile the data of these studies' settings by `fedloom diagnose`; the others keep their figures."""
    from fedloom.diagnosis.diagnosis import diagnose_config

    profiles = json.loads(PROFILES.read_text(encoding="utf-8")) if PROFILES.exists() else {}
    for setting in [setting for setting in SETTINGS if setting.study in studies]:
        cells = read_study(ROOT / "benchmarks" / "studies" / f"{setting.study}.yaml").cells
        diagnosis = diagnose_config(next(cell.config for cell in cells if cell.setting == setting.setting))
        features = diagnosis.untrained
        distance = math.nan if features is None else features.class_distance.value
        profiles[setting.name] = {
            "label_skew": round(diagnosis.labels.distances["hellinger"].value, 3),
            "tail": round(diagnosis.labels.tail_ratio, 1),
            "features": None if math.isnan(distance) else round(distance, 3),
        }
    return {setting.name: profiles[setting.name] for setting in SETTINGS if setting.name in profiles}


class Row(NamedTuple):
    """A method that was measured in a setting: in which protocol, on which seeds, and its accuracies."""

    protocol: str
    seeds: list[int]
    accuracies: list[float]
    diverged: bool


def derived() -> dict[str, Any]:
    """Return the rules, the measured rows to which they point, and the traits of methods."""
    profiles = json.loads(PROFILES.read_text(encoding="utf-8"))
    founding = [
        _evidence(setting, goal, rows) | {"profile": profiles[setting.name]}
        for goal in GOALS
        for setting in SETTINGS
        if len(rows := _rows(setting, goal)) >= MIN_METHODS
    ]
    rules = [rule for goal in GOALS for rule in _rules([one for one in founding if one["goal"] == goal])]
    averages = {goal: _best_on_average([one for one in founding if one["goal"] == goal]) for goal in GOALS}
    return {"rules": rules, "best_on_average": averages, "settings": founding, "traits": traits()}


@cache
def _cells(study: str) -> Cells:
    cells: Cells = json.loads((FOLDER / f"{study}.json").read_text(encoding="utf-8"))["cells"]
    return cells


def _rows(setting: Setting, goal: str) -> dict[str, Row]:
    """By method at its default preset: its row in the first protocol that serves the goal."""
    rows = {}
    for name, cell in (item for study in setting.studies for item in _cells(study).items()):
        in_setting, _, label = name.partition("/")
        if in_setting != setting.setting or label != cell["method"] or cell["preset"] != "sound" or label == "central":
            continue
        tested = {protocol: values["accuracy"] for protocol, values in cell.get("tested", {}).items()}
        tested = tested or {cell["protocol"]: cell["accuracies"]}
        protocol = next((protocol for protocol in GOALS[goal] if protocol in tested), None)
        if protocol is not None:
            rows[label] = Row(protocol, cell["seeds"], tested[protocol], has_diverged(cell))
    if goal == "global" and any(row.protocol == "global/global" for row in rows.values()):
        return {label: row for label, row in rows.items() if row.protocol == "global/global"}
    if goal == "personal" and not any(row.protocol == "personal/local" for row in rows.values()):
        return {}
    return rows


def _evidence(setting: Setting, goal: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    """All methods of a setting for one goal, by their mean difference from the plain method, the highest first.

    Methods may have run on fewer seeds than others, so differences on common seeds order them and means do not. As on
    the pages, the rows of one protocol are a family of the rule; one in another protocol than the plain method has a
    difference and no word. Methods of which a run diverged are not compared, and come last.
    """
    plain = ("fedavg",) if goal == "global" else ("fedavg+finetune", "local")
    baseline = next(label for label in plain if label in rows)
    families: dict[str, dict[str, Measured]] = {}
    for label, row in rows.items():
        if label != baseline and not row.diverged:
            families.setdefault(row.protocol, {})[label] = row.seeds, row.accuracies
    reference = rows[baseline].seeds, rows[baseline].accuracies
    differences = {label: found for family in families.values() for label, found in judged(family, reference).items()}
    table: list[dict[str, Any]] = []
    for label, row in rows.items():
        points, word = (0.0, "baseline") if label == baseline else (None, DIVERGED)
        if label in differences:
            points = round(100 * differences[label].mean, 2)
            word = differences[label].word if row.protocol == rows[baseline].protocol else OTHER_PROTOCOL
        table.append(
            {
                "method": label,
                "protocol": row.protocol,
                "accuracy": round(100 * fmean(row.accuracies), 4),  # two digits would be rounded twice
                "n": len(row.accuracies),
                "points": points,
                "word": word,
            }
        )
    table.sort(key=lambda row: (row["points"] is None, -(row["points"] or 0), -row["accuracy"], row["method"]))
    return {
        "name": setting.name,
        "goal": goal,
        "title": setting.title,
        "files": [f"benchmarks/results/studies/{study}.json" for study in setting.studies],
        "page": setting.page,
        "kind": setting.kind,
        "baseline": baseline,
        "rows": table,
    }


def _rules(founding: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rules of one goal, of which the first that holds decides; the last one always holds."""
    goal = founding[0]["goal"]
    for one in [one for one in founding if one["kind"] == "nets"]:
        yield {"goal": goal, "nets": "different", "setting": one["name"]}
    for kind, middle in (("tail", _geometric), ("features", fmean)):
        for one in [one for one in founding if one["kind"] == kind]:
            nearest = max(other["profile"][kind] for other in founding if other is not one)
            yield {
                "goal": goal,
                f"{kind}_from": round(middle([one["profile"][kind], nearest]), 2),
                "setting": one["name"],
            }
    remaining = [one for one in founding if one["kind"] == "labels"]
    ordered = sorted(remaining, key=lambda one: -one["profile"]["label_skew"])
    for one, following in zip(ordered, [*ordered[1:], None], strict=True):
        rule: dict[str, Any] = {"goal": goal}
        if following is not None:
            threshold = fmean([one["profile"]["label_skew"], following["profile"]["label_skew"]])
            rule["label_skew_from"] = round(threshold, 2)
        yield rule | {"setting": one["name"]}


def _geometric(values: Sequence[float]) -> float:
    return math.sqrt(math.prod(values))


def _best_on_average(founding: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The method with the highest mean gain over all settings with equal nets, of those measured in each."""
    tables = [
        {row["method"]: row["points"] for row in one["rows"] if row["points"] is not None}
        for one in founding
        if one["kind"] != "nets"
    ]
    common = [method for method in tables[0] if all(method in table for table in tables)]
    means = {method: fmean(table[method] for table in tables) for method in common}
    best = max(means, key=lambda method: (means[method], method))
    return {"method": best, "points": round(means[best], 2), "settings": len(tables), "methods": len(common)}


def traits() -> dict[str, dict[str, Any]]:
    """By method, what it offers, from the list by needs that `make facts` writes into docs/methods/README.md."""
    found: dict[str, dict[str, Any]] = {}
    for line in METHODS_PAGE.read_text(encoding="utf-8").partition("<!-- needs:")[2].splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if line.startswith("| [") and len(cells) == 3:
            found[cells[0].partition("](")[2].partition(".md")[0]] = _traits(cells[2].rstrip(" |").split(" · "))
        elif line.startswith("<!-- end of needs"):
            break
    plain = found["fedavg"]
    return dict(sorted((found | {name: plain | {"yields": ["global", "personal"]} for name in TUNED}).items()))


def _traits(words: Sequence[str]) -> dict[str, Any]:
    yields = {"one model for all": ["global"], "a model for each": ["personal"]}
    return {
        "yields": next((yields[word] for word in words if word in yields), ["global", "personal"]),
        "any_nets": "any networks" in words,
        "state": "state at the client" in words,
        "newcomers": "newcomers at once" in words,
        "secure_sums": "secure sums" in words,
        "dp": "privacy" in words or "privacy without batch norm" in words,
        "traffic": next((_traffic(word) for word in words if _traffic(word) is not None), None),
    }


def _traffic(word: str) -> float | None:
    """Traffic as a multiple of FedAvg's; None for a word about something else."""
    if word == "nothing sent":
        return 0.0
    if word == "FedAvg's traffic":
        return 1.0
    return float(word.split()[-4]) if word.endswith("× FedAvg's traffic") else None


def rules_table() -> str:
    """The rules in words, for docs/how-to/advise.md."""
    rules = derived()
    lines = ["| goal | if | then the list is that of | methods measured | highest three |", "|---|---|---|---|---|"]
    for rule in rules["rules"]:
        setting = next(
            one for one in rules["settings"] if (one["name"], one["goal"]) == (rule["setting"], rule["goal"])
        )
        key = next((key for key in rule if key in _CONDITIONS), None)
        condition = _CONDITIONS[key].format(rule[key]) if key else "nothing of the above"
        best = ", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in setting["rows"][:3])
        link, count = f"[{setting['title']}](../{setting['page']})", len(setting["rows"])
        lines.append(f"| {rule['goal']} | {condition} | {link} | {count} | {best} |")
    return "\n".join(lines) + "\n"


_CONDITIONS = {
    "nets": "networks are {}",
    "tail_from": "long tail: rho from {}",
    "features_from": "feature skew from {}",
    "label_skew_from": "label skew (Hellinger) from {}",
}


def main(arguments: Sequence[str]) -> None:
    if arguments:
        write_atomic(PROFILES, f"{json_text(measured_profiles(arguments), indent=1)}\n".encode())
    write_atomic(RULES, rules_text().encode())
    write_atomic(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), {"advice-rules": rules_table()}).encode())


def rules_text() -> str:
    """The text of the rules' file: one line for each row, so that changes show."""
    rules = derived()
    blocks = [
        f' "rules": [\n  {_lines(rules["rules"])}\n ]',
        f' "best_on_average": {json.dumps(rules["best_on_average"])}',
    ]
    blocks.append(' "settings": [\n' + ",\n".join(_setting_text(one) for one in rules["settings"]) + "\n ]")
    by_method = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in rules["traits"].items())
    blocks.append(f' "traits": {{\n  {by_method}\n }}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _setting_text(one: Mapping[str, Any]) -> str:
    head = json.dumps({key: value for key, value in one.items() if key != "rows"})[:-1]
    return f'  {head}, "rows": [\n   ' + ",\n   ".join(json.dumps(row) for row in one["rows"]) + "\n  ]}"


def _lines(entries: Sequence[Mapping[str, Any]]) -> str:
    return ",\n  ".join(json.dumps(entry) for entry in entries)


if __name__ == "__main__":
    main(sys.argv[1:])
