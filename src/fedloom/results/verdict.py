"""Summarise a table of results in sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fedloom.results.table import ResultRow
from fedloom.results.text import counted, listed, plus_minus

BASELINE = "fedavg"
_TIE = 0.0005  # as a share; a smaller difference is displayed as 0.0 points


def verdict(rows: Sequence[ResultRow]) -> str:
    """Return the `verdicts` as one paragraph."""
    return " ".join(verdicts(rows))


def verdicts(rows: Sequence[ResultRow]) -> list[str]:
    """Return sentences on which method leads FedAvg (or else the next method), by how much, and whether seeds explain
    it.

    A difference is within the seeds' spread if the two mean ± sample std intervals touch. Rows that differ in protocol,
    selection, scenario, or a setting with several values for one method are not ranked together: each such group gets
    its own sentence. Rows with a diverged run are named and not ranked.
    """
    contexts: dict[tuple[str, ...], list[ResultRow]] = {}
    axes = _axes(rows)
    for row in rows:
        contexts.setdefault(_context(row, axes), []).append(row)
    varying = [len(set(column)) > 1 for column in zip(*contexts, strict=True)]
    names = [_setting(members) if len(contexts) > 1 else "" for members in contexts.values()]
    sentences = []
    for name, (key, members) in zip(names, contexts.items(), strict=True):
        words = ", ".join(word for word, varies in zip(key, varying, strict=True) if varies and word)
        heading = name if name and names.count(name) == 1 else f"With {words}" if words else ""
        sentence = "; ".join(filter(None, (_ranked(members), _diverged(members))))
        sentences.append(f"{heading}: {sentence}." if heading else f"{sentence}.")
    return sentences


def _ranked(rows: Sequence[ResultRow]) -> str:
    """Return the sentence about the rows that did not diverge; empty if all did."""
    trained = [row for row in rows if not row["diverged"]]
    return _sentence(trained) if trained else ""


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
    leader, rival = (others[0], others[1]) if baseline is None else (others[0], baseline)
    gap = leader["accuracy"] - rival["accuracy"]
    figures = f"({_figures(leader, rival)}){_spread(leader, rival)}{_unlike(leader, rival)}"
    points, name, against = f"{abs(100 * gap):.1f} points", _name(leader, rows), _name(rival, rows)
    if gap <= -_TIE:
        if len(others) > 1:
            return f"No method beats {against} here: the nearest, {name}, is {points} below it {figures}"
        return f"{name} does not win here: it is {points} below {against} {figures}"
    if gap < _TIE:
        return f"{name} does not win here: it ties with {against} {figures}"
    ahead = f"{name} is highest of {len(rows)}:" if len(rows) > 2 else f"{name} is"
    ahead += f" {points} above {against} {figures}"
    if baseline is None:
        return ahead
    behind = [_name(row, rows) for row in others if row["accuracy"] - rival["accuracy"] < _TIE]
    return ahead + (f"; {listed(behind)} {'does' if len(behind) == 1 else 'do'} not beat {against}" if behind else "")


def _figures(leader: ResultRow, rival: ResultRow) -> str:
    a, b = leader["n"], rival["n"]
    seeds = f"{a} seeds each" if a == b > 1 else "one seed each" if a == b else f"{counted(a, 'seed')} against {b}"
    means = [plus_minus(row["accuracy"], row["std"]) for row in (leader, rival)]
    return f"{means[0]} against {means[1]}, {seeds}"


def _unlike(leader: ResultRow, rival: ResultRow) -> str:
    """Return a note on other settings that could explain the difference as well."""
    ours, theirs = leader["setting"], rival["setting"]
    keys = [key for key in ours if key in theirs and ours[key] != theirs[key]]
    differences = listed(f"{key} ({ours[key]} against {theirs[key]})" for key in keys)
    return f"; they differ in {differences} too" if keys and leader["method"] != rival["method"] else ""


def _spread(leader: ResultRow, rival: ResultRow) -> str:
    gap = leader["accuracy"] - rival["accuracy"]
    if abs(gap) < _TIE:
        return ""
    if leader["std"] is None or rival["std"] is None:
        return "; without several seeds of both, chance is not ruled out"
    if abs(gap) > leader["std"] + rival["std"]:
        return ""
    mine = dict(zip(leader["seeds"], leader["by_seed"], strict=True))
    shared = [(mine[s], v) for s, v in zip(rival["seeds"], rival["by_seed"], strict=True) if s in mine]
    word, wins = ("higher", sum(a > b for a, b in shared)) if gap > 0 else ("lower", sum(a < b for a, b in shared))
    paired = f" ({word} with {wins} of {counted(len(shared), 'seed')})" if len(shared) > 1 else ""
    return f", which lies within the seeds' spread{paired}"
