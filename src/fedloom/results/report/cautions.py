"""Sentences that a reader has to know first: classes that are never found, accuracy that a guess reaches."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.text import listed, percent
from fedloom.results.group import Group
from fedloom.results.report.class_results import class_results, majority_accuracy

_NAMED = 5


def cautions(groups: Sequence[Group]) -> list[str]:
    """Return the sentences about all rows; empty if there is nothing to warn of."""
    return [*missed_sentences(groups), *majority_sentences(groups)]


def missed_sentences(groups: Sequence[Group]) -> list[str]:
    """Return sentences on the classes of which a row finds no test sample."""
    labels_by_classes: dict[str, list[str]] = {}
    for group in groups:
        results = class_results(group)
        missed = [] if results is None else results.never_found()
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
