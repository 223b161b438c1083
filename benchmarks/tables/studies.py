"""Tables of the results page and the leaderboard, and of robust means under attacks."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from scipy.stats import rankdata, wilcoxon

from benchmarks.cells import Cells, studies_by_name
from benchmarks.data import RESULTS, read_rows
from benchmarks.tables import honest_scale
from benchmarks.tables.words import (
    DIVERGED,
    display_name,
    has_diverged,
    in_words,
    markdown,
    mean_accuracy,
    option_text,
    percent,
    shown,
    titles,
    worst,
)
from fedloom.results.difference import Difference, compare_family, holm, p_text, paired_differences, rank_intervals

SCENARIOS = {  # of the leaderboard, by study and setting
    "all-methods/alpha-0.05": "Fashion-MNIST, Dirichlet 0.05",
    "all-methods/alpha-0.2": "Fashion-MNIST, Dirichlet 0.2",
    "digit-domains/": "five digit domains",
    "heterogeneous-models/": "CIFAR-10, heterogeneous models",
    "long-tail/": "Fashion-MNIST, long tail",
    "several-widths/": "Fashion-MNIST, one network in several widths",
    "two-classes/": "Fashion-MNIST, two classes, different nets",
    "honest-scale/authorities": "grades in 131 education authorities",
    "honest-scale/hundred-clients": "Fashion-MNIST, Dirichlet 0.1, 100 clients",
}
_COUNTED = ("ahead", "equivalent", "behind", "undecided")
_FEWEST_SCENARIOS = 5  # below, nothing is tested over scenarios
_CHECKED_SCENARIOS = 12  # from here on, the Wilcoxon test with Holm's correction is the stronger one
_MANY_ROWS, _RANKED_SEEDS = 10, 5  # in a table of many rows, fewer seeds rank nothing
_HUNDRED_ROUNDS = RESULTS / "hundred_rounds.csv.gz"


def tables() -> dict[str, str]:
    """Return the tables by name."""
    studies = studies_by_name()
    settings = {
        name.removesuffix("/"): setting_table(studies[study], setting)
        for name in SCENARIOS
        if (study := name.partition("/")[0]) not in honest_scale.STUDIES
        for setting in [name.partition("/")[2]]
    }
    others = {
        "over-scenarios": over_scenarios(studies),
        "leaderboard": leaderboard(studies),
        "attacks": attack_table(studies["attacks"]),
    }
    return settings | others | {"hundred-rounds": hundred_rounds_table(read_rows(_HUNDRED_ROUNDS))}


def setting_table(cells: Cells, setting: str) -> str:
    """Return all methods of one setting, those of a protocol together, best first."""
    headers = "method, protocol, accuracy %, against the plain method, seeds higher, worst 10 %, learning rate, MB up, "
    rows = [(name, cell) for name, cell in cells.items() if _is_in(setting, name)]
    words, higher = differences(cells, setting), seeds_higher(cells, setting)
    best_first = sorted(rows, key=lambda row: (row[1]["protocol"], has_diverged(row[1]), -mean_accuracy(row[1])))
    return markdown(
        [*headers.split(", ")[:-1], "MB down", "TFLOPs"],
        [
            [
                display_name(name.partition("/")[2], cell),
                cell["protocol"],
                percent(cell["accuracies"]),
                words.get(name, "–"),
                higher.get(name, "–"),
                worst(cell),
                cell["tuned"].get("optimizer.lr", "–"),
                f"{cell['bytes_up'] / 1e6:,.1f}",
                f"{cell['bytes_down'] / 1e6:,.1f}",
                f"{cell['flops'] / 1e12:.2f}",
            ]
            for name, cell in best_first
        ],
    )


def differences(cells: Cells, setting: str) -> dict[str, str]:
    """Return by cell the mean difference from the plain method of its protocol in points, and the word of the rule.

    All methods of a setting and protocol that are compared with the plain one are a family. Rows with a run that
    diverged are not compared.
    """
    words = {name: DIVERGED for name, cell in cells.items() if _is_in(setting, name) and has_diverged(cell)}
    return words | {name: in_words(outcome) for name, outcome in compared(cells, setting).items()}


def compared(cells: Cells, setting: str) -> dict[str, Difference]:
    """Return by cell its difference from the plain method of its protocol; those of a protocol are a family."""
    outcomes: dict[str, Difference] = {}
    for family in _families(cells, setting):
        judged = compare_family([list(by_seed.values()) for by_seed in family.values()])
        outcomes |= dict(zip(family, judged, strict=True))
    return outcomes


def seeds_higher(cells: Cells, setting: str) -> dict[str, str]:
    """Return by cell on how many of its seeds it is higher than the plain method of its protocol."""
    return {
        name: f"{sum(difference > 0 for difference in by_seed.values())} of {len(by_seed)}"
        for family in _families(cells, setting)
        for name, by_seed in family.items()
    }


def _families(cells: Cells, setting: str) -> list[dict[str, dict[int, float]]]:
    """The cells of a setting by protocol: of each, by seed, its difference from the plain method of the protocol."""
    families = []
    in_setting = {name: cell for name, cell in cells.items() if _is_in(setting, name) and not has_diverged(cell)}
    for protocol in dict.fromkeys(cell["protocol"] for cell in in_setting.values()):
        family = {name: cell for name, cell in in_setting.items() if cell["protocol"] == protocol}
        plain = family.pop(f"{setting}/{'local' if protocol.startswith('personal') else 'fedavg'}", None)
        if plain is not None:
            baseline = plain["seeds"], plain["accuracies"]
            families.append(
                {
                    name: paired_differences(cell["seeds"], cell["accuracies"], *baseline)
                    for name, cell in family.items()
                }
            )
    return families


def _is_in(setting: str, name: str) -> bool:
    return name.partition("/")[0] == setting


@cache
def _headers(plain: str) -> list[str]:
    words = f"rank, method, accuracy %, against {plain}, worst 10 %, MB, TFLOPs, seconds, n"
    return words.split(", ")


def leaderboard(studies: Mapping[str, Cells]) -> str:
    """Return a heading and a table for each scenario and protocol."""
    blocks = []
    for name, scenario in SCENARIOS.items():
        study, _, setting = name.partition("/")
        if study in honest_scale.STUDIES:
            blocks += ranked_tables(scenario, *honest_scale.ranked_rows(studies, setting))
        else:
            cells = {name: cell for name, cell in studies[study].items() if _is_in(setting, name)}
            blocks += ranked_tables(scenario, cells, differences(cells, setting))
    return "\n\n".join(blocks)


def ranked_tables(scenario: str, cells: Cells, words: Mapping[str, str]) -> list[str]:
    """Return a heading and a table for each protocol of a scenario, sorted by mean, with intervals of ranks.

    Args:
        scenario: its name for people.
        cells: its measured rows, by name.
        words: the comparison of each row with the plain method of its protocol.
    """
    blocks = []
    for protocol in dict.fromkeys(cell["protocol"] for cell in cells.values()):
        of_protocol = [(name, cell) for name, cell in cells.items() if cell["protocol"] == protocol]
        ranked = sorted(of_protocol, key=lambda row: (has_diverged(row[1]), -mean_accuracy(row[1])))
        ranks, rows = rank_texts([cell for _, cell in ranked]), []
        for rank, (name, cell) in zip(ranks, ranked, strict=True):
            megabytes, teraflops = (cell["bytes_up"] + cell["bytes_down"]) / 1e6, cell["flops"] / 1e12
            accuracy, method = percent(cell["accuracies"]), display_name(name.rpartition("/")[2], cell)
            costs = f"{megabytes:,.1f}", f"{teraflops:.2f}", f"{cell['train_seconds']:.0f}"
            rows.append([rank, method, accuracy, words.get(name, "–"), worst(cell), *costs, len(cell["seeds"])])
        plain = "Local" if protocol.startswith("personal") else "FedAvg"
        blocks += [f"## {scenario}, {protocol}", markdown(_headers(plain), rows)]
    return blocks


def rank_texts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return between which ranks each row lies, over all pairs of ranked ones, e.g. "1–4".

    A dash stands for a diverged row, for one without three seeds in common with another and, in a table of ten rows or
    more, for one with fewer than five seeds: among so many, these tell next to nothing apart.
    """
    least = _RANKED_SEEDS if len(rows) >= _MANY_ROWS else 0
    chosen = [k for k, row in enumerate(rows) if not has_diverged(row) and len(row["seeds"]) >= least]
    by_seed = [dict(zip(rows[k]["seeds"], rows[k]["accuracies"], strict=True)) for k in chosen]
    texts = ["–"] * len(rows)
    for k, interval in zip(chosen, rank_intervals(by_seed), strict=True):
        if interval is not None:
            texts[k] = "–".join(map(str, dict.fromkeys(interval)))
    return texts


def over_scenarios(studies: Mapping[str, Cells]) -> str:
    """Return how methods at their default preset compare with the plain method over scenarios, of which each is a unit.

    From five scenarios on, the mean differences over seeds are values of the rule, methods of a protocol as one family;
    below, the words of the scenarios are only counted. The average rank, among the compared methods and the plain one
    of a scenario, describes; from twelve scenarios on, the Wilcoxon test with Holm's correction checks.
    """
    by_side: dict[str, dict[str, list[Difference]]] = {"FedAvg": {}, "Local": {}}
    ranks: dict[tuple[str, str], list[float]] = {}
    for name in SCENARIOS:
        study, _, setting = name.partition("/")
        of_scenario = list(_of_scenario(studies, study, setting))
        for side, label, outcome in of_scenario:
            by_side[side].setdefault(label, []).append(outcome)
        for side in by_side:
            means = {label: of.mean for of_side, label, of in of_scenario if of_side == side}
            for label, rank in zip(means, rankdata([-mean for mean in (*means.values(), 0.0)]), strict=False):
                ranks.setdefault((side, label), []).append(float(rank))
    rows = []
    for side, by_method in by_side.items():
        units = {label: [of.mean for of in outcomes] for label, outcomes in by_method.items()}
        tested = {label: values for label, values in units.items() if len(values) >= _FEWEST_SCENARIOS}
        judged = dict(zip(tested, compare_family([*tested.values()]), strict=True))
        checked = {label: values for label, values in tested.items() if len(values) >= _CHECKED_SCENARIOS}
        checks = dict(zip(checked, holm([float(wilcoxon(values).pvalue) for values in checked.values()]), strict=True))
        for label, values in sorted(units.items(), key=lambda row: -fmean(row[1])):
            if len(values) > 1:
                words = [outcome.word for outcome in by_method[label]]
                counts = ", ".join(f"{word} in {words.count(word)}" for word in _COUNTED if word in words)
                over = f"{100 * fmean(values):+.1f}"
                if label in judged:
                    over = in_words(judged[label]).replace(" seeds)", " scenarios)")
                    over += f"; Wilcoxon–Holm p {p_text(checks[label])}" if label in checks else ""
                interval = judged[label].interval_text(100) if label in judged else "–"
                each = ", ".join(f"{100 * value:+.1f}" for value in values)
                title = titles().get(label.partition("+")[0], label) + "".join(label.partition("+")[1:])
                rank = f"{fmean(ranks[side, label]):.1f}"
                rows.append([title, side, over, interval, rank, f"{counts} of {len(values)}", each])
    headers = (
        "method, against, mean over scenarios, 95 % interval (alone), average rank, in single scenarios, differences"
    )
    return markdown(headers.split(", "), rows)


def _of_scenario(studies: Mapping[str, Cells], study: str, setting: str) -> Iterator[tuple[str, str, Difference]]:
    """Yield side, method and difference of each compared method at its default preset."""
    if study not in honest_scale.STUDIES:
        for name, outcome in compared(studies[study], setting).items():
            cell = studies[study][name]
            if (label := name.partition("/")[2]) == cell["method"] and cell["preset"] == "sound":
                yield "Local" if cell["protocol"].startswith("personal") else "FedAvg", label, outcome
        return
    rows = {
        name.partition("/")[2]: cell for name, cell in honest_scale.joined(studies).items() if _is_in(setting, name)
    }
    for side, protocol in (("FedAvg", honest_scale.GLOBAL), ("Local", honest_scale.PERSONAL)):
        tested = {label: cell for label, cell in rows.items() if protocol in cell["tested"]}
        for label, outcome in honest_scale.compared(tested, protocol, side.lower()).items():
            if label == rows[label]["method"]:
                yield side, label, outcome


def attack_table(cells: Cells) -> str:
    """Return the robust means by attack: accuracy in percent, mean ± sample standard deviation."""
    attacks = list(dict.fromkeys(name.partition("/")[0] for name in cells))
    means = list(dict.fromkeys(name.partition("/")[2] for name in cells))
    return markdown(
        ["mean", *attacks, "taken for the flipped class"],
        [
            [
                mean,
                *(shown(cells[f"{attack}/{mean}"]) for attack in attacks),
                f"{100 * cells[f'label-flip/{mean}']['attack_success']:.1f}",
            ]
            for mean in means
        ],
    )


def hundred_rounds_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return in how many seeds every loss stayed finite, for each method, preset and options."""
    rows = []
    for case in cases:
        options = ", ".join(f"{key}={option_text(value)}" for key, value in case["options"].items())
        first_rounds = sorted({first for first in case["first_not_finite"] if first is not None})
        finite = f"{case['finite']} of {case['seeds']}"
        finite += f" (round {', '.join(map(str, first_rounds))})" if first_rounds else ""
        mean, std = (100 * value for value in case["accuracy"])
        method, alpha = titles()[case["method"]], case["alpha"] or "–"
        rows.append([method, alpha, case["preset"], options or "–", finite, f"{mean:.1f} ± {std:.1f}"])
    return markdown(["method", "alpha", "preset", "options", "seeds that stayed finite", "accuracy %"], rows)
