"""The rules of `fedloom advise`, derived from committed studies, and how good its advice is.

    python -m benchmarks advice                      # write src/fedloom/diagnosis/rules.json again
    python -m benchmarks advice --profile long-tail  # first profile the data of these studies ($FEDLOOM_DATA)
    python -m benchmarks advice --ask [--trial]      # ask for advice in the scenarios of studies/advice.yaml

A setting founds a rule if at least ten methods were measured there. The rule's threshold lies half-way between what
`fedloom diagnose` says of this setting and of the next one. No rule uses the eight scenarios of studies/advice.yaml: on
them we measure the regret of the advice, the test accuracy of the best of twenty tuned candidates less that of the
advised method, as means over seeds, in points of the scenario's protocol. A trial recommends by validation data.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from benchmarks.cells import Cells, read_cells, studies_by_name
from benchmarks.data import RESULTS, read_results, read_rows, write_results, write_rows
from benchmarks.tables.words import DIVERGED, Measured, has_diverged, judged, markdown
from fedloom.core.files import write_atomic
from fedloom.methods.catalogue import Entry, entries
from fedloom.results.difference import Difference
from fedloom.runs.studies.plan import read_study

OTHER_PROTOCOL = "another protocol"  # instead of a word of the rule, which compares within one
STUDIES = Path(__file__).parent / "studies"
RULES = Path(__file__).parents[1] / "src" / "fedloom" / "diagnosis" / "rules.json"
PROFILES = RESULTS / "profiles.csv.gz"
MIN_METHODS = 10  # measured in a setting that founds a rule
GOALS = {"global": ("global/global", "global/local"), "personal": ("personal/local", "global/local")}
TUNED = ("fedavg+finetune", "fedavg+lpft")  # FedAvg's traits, and a model for each client as well
TRAFFIC = "all-methods", "alpha-0.05"  # the study and setting in which bytes are compared with FedAvg's
WAYS = {  # of choosing a method
    "advice": "the advice's first method",
    "tuned": "always the reference",
    "average": "always the best on average",
    "trial": "the trial",
    "mean": "a candidate at random",
}


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
    Setting("long-tail", "", "Fashion-MNIST, long tail", "results.md#long-tail-fashion-mnist-rho-50-dirichlet-02",
        "tail"),
    Setting("digit-domains", "", "five digit domains", "results.md#feature-skew-five-digit-domains-one-client-each",
        "features"),
    Setting("two-classes", "", "different nets", "results.md#different-nets-fashion-mnist-two-classes-a-client",
        "nets"),
    Setting("honest-scale", "authorities", "grades in 131 education authorities", "honest-scale.md#authorities",
        rest="honest-scale-rest"),
    Setting("honest-scale", "hundred-clients", "Fashion-MNIST, Dirichlet 0.1, 100 clients",
        "honest-scale.md#a-hundred-clients", rest="honest-scale-rest"),
)  # fmt: skip


def measure_profiles(studies: Sequence[str]) -> None:
    """Profile the data of these studies' settings by `fedloom diagnose`; the others keep their numbers."""
    from fedloom.diagnosis.diagnosis import diagnose_config

    profiles = _profiles()
    for setting in [setting for setting in SETTINGS if setting.study in studies]:
        cells = read_study(STUDIES / f"{setting.study}.yaml").cells
        diagnosis = diagnose_config(next(cell.config for cell in cells if cell.setting == setting.setting))
        features = diagnosis.untrained
        distance = math.nan if features is None else features.class_distance.value
        profiles[setting.name] = {
            "label_skew": round(diagnosis.labels.distances["hellinger"].value, 3),
            "tail": round(diagnosis.labels.tail_ratio, 1),
            "features": None if math.isnan(distance) else round(distance, 3),
        }
    names = [setting.name for setting in SETTINGS if setting.name in profiles]
    write_rows(PROFILES, [{"setting": name, **profiles[name]} for name in names])


def _profiles() -> dict[str, dict[str, float | None]]:
    return {row.pop("setting"): row for row in read_rows(PROFILES)} if PROFILES.exists() else {}


class Row(NamedTuple):
    """A method that was measured in a setting: in which protocol, on which seeds, and its accuracies."""

    protocol: str
    seeds: list[int]
    accuracies: list[float]
    diverged: bool
    added: bool  # by a later study


def derived() -> dict[str, Any]:
    """Return the rules, the measured rows to which they point, and the traits of methods."""
    profiles = _profiles()
    founding = [
        _evidence(setting, goal, rows) | {"profile": profiles[setting.name]}
        for goal in GOALS
        for setting in SETTINGS
        if len(rows := _rows(setting, goal)) >= MIN_METHODS
    ]
    rules = [rule for goal in GOALS for rule in _rules([one for one in founding if one["goal"] == goal])]
    averages = {goal: _best_on_average([one for one in founding if one["goal"] == goal]) for goal in GOALS}
    return {"rules": rules, "best_on_average": averages, "settings": founding, "traits": traits()}


def _rows(setting: Setting, goal: str) -> dict[str, Row]:
    """By method at its default preset: its row in the first protocol that serves the goal."""
    rows = {}
    cells = ((study, *item) for study in setting.studies for item in cached_cells(study).items())
    for study, name, cell in cells:
        in_setting, _, label = name.partition("/")
        if in_setting != setting.setting or label != cell["method"] or cell["preset"] != "sound" or label == "central":
            continue
        tested = {protocol: values["accuracy"] for protocol, values in cell.get("tested", {}).items()}
        tested = tested or {cell["protocol"]: cell["accuracies"]}
        protocol = next((protocol for protocol in GOALS[goal] if protocol in tested), None)
        if protocol is not None:
            rows[label] = Row(protocol, cell["seeds"], tested[protocol], has_diverged(cell), study != setting.study)
    if goal == "global" and any(row.protocol == "global/global" for row in rows.values()):
        return {label: row for label, row in rows.items() if row.protocol == "global/global"}
    if goal == "personal" and not any(row.protocol == "personal/local" for row in rows.values()):
        return {}
    return rows


def _evidence(setting: Setting, goal: str, rows: Mapping[str, Row]) -> dict[str, Any]:
    """All methods of a setting for one goal, by their mean difference from the plain method, the highest first.

    Methods may have run on fewer seeds than others, so differences on common seeds order them and means do not. As on
    the pages, the rows of one protocol and study are a family of the rule; one in another protocol than the plain
    method has a difference and no word. Methods with a run that diverged are not compared, and come last.
    """
    plain = ("fedavg",) if goal == "global" else ("fedavg+finetune", "local")
    baseline = next(label for label in plain if label in rows)
    families: dict[str, dict[str, Measured]] = {}
    for label, row in rows.items():
        if label != baseline and not row.diverged:
            families.setdefault(row.protocol, {})[label] = row.seeds, row.accuracies
    reference = rows[baseline].seeds, rows[baseline].accuracies
    added = [label for label, row in rows.items() if row.added]
    differences: dict[str, Difference] = {}
    for family in families.values():
        differences |= judged(family, reference, added)
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
        "files": [f"benchmarks/results/studies/{study}.csv.gz" for study in setting.studies],
        "page": setting.page,
        "kind": setting.kind,
        "baseline": baseline,
        "rows": table,
    }


def _rules(founding: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rules of one goal. The first one that holds decides, and the last one always holds."""
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
    """Return the traits of every method in a committed study, and of tuned FedAvg, by name."""
    measured = {cell.get("method") for cells in studies_by_name().values() for cell in cells.values()}
    own = [entry for entry in entries() if entry.name in measured]
    by_name = {entry.name: traits_of(entry) for entry in own if is_federated(entry)}
    plain = by_name["fedavg"]
    return dict(sorted((by_name | {name: plain | {"yields": ["global", "personal"]} for name in TUNED}).items()))


def is_federated(method: Entry) -> bool:
    """Whether clients keep their data; a model for all that needs no uploads is trained on pooled data."""
    return bool(method.citation and method.citation.up) or method.yields == "personal"


def traits_of(method: Entry) -> dict[str, Any]:
    """Return the traits of one method. traffic: over FedAvg's, with two digits; less than 0.01 counts as 0.01."""
    assert method.citation is not None
    traffic = traffic_share(method.name)
    return {
        "yields": method.yields.split(", "),
        "any_nets": method.abilities.any_architecture,
        "state": bool(method.citation.state),
        "newcomers": not method.abilities.untrained,
        "secure_sums": method.abilities.secure_sum,
        "dp": method.wrappers["dp"] is None,
        "traffic": max(round(traffic, 2), 0.01) if traffic else traffic,
    }


def traffic_share(name: str) -> float | None:
    """Return the bytes that a method sends up and down over FedAvg's; None where no study has measured them."""
    study, setting = TRAFFIC
    cell, plain = (cached_cells(study).get(f"{setting}/{label}") for label in (name, "fedavg"))
    if cell is None or plain is None:
        return None
    return float((cell["bytes_up"] + cell["bytes_down"]) / (plain["bytes_up"] + plain["bytes_down"]))


@cache
def cached_cells(study: str) -> Cells:
    """Read the cells of a study once."""
    return read_cells(study)


def tables() -> dict[str, str]:
    """Return the tables of the page on advice by name."""
    return {"advice-rules": rules_table(), "advice-regret": regret_table()}


def rules_table() -> str:
    """Return the rules in words."""
    derived_rules, rows = derived(), []
    for rule in derived_rules["rules"]:
        setting = next(
            one for one in derived_rules["settings"] if (one["name"], one["goal"]) == (rule["setting"], rule["goal"])
        )
        key = next((key for key in rule if key in _CONDITIONS), None)
        condition = _CONDITIONS[key].format(rule[key]) if key else "nothing of the above"
        best = ", ".join(f"{row['method']} {row['accuracy']:.1f} %" for row in setting["rows"][:3])
        link = f"[{setting['title']}](../{setting['page']})"
        rows.append([rule["goal"], condition, link, len(setting["rows"]), best])
    return markdown(("goal", "if", "then the list is that of", "methods measured", "highest three"), rows)


_CONDITIONS = {
    "nets": "networks are {}",
    "tail_from": "long tail: rho from {}",
    "features_from": "feature skew from {}",
    "label_skew_from": "label skew (Hellinger) from {}",
}


def rules_text() -> str:
    """Return the text of the rules' file, with one line per row to make changes visible."""
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


def ask(*, trial: bool) -> None:
    """Ask for advice on each scenario; the tests of the candidates play no part."""
    import fedloom as fl

    cells = read_study(STUDIES / "advice.yaml").cells
    answers = read_results("advice")
    for setting in dict.fromkeys(cell.setting for cell in cells):
        config = next(cell.config for cell in cells if cell.setting == setting)
        advice = fl.advise(config, trial=trial, progress=False)
        facts = advice.facts()
        answer = {key: facts[key] for key in ("why", "reference")} | {"setting": facts["evidence"]["name"]}
        answer |= {"goal": advice.needs.goal, "methods": advice.methods}
        if advice.trial is not None:
            answer["trial"] = facts["trial"]
        elif "trial" in answers.get(setting, {}):
            answer["trial"] = answers[setting]["trial"]
        answers[setting] = answer
        write_results("advice", answers)
        print(setting, advice.methods, "" if advice.trial is None else advice.trial.sentence(), flush=True)


def accuracies(cells: Cells, setting: str, goal: str) -> dict[str, float]:
    """Return the mean test accuracy of each candidate in percent; of personal models where that is the goal."""
    means = {}
    for name, cell in cells.items():
        in_setting, _, label = name.partition("/")
        if in_setting == setting:
            tested = cell.get("tested", {})
            values = tested.get("personal/local", tested.get("global/local")) if goal == "personal" else None
            means[label] = 100 * fmean(cell["accuracies"] if values is None else values["accuracy"])
    return means


def choices(answer: Mapping[str, Any], averages: Mapping[str, Any], candidates: Mapping[str, float]) -> dict[str, str]:
    """Return the method that each way of choosing takes."""
    first = next((method for method in answer["methods"] if method in candidates), answer["reference"])
    taken = {"advice": first, "tuned": answer["reference"], "average": averages[answer["goal"]]["method"]}
    if "trial" in answer:
        taken["trial"] = answer["trial"]["recommended"]["method"]
    return taken


def regrets() -> dict[str, dict[str, tuple[str, float]]]:
    """Return by scenario and way of choosing the method and its regret in points; "best" has the accuracy."""
    cells = cached_cells("advice")
    averages = json.loads(RULES.read_text(encoding="utf-8"))["best_on_average"]
    table = {}
    for setting, answer in read_results("advice").items():
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
    """Return one line per scenario, then the mean and the worst regret."""
    by_scenario, rows = regrets(), []
    for setting, row in by_scenario.items():
        method, accuracy = row["best"]
        texts = [f"{row[way][0]} {row[way][1]:.1f}".strip() if way in row else "–" for way in WAYS]
        rows.append([setting, f"{method} {accuracy:.1f} %", *texts])
    for name, fold in (("**mean**", fmean), ("**worst**", max)):
        by_way = [[row[way][1] for row in by_scenario.values() if way in row] for way in WAYS]
        rows.append([name, "", *(f"**{fold(values):.1f}**" if values else "–" for values in by_way)])
    return markdown(("scenario", "best of twenty", *WAYS.values()), rows)


def write_rules() -> None:
    """Write the rules' file again."""
    write_atomic(RULES, rules_text().encode())


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks advice")
    parser.add_argument("--profile", nargs="*", default=[], metavar="STUDY", help="profile the data of these studies")
    parser.add_argument("--ask", action="store_true", help="ask for advice on the scenarios of studies/advice.yaml")
    parser.add_argument("--trial", action="store_true", help="with --ask: run a trial on each scenario, too")
    options = parser.parse_args(arguments)
    if options.profile:
        measure_profiles(options.profile)
    write_rules()
    if options.ask:
        ask(trial=options.trial)
