"""The report page: sections in order, one file, no network. Its first sentences warn of classes that no row finds."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from markupsafe import Markup

from fedloom.core.text import BASELINE, listed, lists_by_key, percent
from fedloom.results.comparability import same_runs_notes
from fedloom.results.fairness import fairness_table
from fedloom.results.group import Group
from fedloom.results.page_sections import PageSection
from fedloom.results.pairs import all_paired
from fedloom.results.plot_values import ChartRow, chart_rows
from fedloom.results.report import charts, line_charts, markup, page_tables
from fedloom.results.report.class_charts import class_blocks
from fedloom.results.report.class_results import class_results, majority_accuracy
from fedloom.results.report.sections import render_section
from fedloom.results.result import group_table
from fedloom.results.result_tables import results_table
from fedloom.results.table import attack_words, grouped, not_offered_notes
from fedloom.results.table_notes import run_notes
from fedloom.results.unseen_tables import left_out_table, newcomer_table
from fedloom.results.verdict import verdicts
from fedloom.runs.storage.finished_runs import tuning_choices
from fedloom.runs.storage.log import CALLBACK_SPLIT
from fedloom.runs.storage.run_data import RunData

_NAMED = 5


def missed_sentences(groups: Sequence[Group]) -> list[str]:
    """Return sentences that name the classes a row never predicts correctly."""
    labels_by_classes: dict[str, list[str]] = {}
    for group in groups:
        results = class_results(group)
        missed = [] if results is None else [k for k, recall in enumerate(results.recall) if recall == 0]
        if results is None or not missed:
            continue
        sizes = results.support_texts()
        samples = ["" if size is None else f" ({size} {'sample' if size == '1' else 'samples'})" for size in sizes]
        named = [f"{results.classes[k]}{samples[k]}" for k in missed[:_NAMED]]
        more = len(missed) - len(named)
        noun = "class" if len(missed) == 1 else "the classes"
        classes = f"{noun} {listed(named)}{f', and of {more} more' if more else ''}"
        labels_by_classes.setdefault(classes, []).append(results.label)
    if len(labels_by_classes) > _NAMED:
        rows = sum(map(len, labels_by_classes.values()))
        return [f"{rows} of {len(groups)} rows find no case of some class; the section Classes says which."]
    return [f"{_rows(labels)} no case of {classes}." for classes, labels in labels_by_classes.items()]


def _rows(labels: Sequence[str]) -> str:
    if len(labels) > _NAMED:
        return f"{len(labels)} rows find"
    return f"{listed(labels)} {'finds' if len(labels) == 1 else 'find'}"


def majority_sentences(groups: Sequence[Group]) -> list[str]:
    """Return sentences on the rows whose accuracy is not above the majority baseline."""
    below = [
        (group, majority)
        for group in groups
        # The tolerance is for equal shares that are computed in two ways and differ in their last bits.
        if (majority := majority_accuracy(group)) is not None and group.row["accuracy"] <= majority + 1e-9
    ]
    if len(below) > _NAMED:
        return [
            f"{len(below)} of {len(groups)} rows are not above the accuracy of always predicting the most frequent "
            "class; the column of the majority in Results says which."
        ]
    sentences = []
    for group, majority in below:
        row = group.row
        balanced = row["metrics"].get("balanced_accuracy")
        text = (
            f"{row['label']} is not above the majority baseline: accuracy {percent(row['accuracy'])} %, and "
            f"{percent(majority)} % by always predicting the most frequent class"
        )
        sentences.append(f"{text}; balanced accuracy {percent(balanced)} %." if balanced is not None else f"{text}.")
    return sentences


# Keys of a scenario that every scenario has, or that say little about it.
_PLAIN_SCENARIO = frozenset(
    ["source", "partition", "clients", "val", "seed", "min_samples", "max_draws", "path", "verify", "offline"]
)

_MAJORITY = "is not above the"  # of the diagnostic that the page's first lines replace
_LEAK = "`group: none`"  # of the diagnostic of a leak, which is shown at the head of the page
_TITLED = 6  # methods in the title
_REMARKS = 5  # that are open; the others fold
_OPEN = 8  # tests in words, configs and runs that are open
_NAMED_ROWS = 4  # rows in a sentence


def page(results: Sequence[RunData], title: str | None = None, parts: Sequence[PageSection] = ()) -> str:
    """Return the whole page as HTML. The title names methods and data unless given; `parts` come after the results."""
    groups = grouped(results)
    rows = [group.row for group in groups]
    charted = chart_rows(groups)
    pairs = all_paired(rows, BASELINE)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    sources = list(dict.fromkeys(str(r.numbers["source"]) for r in results))
    subjects = listed(methods) if len(methods) <= _TITLED else f"{len(methods)} methods"
    name = title or f"{subjects} on {listed(sources)}"
    limits = [*not_offered_notes(results), *same_runs_notes(rows)]
    remarks = [*(limit for part in parts for limit in part.limits), *_notes(groups, limits)]
    return markup.render_page(
        "page.html",
        title=name,
        verdicts=[_unbroken(sentence) for sentence in verdicts(rows)],
        warnings=[
            *list(dict.fromkeys(f"{note}." for group in groups for note in group.row["degenerate"] if _LEAK in note)),
            *missed_sentences(groups),
            *majority_sentences(groups),
        ],
        overview=_facts(groups),
        remarks=remarks[:_REMARKS],
        further_remarks=remarks[_REMARKS:],
        table=page_tables.numbers_table(charted, pairs, lambda format: results_table(results, format == "latex")),
        sections=[*map(render_section, parts), *_sections(charted)],
    )


def _unbroken(sentence: str) -> str:
    """The sentence with no line break within a figure."""
    return sentence.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _sections(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the sections that have something to show. A run in several protocols trained once, and has one cost."""
    groups = [row.group for row in rows]
    trained = [row for row in rows if not row.group.is_further]
    runs = [row.group for row in trained]
    results = [result for group in runs for result in group.results]
    left_out, newcomers, fairness, by_group = (
        [markup.table(sheet)] if sheet.rows else []
        for sheet in (left_out_table(groups), newcomer_table(groups), fairness_table(groups), group_table(results))
    )
    blocks_by_section: dict[tuple[str, str], Sequence[Markup]] = {
        ("Seed by seed", "paired"): _paired(rows),
        ("Domains left out", "domains"): left_out,
        ("Clients that never trained", "newcomers"): newcomers,
        ("Groups of samples", "groups"): by_group,
        ("Classes", "classes"): class_blocks(rows),
        ("Learning curves", "curves"): [
            *line_charts.learning_curves(rows),
            *line_charts.learning_curves(rows, "virtual seconds"),
        ],
        ("Single clients", "clients"): [*charts.client_spread(rows), *fairness, *page_tables.client_tables(rows)],
        ("Cost", "cost"): [page_tables.costs_table(trained)],
        ("Tuning", "tuning"): page_tables.tuning_blocks(tuning_choices(results)),
        ("Data", "data"): _pictures(runs),
        ("Config", "config"): _folded(page_tables.configs(runs), "Configs"),
        ("Environment and runs", "runs"): [
            *page_tables.environments(runs),
            *_folded([page_tables.run_list(runs)], "Runs", len(results)),
        ],
    }
    return [markup.section(title, anchor, blocks) for (title, anchor), blocks in blocks_by_section.items() if blocks]


def _folded(blocks: list[Markup], title: str, size: int | None = None) -> list[Markup]:
    """Fold blocks if they are many. size: how many things they show; None for one a block."""
    size = len(blocks) if size is None else size
    return blocks if size <= _OPEN else [markup.fold(f"{title} ({size})", blocks)]


def _paired(rows: Sequence[ChartRow]) -> list[Markup]:
    """Compare every method with the baseline over the seeds that both ran."""
    panels = line_charts.difference_rows(rows)
    sentences = [f"{_unbroken(row.pair.words())}." for members in panels.values() for row in members]
    words = _folded([markup.bullets(sentences)], "Tests in words", len(sentences)) if sentences else []
    drawn = line_charts.differences(panels) if panels else []
    return [*drawn, *words]


def _facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    results = [result for group in groups for result in group.results]
    keys = {"Data": "source", "Clients": "clients", "Partition": "", "Model": "model", "Rounds": "rounds"}
    keys |= {"Protocol": "protocol", "Seeds": "seed"}
    values = {
        words: [str(r.numbers[key]) if key else _partition(r.config) for r in results] for words, key in keys.items()
    }
    if any(group.row["attack"] for group in groups):
        values["Attack"] = [attack_words(r.numbers) or "none" for r in results]
    between = {"Partition": "; "}
    return [(words, between.get(words, ", ").join(dict.fromkeys(of))) for words, of in values.items()]


def _partition(config: dict[str, Any]) -> str:
    scenario = config.get("scenario", {})
    extra = [f"{k} {v}" for k, v in scenario.items() if k not in _PLAIN_SCENARIO and isinstance(v, int | float | str)]
    return ", ".join([str(scenario.get("partition", "own")), *extra])


def _notes(groups: Sequence[Group], limits: Sequence[str]) -> list[str]:
    """Return the notes that qualify the numbers. limits: sentences about the table as a whole."""
    notes = [f"{note}." for note in limits]
    notes += _tuning_notes([result for group in groups for result in group.results])
    for group in groups:
        row = group.row
        notes += [f"{row['label']}: {note}" for note in row["degenerate"] if not (_MAJORITY in note or _LEAK in note)]
        if group.is_further:
            continue
        notes += run_notes([group])
        for name, first in _diverged(group.results).items():
            notes.append(f"{row['label']}: {name} is not finite from round {first} on; these rounds are not drawn.")
    if len({(group.row["protocol"], group.row["select"]) for group in groups}) > 1:
        notes.append("Protocols or ways of selecting a round differ: such accuracies answer different questions.")
    if any(group.row["select"] == "best_test" for group in groups):
        notes.append("select best_test chooses the round by looking at the test set, so it is too high.")
    by_seeds = lists_by_key((tuple(group.row["seeds"]), group.row["label"]) for group in groups)
    if len(by_seeds) > 1:
        reason = "; ".join(f"{listed(seeds)} for {_few(labels)}" for seeds, labels in by_seeds.items())
        notes.append(f"Rows are means over unequal seeds: {reason}.")
    single = [group.row["label"] for group in groups if group.row["n"] == 1]
    if single:
        notes.append(f"One seed only for {_few(single)}: how much chance moves the result is unknown.")
    return notes


def _diverged(results: Sequence[RunData]) -> dict[str, int]:
    """Measures that were not finite, with the first such round; not those of callbacks, where NaN stands for none."""
    first: dict[str, int] = {}
    for result in results:
        for row in result.rows:
            if not isfinite(row["value"]) and row["split"] != CALLBACK_SPLIT:
                name = f"{row['split']} {row['name']}"
                first[name] = min(row["round"], first.get(name, row["round"]))
    return first


def _tuning_notes(results: Sequence[RunData]) -> list[str]:
    choices = tuning_choices(results)
    keys = ", ".join(dict.fromkeys(key for choice in choices for key in choice.chosen))
    return (
        [f"{keys} tuned per method on validation data; the table in Tuning has the chosen values."] if choices else []
    )


def _few(labels: Sequence[str]) -> str:
    """Rows by their names, or how many they are."""
    return listed(labels) if len(labels) <= _NAMED_ROWS else f"{len(labels)} rows"


def _pictures(groups: Sequence[Group]) -> list[Markup]:
    """One picture per scenario: that of its first run, with a word on the other seeds' partitions."""
    by_scenario: dict[str, list[tuple[Group, RunData]]] = {}
    for group in groups:
        keys = ((key.partition("."), value) for key, value in group.row["setting"].items())
        words = ", ".join(f"{name}={value}" for (section, _, name), value in keys if section == "scenario")
        by_scenario.setdefault(words, []).extend((group, result) for result in group.results)
    pictures = []
    for k, (description, runs) in enumerate(by_scenario.items()):
        first = runs[0][1]
        if not first.scenario.get("class_counts"):
            continue
        seed = first.numbers["seed"]
        dealt = {str(result.scenario.get("class_counts")) for _, result in runs}
        caption = f"The partition of seed {seed}; other seeds deal the data anew." if len(dealt) > 1 else ""
        pictures.append(
            charts.holdings(f"data-{k}", first.scenario, f"{description}. {caption}" if description else caption)
        )
    return pictures
