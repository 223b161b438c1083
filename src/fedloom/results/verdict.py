"""Summarise a table of results in sentences."""

from collections.abc import Sequence
from math import isclose, isfinite

from fedloom.core.text import BASELINE, counted, listed, lists_by_key, plus_minus
from fedloom.results.comparability import context_numbers, different_keys, row_names, same_runs
from fedloom.results.difference import MIN_SEEDS, Difference, best_of, rank_intervals
from fedloom.results.group import ResultRow, mean_std
from fedloom.results.pairs import POOLED, compare_rows


def verdict(rows: Sequence[ResultRow]) -> str:
    """Return the `verdicts` as one paragraph."""
    return " ".join(verdicts(rows))


def verdicts(rows: Sequence[ResultRow]) -> list[str]:
    """Return sentences on how the methods compare with FedAvg, or all with each other, by `difference`'s rule.

    Rows that do not compare by the rule of `comparability` are not ranked together: each context gets its own sentence.
    Rows with a diverged run, and training on pooled data, are named and not ranked."""
    names = [name.setting for name in row_names(rows)]
    contexts = lists_by_key((number, index) for index, number in enumerate(context_numbers(rows)))
    firsts = [members[0] for members in contexts.values()]
    headings = _headings([rows[first] for first in firsts], [names[first] for first in firsts])
    sentences = []
    for heading, indices in zip(headings, contexts.values(), strict=True):
        members = [rows[index] for index in indices]
        sentence = "; ".join(filter(None, (_ranked(members), _pooled(members), _diverged(members), _repeated(members))))
        sentences.append(f"{heading}: {sentence}." if heading else f"{sentence}.")
    return sentences


def _headings(rows: Sequence[ResultRow], settings: Sequence[str]) -> list[str]:
    """Return the words that tell contexts apart, from one row of each and the name of its setting."""
    protocols, selections = ([row[key] for row in rows] for key in ("protocol", "select"))
    headings = []
    for row, setting in zip(rows, settings, strict=True):
        named = len(set(settings)) > 1 and row["cell"] is not None and row["cell"][0]
        words = [setting] if named else []
        words += [row["protocol"] if named else f"protocol {row['protocol']}"] if len(set(protocols)) > 1 else []
        words += [f"select {row['select']}"] if len(set(selections)) > 1 else []
        words += [setting] if len(set(settings)) > 1 and setting and not named else []
        headings.append(("" if named or not words else "With ") + ", ".join(words))
    return headings


def _ranked(rows: Sequence[ResultRow]) -> str:
    """Return the sentence about the rows that are ranked: federated ones that did not diverge; empty without any."""
    ranked: list[ResultRow] = []
    for row in rows:
        if not row["diverged"] and row["method"] != POOLED and not any(same_runs(row, earlier) for earlier in ranked):
            ranked.append(row)
    diverged = [row for row in rows if row["diverged"] and row["method"] != POOLED]
    return _sentence(ranked, diverged) if ranked else ""


def _pooled(rows: Sequence[ResultRow]) -> str:
    texts = [
        f"{_name(row, rows)} reaches {plus_minus(row['accuracy'], row['std'])} % on the pooled data of all clients"
        for row in rows
        if row["method"] == POOLED and not row["diverged"]
    ]
    return "; ".join(texts)


def _diverged(rows: Sequence[ResultRow]) -> str:
    names = []
    for row in rows:
        if row["diverged"]:
            seeds = f" with {len(row['diverged'])} of {row['n']}" if row["n"] > 1 else ""
            names.append(f"{_name(row, rows)} diverged{seeds}")
    return f"{listed(names)}, and {'is' if len(names) == 1 else 'are'} not ranked" if names else ""


def _repeated(rows: Sequence[ResultRow]) -> str:
    texts = []
    for row in rows:
        first = next(earlier for earlier in rows if same_runs(row, earlier))
        if first is not row:
            texts.append(f"{_name(row, rows)} has the same runs as {_name(first, rows)}")
    return "; ".join(texts)


def _name(row: ResultRow, rows: Sequence[ResultRow]) -> str:
    """Return the row's name: the method if that is unique among these rows, else the row's label."""

    def short(candidate: ResultRow) -> str:
        return candidate["cell"][1] if candidate["cell"] else candidate["method"]

    return short(row) if sum(short(candidate) == short(row) for candidate in rows) == 1 else row["label"]


def _sentence(rows: Sequence[ResultRow], diverged: Sequence[ResultRow]) -> str:
    if len(rows) == 1:
        row = rows[0]
        seeds = counted(row["n"], "seed") if row["n"] > 1 else "one seed, so its spread is unknown"
        return f"{_name(row, rows)} reaches {plus_minus(row['accuracy'], row['std'])} % accuracy ({seeds})"
    baseline = next((row for row in rows if row["method"] == BASELINE), None)
    others = _best_first([row for row in rows if row is not baseline], baseline)
    highest = "" if (top := _highest(rows)) is None else f"{_name(top, rows)} has the highest mean of {len(rows)}; "
    if baseline is None and len(rows) > 2:
        return highest + _among_all(rows)
    leader, reference = (others[0], others[1]) if baseline is None else (others[0], baseline)
    further = [row for row in others if row is not leader and row is not reference]
    outcomes = compare_rows([leader, *further, *diverged], reference)[: 1 + len(further)]
    first = f"{highest if further else ''}{_compared(leader, reference, rows, outcomes[0])}"
    return "; ".join(filter(None, (first, _others(further, outcomes[1:], reference, rows))))


def _among_all(rows: Sequence[ResultRow]) -> str:
    """Return which rows no other one is ahead of. None is compared with the best mean, which the data have chosen."""
    intervals = rank_intervals([dict(zip(row["seeds"], row["by_seed"], strict=True)) for row in rows], rows[0]["step"])
    if not any(intervals):
        return "too few seeds to tell them apart"
    best = [_name(rows[index], rows) for index in sorted(best_of(dict(enumerate(intervals))))]
    return f"over all pairs, no row is ahead of {listed(best)}" if best else "over all pairs, no row is told apart"


def _best_first(rows: Sequence[ResultRow], baseline: ResultRow | None) -> list[ResultRow]:
    """Sort rows by their mean; those with too few seeds for a comparison come last."""
    needed = None if baseline is None else set(baseline["seeds"])

    def key(row: ResultRow) -> tuple[bool, float]:
        common = row["seeds"] if needed is None else needed & set(row["seeds"])
        return len(common) < MIN_SEEDS, -row["accuracy"]

    return sorted(rows, key=key)


def _highest(rows: Sequence[ResultRow]) -> ResultRow | None:
    """Return the row with the highest mean; None where seeds are unequal, a mean is not finite, or several share it."""
    if len({tuple(row["seeds"]) for row in rows}) > 1 or not all(isfinite(row["accuracy"]) for row in rows):
        return None
    first, second = sorted(rows, key=lambda row: -row["accuracy"])[:2]
    return None if isclose(first["accuracy"], second["accuracy"], rel_tol=1e-9) else first


def _compared(leader: ResultRow, reference: ResultRow, rows: Sequence[ResultRow], outcome: Difference | None) -> str:
    """Return the word on the leader and its reference, with means, interval and what else could explain it."""
    name, against = _name(leader, rows), _name(reference, rows)
    means = " against ".join(plus_minus(mean, std) for mean, std in _common_means(leader, reference))
    if outcome is None:
        return f"{name} against {against}: no seed in common, {means}{_unlike(leader, reference)}"
    match outcome.word:
        case "ahead" | "behind" as word:
            text = f"{name} is {word}{' of' if word == 'ahead' else ''} {against}{outcome.verdict.removeprefix(word)}"
        case _:
            text = f"{name} against {against}: {outcome.verdict}"
    return f"{text}, {outcome.figures(means)}{_unlike(leader, reference)}"


def _common_means(row: ResultRow, reference: ResultRow) -> list[tuple[float, float | None]]:
    """Return mean and deviation of two rows over their common seeds; over all of their seeds if none is common."""
    common = set(row["seeds"]) & set(reference["seeds"])
    return [
        mean_std(
            [
                accuracy
                for seed, accuracy in zip(shown["seeds"], shown["by_seed"], strict=True)
                if seed in common or not common
            ]
        )
        for shown in (row, reference)
    ]


def _others(
    further: Sequence[ResultRow], outcomes: Sequence[Difference | None], reference: ResultRow, rows: Sequence[ResultRow]
) -> str:
    """Return the other rows by their word, with their differences in points and the keys that could explain them."""
    by_word: dict[str, list[str]] = {}
    for row, outcome in zip(further, outcomes, strict=True):
        word, gain = "too few seeds", "no seed in common"
        if outcome is not None:
            word = f"{outcome.word}{f' ({outcome.family})' if outcome.family else ''}"
            more = outcome.verdict.removeprefix(outcome.word).strip(" ,()")
            gain = ", ".join(filter(None, (f"{100 * outcome.mean:+.1f}", more))) + outcome.unplanned_text
        by_word.setdefault(word, []).append(f"{_name(row, rows)} ({gain}{_unlike(row, reference, 'it differs')})")
    return "; ".join(f"{word}: {listed(names)}" for word, names in by_word.items())


def _unlike(row: ResultRow, reference: ResultRow, differs: str = "they differ") -> str:
    """Return a note on other keys that could explain the difference as well."""
    differences = different_keys(row, reference) if row["method"] != reference["method"] else ""
    return f"; {differs} in {differences} too" if differences else ""
