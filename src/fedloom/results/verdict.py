"""Summarise a table of results in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedloom.results.difference import Difference
from fedloom.results.paired import POOLED, paired_family
from fedloom.results.table import ResultRow
from fedloom.results.text import counted, listed, plus_minus

BASELINE = "fedavg"


def verdict(rows: Sequence[ResultRow]) -> str:
    """Return the `verdicts` as one paragraph."""
    return " ".join(verdicts(rows))


def verdicts(rows: Sequence[ResultRow]) -> list[str]:
    """Return sentences on how the methods compare with FedAvg, or the best with the next one, by `difference`'s rule.

    Rows that differ in protocol, selection, scenario, or a setting with several values for one method are not ranked
    together: each such group gets its own sentence. Rows with a diverged run, and training on pooled data, are named
    and not ranked.
    """
    contexts: dict[tuple[str, ...], list[ResultRow]] = {}
    axes = _axes(rows)
    for row in rows:
        contexts.setdefault(_context(row, axes), []).append(row)
    varying = [len(set(column)) > 1 for column in zip(*contexts, strict=True)]
    names = [_setting(members) if len(contexts) > 1 else "" for members in contexts.values()]
    named = [(name, key[0]) for name, key in zip(names, contexts, strict=True)]
    sentences = []
    for name, (key, members) in zip(names, contexts.items(), strict=True):
        words = ", ".join(word for word, varies in zip(key, varying, strict=True) if varies and word)
        heading = name if name and names.count(name) == 1 else f"With {words}" if words else ""
        if (
            name
            and len({*names}) > 1
            and names.count(name) == len({protocol for setting, protocol in named if setting == name}) > 1
        ):
            heading = f"{name}, {key[0]}"
        sentence = "; ".join(filter(None, (_ranked(members), _pooled(members), _diverged(members))))
        sentences.append(f"{heading}: {sentence}." if heading else f"{sentence}.")
    return sentences


def _ranked(rows: Sequence[ResultRow]) -> str:
    """Return the sentence about the rows that are ranked: federated ones that did not diverge; empty without any."""
    ranked = [row for row in rows if not row["diverged"] and row["method"] != POOLED]
    return _sentence(ranked) if ranked else ""


def _pooled(rows: Sequence[ResultRow]) -> str:
    """Return what training on the pooled data reaches; empty if no row does."""
    texts = [
        f"{_name(row, rows)} reaches {plus_minus(row['accuracy'], row['std'])} % on the pooled data of all clients"
        for row in rows
        if row["method"] == POOLED and not row["diverged"]
    ]
    return "; ".join(texts)


def _diverged(rows: Sequence[ResultRow]) -> str:
    """Return the sentence that names diverged rows and how many of their seeds diverged; empty if none did."""
    names = []
    for row in rows:
        if row["diverged"]:
            seeds = f" with {len(row['diverged'])} of {counted(row['n'], 'seed')}" if row["n"] > 1 else ""
            names.append(f"{_name(row, rows)} diverged{seeds}")
    return f"{listed(names)}, and {'is' if len(names) == 1 else 'are'} not ranked" if names else ""


def _setting(rows: Sequence[ResultRow]) -> str:
    """Return the study's name for the setting of these rows; empty if there is none, or several."""
    names = {row["cell"][0] if row["cell"] else "" for row in rows}
    return names.pop() if len(names) == 1 else ""


def _axes(rows: Sequence[ResultRow]) -> set[str]:
    """Return the keys with several values for one method, but those of optimiser and method, and tuned ones."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for key in row["setting"].keys() - row["tuned"]:
            if not key.startswith(("scenario.", "optimizer.", f"{row['method']}.")):
                values.setdefault((row["method"], key), set()).add(row["setting"][key])
    return {key for (_, key), distinct in values.items() if len(distinct) > 1}


def _context(row: ResultRow, axes: Collection[str]) -> tuple[str, ...]:
    """Return the facts that two rows must share for their accuracies to be comparable."""
    varied = ", ".join(f"{key}={value}" for key, value in row["setting"].items() if key in axes)
    return f"protocol {row['protocol']}", f"select {row['select']}", varied, scenario_words(row)


def scenario_words(row: ResultRow) -> str:
    """Return the scenario keys in which this row differs from others, "alpha=0.1, clients=10"; empty if none differ."""
    settings = row["setting"].items()
    return ", ".join(f"{key.partition('.')[2]}={value}" for key, value in settings if key.startswith("scenario."))


def _name(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """Return the row's name: the method if that is unique among these rows, else the row's label."""

    def short(candidate: ResultRow) -> str:
        return candidate["cell"][1] if candidate["cell"] else candidate["method"]

    return short(row) if sum(short(candidate) == short(row) for candidate in rows) == 1 else row["label"]


def _sentence(rows: Sequence[ResultRow]) -> str:
    if len(rows) == 1:
        row = rows[0]
        seeds = counted(row["n"], "seed") if row["n"] > 1 else "one seed, so its spread is unknown"
        return f"{_name(row, rows)} reaches {plus_minus(row['accuracy'], row['std'])} % accuracy ({seeds})"
    baseline = next((row for row in rows if row["method"] == BASELINE), None)
    others = sorted((row for row in rows if row is not baseline), key=lambda row: -row["accuracy"])
    leader, reference = (others[0], others[1]) if baseline is None else (others[0], baseline)
    further = [row for row in others if row is not leader and row is not reference]
    # Without the baseline the leader is the reference of the family, and its own comparison is turned round.
    family = [leader, *further] if baseline is not None else [reference, *further]
    outcomes = _outcomes(family, reference if baseline is not None else leader)
    if baseline is None:
        outcomes = [None if outcome is None else outcome.reversed() for outcome in outcomes]
    first = _compared(leader, reference, rows, outcomes[0])
    if baseline is not None and baseline["accuracy"] > leader["accuracy"]:
        first = f"{_name(baseline, rows)} has the highest mean of {len(rows)}; {first}" if further else first
    elif further:
        first = f"{_name(leader, rows)} has the highest mean of {len(rows)}; {first}"
    if baseline is None:
        return first
    return "; ".join(filter(None, (first, _others(further, outcomes[1:], rows))))


def _outcomes(family: Sequence[ResultRow], reference: ResultRow) -> list[Difference | None]:
    """Compare the family with the reference; None for a row that has no seed in common with it."""
    common = [bool(set(row["seeds"]) & set(reference["seeds"])) for row in family]
    compared = iter(paired_family(family, reference))
    return [next(compared).outcome if has_common_seeds else None for has_common_seeds in common]


def _compared(leader: ResultRow, reference: ResultRow, rows: Sequence[ResultRow], outcome: Difference | None) -> str:
    """Return the word on the leader and its reference, with means, interval and what else could explain it."""
    name, against = _name(leader, rows), _name(reference, rows)
    word = "too few seeds" if outcome is None else outcome.word
    match word:
        case "ahead" | "behind":
            text = f"{name} is {word}{' of' if word == 'ahead' else ''} {against}"
        case _:
            text = f"{name} and {against}: {word}"
    means = " against ".join(plus_minus(row["accuracy"], row["std"]) for row in (leader, reference))
    if outcome is None:
        return f"{text} (no seed in common), {means}{_unlike(leader, reference)}"
    seeds = f" over {counted(outcome.n, 'common seed')}"
    interval = "" if outcome.low is None else f", 95 % interval {outcome.interval_text(100)}"
    figures = f"{100 * outcome.mean:+.1f} points ({means}){interval}{seeds}"
    addition = f" {outcome.addition}" if outcome.addition else ""
    return f"{text}, {figures}{addition}{_unlike(leader, reference)}"


def _others(further: Sequence[ResultRow], outcomes: Sequence[Difference | None], rows: Sequence[ResultRow]) -> str:
    """Return the other rows by their word, with their differences in points."""
    by_word: dict[str, list[str]] = {}
    for row, outcome in zip(further, outcomes, strict=True):
        points = "" if outcome is None else f" ({100 * outcome.mean:+.1f})"
        by_word.setdefault("too few seeds" if outcome is None else outcome.word, []).append(
            f"{_name(row, rows)}{points}"
        )
    return "; ".join(f"{word}: {listed(names)}" for word, names in by_word.items())


def _unlike(leader: ResultRow, rival: ResultRow) -> str:
    """Return a note on other settings that could explain the difference as well."""
    ours, theirs = leader["setting"], rival["setting"]
    keys = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    differences = listed(f"{key} ({ours[key]} against {theirs[key]})" for key in keys)
    return f"; they differ in {differences} too" if keys and leader["method"] != rival["method"] else ""
