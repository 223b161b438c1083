"""Tables of measured accuracies in docs/: results.md, leaderboard.md, honest-scale.md; in methods/: robust.md,
sound.md, departures.md.

fedloom study benchmarks/studies/NAME.yaml --out runs/NAME --workers 2
python benchmarks/results.py runs/NAME     # its finished methods into results/studies/NAME.json, and the pages
python benchmarks/results.py               # the pages again, from these files
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import advice_regret
import advice_rules
import honest_scale
import hundred_rounds
import settings_side_by_side
from cells import DIVERGED, FOLDER, display_name, has_diverged, in_words, keep, percent
from departures import departure_tables
from fedloom.core.files import write_atomic
from fedloom.results.difference import compare_family, paired_differences
from fedloom.results.statistics import mean_std
from leaderboard import ranked_tables
from marked_tables import with_tables
from results_picture import PICTURE, draw
from sound import sound_tables

DOCS = Path(__file__).parents[1] / "docs"
ATTACKS, SOUND, DEPARTURES, ADVICE = "attacks", "sound", "departures", "advice"
PAGES = {ATTACKS, SOUND, DEPARTURES, ADVICE, *honest_scale.STUDIES}  # studies with a page of their own
SCENARIOS = {
    "all-methods/alpha-0.05": "Fashion-MNIST, Dirichlet 0.05",
    "all-methods/alpha-0.2": "Fashion-MNIST, Dirichlet 0.2",
    "digit-domains": "five digit domains",
    "honest-scale/authorities": "grades in 131 education authorities",
    "honest-scale/hundred-clients": "Fashion-MNIST, Dirichlet 0.1, 100 clients",
    "heterogeneous-models": "CIFAR-10, heterogeneous models",
    "long-tail": "Fashion-MNIST, long tail",
    "several-widths": "Fashion-MNIST, one network in several widths",
    "two-classes": "Fashion-MNIST, two classes, different nets",
}
Cells = Mapping[str, dict[str, Any]]


def studies_by_name() -> dict[str, Cells]:
    """Read the finished cells of every study."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in sorted(FOLDER.glob("*.json"))}


def setting_table(cells: Cells, setting: str) -> str:
    """All methods of one setting, those of a protocol together, best first."""
    prefix = f"{setting}/"
    rows = [(name.removeprefix(prefix), cell) for name, cell in cells.items() if name.startswith(prefix)]
    lines = [
        "| method | protocol | accuracy % | against the plain method | seeds higher | worst 10 % | learning rate "
        "| MB up | MB down | TFLOPs |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    words, higher = differences(cells, setting), seeds_higher(cells, setting)
    for label, cell in sorted(rows, key=lambda row: (row[1]["protocol"], has_diverged(row[1]), -_mean(row[1]))):
        rate = cell["tuned"].get("optimizer.lr", "–")
        lines.append(
            f"| {display_name(label, cell)} | {cell['protocol']} | {_accuracy(cell)} |"
            f" {words.get(prefix + label, '–')} | {higher.get(prefix + label, '–')} | {_worst(cell)} | {rate} |"
            f" {cell['bytes_up'] / 1e6:,.1f} | {cell['bytes_down'] / 1e6:,.1f} | {cell['flops'] / 1e12:.2f} |"
        )
    return "\n".join(lines) + "\n"


def differences(cells: Cells, setting: str) -> dict[str, str]:
    """By cell, the mean difference from the plain method of its protocol in points, and the word of the one rule.

    All methods of a setting and protocol that are compared with the plain one are a family. Rows with a run that
    diverged are not compared.
    """
    words = {name: DIVERGED for name, cell in cells.items() if _is_in(setting, name) and has_diverged(cell)}
    for family in _families(cells, setting):
        for name, outcome in zip(
            family, compare_family([list(by_seed.values()) for by_seed in family.values()]), strict=True
        ):
            words[name] = in_words(outcome)
    return words


def seeds_higher(cells: Cells, setting: str) -> dict[str, str]:
    """By cell, on how many of its seeds it is higher than the plain method of its protocol."""
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
        plain_name = f"{setting}/{'local' if protocol.startswith('personal') else 'fedavg'}"
        family = {name: cell for name, cell in in_setting.items() if cell["protocol"] == protocol}
        plain = family.pop(plain_name, None)
        if plain is not None:
            rows = {name: (cell["seeds"], cell["accuracies"]) for name, cell in family.items()}
            baseline = plain["seeds"], plain["accuracies"]
            families.append({name: paired_differences(*row, *baseline) for name, row in rows.items()})
    return families


def _is_in(setting: str, name: str) -> bool:
    return name.partition("/")[0] == setting


def leaderboard(studies: Mapping[str, Cells]) -> str:
    """Return the tables of all scenarios without attacks, ranked."""
    blocks = []
    for study, cells in studies.items():
        if study in PAGES:
            continue
        for setting in dict.fromkeys(name.rpartition("/")[0] and name.partition("/")[0] for name in cells):
            prefix = f"{setting}/" if setting else ""
            in_setting = {name: cell for name, cell in cells.items() if name.startswith(prefix)}
            scenario = SCENARIOS[f"{study}/{setting}" if setting else study]
            blocks.append(ranked_tables(scenario, in_setting, differences(in_setting, setting)))
    for setting in honest_scale.SETTINGS:
        rows = honest_scale.ranked_rows(studies, setting)
        blocks.append(ranked_tables(SCENARIOS[f"honest-scale/{setting}"], *rows))
    return "\n".join(blocks)


def attack_table(cells: Cells) -> str:
    """Means by attacks: accuracy in percent, mean ± sample standard deviation."""
    attacks = list(dict.fromkeys(name.partition("/")[0] for name in cells))
    means = list(dict.fromkeys(name.partition("/")[2] for name in cells))
    lines = [f"| mean | {' | '.join(attacks)} | taken for the flipped class |", "|---" * (len(attacks) + 2) + "|"]
    for mean in means:
        success = 100 * cells[f"label-flip/{mean}"]["attack_success"]
        accuracies = " | ".join(_accuracy(cells[f"{attack}/{mean}"]) for attack in attacks)
        lines.append(f"| {mean} | {accuracies} | {success:.1f} |")
    return "\n".join(lines) + "\n"


def tables() -> dict[Path, dict[str, str]]:
    """By page, its tables by the name between their marks."""
    studies = studies_by_name()
    settings = {
        f"{study}/{setting}" if setting else study: setting_table(cells, setting)
        for study, cells in studies.items()
        if study not in PAGES
        for setting in dict.fromkeys(name.partition("/")[0] for name in cells)
    }
    settings[settings_side_by_side.NAME] = settings_side_by_side.table_of(studies).markdown() + "\n"
    settings["hundred-rounds"] = hundred_rounds.table(json.loads(hundred_rounds.RESULTS.read_text())["cases"])
    pages = {DOCS / "results.md": settings, DOCS / "leaderboard.md": {"leaderboard": leaderboard(studies)}}
    pages[DOCS / "methods" / "robust.md"] = {ATTACKS: attack_table(studies[ATTACKS])}
    advice = {"advice-rules": advice_rules.rules_table(), "advice-regret": advice_regret.regret_table()}
    pages[advice_rules.PAGE] = advice
    pages[honest_scale.PAGE] = honest_scale.honest_tables(studies)
    pages[DOCS / "methods" / "departures.md"] = departure_tables(studies.get(DEPARTURES, {}))
    return pages | {DOCS / "methods" / "sound.md": sound_tables(studies.get(SOUND, {}))}


def _mean(cell: Mapping[str, Any]) -> float:
    return mean_std(cell["accuracies"])[0]


def _accuracy(cell: Mapping[str, Any]) -> str:
    return percent(cell["accuracies"])


def _worst(cell: Mapping[str, Any]) -> str:
    return "–" if cell["worst"] is None else f"{100 * cell['worst']:.1f}"


def main(folders: list[str]) -> None:
    for folder in folders:
        print(keep(Path(folder)))
    advice_rules.main([])  # the rules of `fedloom advise` follow from the same rows
    for page, page_tables in tables().items():
        write_atomic(page, with_tables(page.read_text(encoding="utf-8"), page_tables))
    draw(studies_by_name()["all-methods"], PICTURE)
    settings_side_by_side.draw(studies_by_name(), settings_side_by_side.FIGURE)


if __name__ == "__main__":
    main(sys.argv[1:])
